// SPDX-License-Identifier: Apache-2.0
// What options of other programs are here: one table for files of options, flags of `meshgrad train` and
// environment variables.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// Whose names of options a file has.
enum class OptionNames : uint8_t {
  physicsnemo,  ///< the MeshGraphNet examples: config.yaml, or the class Constants of earlier versions
  deepmind,     ///< meshgraphnets: flags of run_model.py and arguments of its model
  keyvalue      ///< any of these names, those of other programs, or ours
};

struct ForeignOption {
  std::string name, value;  ///< of a flag alone the value is "true"
  std::string place = {};   ///< in its file: "line 3"; of JSON "teacher.lr"
};

struct OptionMeaning {
  std::vector<std::string> settings;  ///< "section.key=value"; none where nothing is to be set
  std::string answer;                 ///< a sentence beside the settings or in place of them; may be empty
};

/// What an option means here; nothing for a name that no row of the table has. Case and hyphens of names do
/// not matter. `shortest_edge`: of the data that it is for, if known.
std::optional<OptionMeaning> meaning_of(const ForeignOption& option, OptionNames names,
                                        std::optional<double> shortest_edge = {});

/// What to know of PyTorch's allocator settings in the environment; empty when there are none.
std::string foreign_environment_note();

}  // namespace meshgrad
