// SPDX-License-Identifier: Apache-2.0
// The key table as a JSON Schema and as docs/config.md.
#pragma once
#include <string>

namespace meshgrad {

/// A JSON Schema (draft 4) of the file, for editors.
std::string config_schema();

/// A line for each key: its full name, its default and what it means.
std::string config_summary();

/// docs/config.md.
std::string config_markdown();

}  // namespace meshgrad
