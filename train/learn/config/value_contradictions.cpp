// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_table.h>

#include <algorithm>

namespace meshgrad {

void add_value_contradictions(const Config& config, std::vector<Contradiction>& found) {
  const DataConfig& data = config.data;
  if (data.value_targets.empty()) return;
  for (const std::string& name : data.value_targets) {
    if (std::ranges::find(data.targets, name) != data.targets.end()) continue;
    found.push_back({{"data.value_targets", "data.targets"},
                     fmt::format("fields among data.targets = [{}]", fmt::join(data.targets, ", ")),
                     toml_quoted(name),
                     "remove it, or add it to data.targets"});
  }
  const auto refuse = [&](const char* other, const char* why, const char* fix) {
    found.push_back({{"data.value_targets", other}, why, "a list of fields", fix});
  };
  if (config.task.name == TaskName::steady_field)
    refuse("task.name", "[] with task.name = \"steady_field\", which predicts values alone",
           "leave out data.value_targets");
  if (config.unroll.steps > 1)
    refuse("unroll.steps", "[] with unroll.steps above 1, which adds up changes",
           "set unroll.steps = 1 or leave out data.value_targets");
  if (config.loss.change_penalty > 0)
    refuse("loss.change_penalty", "[] with loss.change_penalty, which counts predictions as changes",
           "set loss.change_penalty = 0 or leave out data.value_targets");
}

}  // namespace meshgrad
