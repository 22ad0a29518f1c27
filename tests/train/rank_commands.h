// SPDX-License-Identifier: Apache-2.0
// What processes that a launcher connects are tested with: a run that any number of them trains to the same
// bits, and commands that print the same on them.
#pragma once
#include <doctest/doctest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "paths.h"
#include "train/process.h"
#include "train/steady_case.h"

namespace meshgrad::test {

/// 12 steps of 4 samples, with sums in the samples' order.
inline Config processes_config(const std::filesystem::path& folder) {
  Config config = small_config(folder, pack_waves(folder));
  config.model.width = 8;
  config.train.steps = 12;
  config.train.batch = 4;
  config.train.accumulate = 1;
  config.train.validate_every = 6;
  config.train.checkpoint_every = 6;
  config.run.threads = 1;
  config.ranks.timeout = 20;
  config.ranks.reduction = RankReduction::ordered;
  return config;
}

/// The same without an end, for runs that a test ends.
inline Config endless_config(const std::filesystem::path& folder) {
  Config config = processes_config(folder);
  config.train.steps = 1'000'000;
  config.train.log_every = 1;
  return config;
}

struct RankCommand {
  int ranks = 2;
  std::vector<std::string> words;
};

/// predict, rollout, verify and plan, which rank 0 runs while the others wait, and evaluate, which all share.
/// `run_on` returns what rank 0 printed.
inline void check_rank_commands(const std::filesystem::path& folder,
                                const std::function<std::string(const RankCommand&)>& run_on) {
  Config squares = steady_config(folder);
  squares.run.dir = (folder / "squares").string();
  Config waves = small_config(folder, pack_waves(folder));
  waves.run.dir = (folder / "waves_run").string();
  for (Config* config : {&squares, &waves}) {
    config->train.steps = 1;
    train_here(*config);
  }
  const std::vector<std::string> last{"--checkpoint", "last", "--threads", "1", "--json"};
  const auto words_of = [&](std::vector<std::string> words) {
    words.insert(words.end(), last.begin(), last.end());
    return words;
  };
  // Of two trajectories to evaluate, the third rank has none.
  const std::vector<std::string> evaluate = words_of({"evaluate", waves.run.dir, "--split", "train"});
  for (const RankCommand& command : std::vector<RankCommand>{
           {2, words_of({"predict", squares.run.dir, "--split", "test"})},
           {2, words_of({"rollout", waves.run.dir, "--steps", "3"})},
           {2, {"verify", data_file("oracles/mgn_small.safetensors"), "--json"}},
           {2, {"plan", write_config(folder, waves), "--device-memory", "1GiB", "--json"}},
           {2, evaluate},
           {3, evaluate}}) {
    CAPTURE(command.words.front());
    const Outcome one = run_meshgrad(command.words);
    CHECK_MESSAGE(one.code == 0, one.err);
    CHECK(one.out != "");
    CHECK(run_on(command) == one.out);
  }
}

}  // namespace meshgrad::test
