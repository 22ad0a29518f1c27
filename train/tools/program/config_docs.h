// SPDX-License-Identifier: Apache-2.0
// The key table as a JSON Schema, as comments of a file and as docs/config.md.
#pragma once
#include <meshgrad/train/learn/config/config.h>

#include <string>

namespace meshgrad {

/// A JSON Schema (draft 4) of the file, for editors.
std::string config_schema();

/// A line for each key: its full name, its default and what it means.
std::string config_summary();

/// `config` as TOML, as to_toml, with what each key means and accepts.
std::string commented_toml(const Config& config);

/// docs/config.md.
std::string config_markdown();

}  // namespace meshgrad
