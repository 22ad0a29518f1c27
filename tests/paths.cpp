// SPDX-License-Identifier: Apache-2.0
#include "paths.h"

namespace meshgrad::test {

std::string source_file(const std::string& name) { return MESHGRAD_SOURCE_DIR "/" + name; }
std::string data_file(const std::string& name) { return source_file("tests/data/" + name); }
std::string program() { return MESHGRAD_CLI; }

}  // namespace meshgrad::test
