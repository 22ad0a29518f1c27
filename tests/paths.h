// SPDX-License-Identifier: Apache-2.0
// Where a test finds files and the program. The paths are compiled only into paths.cpp, so that a compiler
// cache serves the tests of one checkout in another.
#pragma once
#include <string>

namespace meshgrad::test {

/// A file of the source tree, as in source_file("docs/config.md").
std::string source_file(const std::string& name);
/// A file of tests/data.
std::string data_file(const std::string& name);
/// The program `meshgrad`.
std::string program();

}  // namespace meshgrad::test
