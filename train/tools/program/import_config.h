// SPDX-License-Identifier: Apache-2.0
// Options of other programs in our configuration.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// Whose names of options a file has.
enum class OptionNames : uint8_t {
  physicsnemo,  ///< the MeshGraphNet examples: config.yaml, or the class Constants of earlier versions
  deepmind,     ///< meshgraphnets: flags of run_model.py and arguments of its model
  keyvalue      ///< any of these names, or ours
};

struct ImportedConfig {
  std::vector<std::string> mapped;    ///< "batch_size = 4 -> train.batch = 4"
  std::vector<std::string> unmapped;  ///< "amp = maybe: needed ...", "num_test_samples = 10: no such key"
  std::string toml;                   ///< the mapped keys, commented, and what was not mapped as comments
};

/// Reads lines `NAME: VALUE`, `NAME: TYPE = VALUE`, `NAME = VALUE`, `--NAME=VALUE` or `NAME VALUE`; # and %
/// begin comments. Of nested YAML the innermost name counts; lists of several lines are not read. A value
/// that its key refuses is not mapped. Throws ConfigError, with `name` for the file, when nothing is.
ImportedConfig import_config(const std::string& text, const std::string& name, OptionNames names);

}  // namespace meshgrad
