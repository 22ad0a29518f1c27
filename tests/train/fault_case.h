// SPDX-License-Identifier: Apache-2.0
// Commands that fail: one clear error, its exit code, and nothing lost that was saved.
#pragma once
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad::test {

inline void check_one_error(const Outcome& outcome, int code, const std::vector<std::string>& parts) {
  CAPTURE(outcome.err);
  CHECK(outcome.code == code);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.starts_with("meshgrad: error: "));
  CHECK(outcome.err.find("meshgrad: error: ", 1) == std::string::npos);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(contains(outcome.err, part));
  }
}

inline void check_fails(std::vector<std::string> arguments, int code, const std::vector<std::string>& parts) {
  arguments.emplace_back("--quiet");
  check_one_error(run_meshgrad(std::move(arguments)), code, parts);
}

/// Data and a config file; runs are short.
struct FaultFixture {
  ScratchDirectory scratch;
  Config config;
  std::string file;
  FaultFixture() {
    config = small_config(scratch.path, pack_waves(scratch.path));
    config.train.steps = 4;
    config.train.validate_every = 2;
    config.train.checkpoint_every = 2;
    file = write_config(scratch.path, config);
  }
  /// What was trained is still there, and can be taken up again.
  void check_resumable(const std::string& last) {
    CHECK(checkpoint_bytes(config.run.dir, "last") == last);
    config.train.steps += 2;
    CHECK(train_here(config, true).state.step == config.train.steps);
  }
};

}  // namespace meshgrad::test
