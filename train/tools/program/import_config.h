// SPDX-License-Identifier: Apache-2.0
// Options of other programs in our configuration.
#pragma once
#include <meshgrad/train/tools/program/foreign_options.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

struct ImportedConfig {
  std::vector<std::string> mapped;  ///< "batch_size = 4 -> train.batch=4"
  std::vector<std::string>
      unmapped;      ///< "verbose = true: -q leaves out ...", "num_test_samples = 10: no such key"
  std::string toml;  ///< the mapped keys, commented, and what was not mapped as comments
};

/// Reads lines `NAME: VALUE`, `NAME: TYPE = VALUE`, `NAME = VALUE`, `NAME VALUE`, command lines with
/// `--NAME=VALUE`, `--NAME VALUE` and `--NAME`, or JSON; # and % begin comments at the start of a line and
/// after a blank. Of nested YAML and JSON the innermost name counts; lists of several lines are not read. A
/// value that its key refuses is not mapped, nor is a name that several sections have, nor different values
/// of one key, but for what a recipe ("model") sets. `shortest_edge`: of the data that the configuration is
/// for. Throws ConfigError, with `name` for the file, when it has no known name.
ImportedConfig import_config(const std::string& text, const std::string& name, OptionNames names,
                             std::optional<double> shortest_edge = {});

}  // namespace meshgrad
