// SPDX-License-Identifier: Apache-2.0
// Commands that rank 0 runs while the others wait.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "paths.h"
#include "train/process.h"
#include "train/steady_case.h"

namespace meshgrad::test {

struct RankCommand {
  std::vector<std::string> words;
  std::string out;  // of one process
};

/// predict, rollout, verify and plan, on runs of one step.
inline std::vector<RankCommand> rank_commands(const std::filesystem::path& folder) {
  Config squares = steady_config(folder);
  squares.run.dir = (folder / "squares").string();
  Config waves = small_config(folder, pack_waves(folder));
  waves.run.dir = (folder / "waves_run").string();
  for (Config* config : {&squares, &waves}) {
    config->train.steps = 1;
    train_here(*config);
  }
  std::vector<RankCommand> commands{
      {{"predict", squares.run.dir, "--split", "test", "--checkpoint", "last", "--threads", "1", "--json"},
       ""},
      {{"rollout", waves.run.dir, "--steps", "3", "--checkpoint", "last", "--threads", "1", "--json"}, ""},
      {{"verify", data_file("oracles/mgn_small.safetensors"), "--json"}, ""},
      {{"plan", write_config(folder, waves), "--device-memory", "1GiB", "--json"}, ""}};
  for (RankCommand& command : commands) {
    const Outcome one = run_meshgrad(command.words);
    if (one.code != 0 || one.out.empty()) throw std::runtime_error(command.words.front() + ": " + one.err);
    command.out = one.out;
  }
  return commands;
}

}  // namespace meshgrad::test
