// SPDX-License-Identifier: Apache-2.0
// A run that was stopped, or killed, and resumed is the run that was not, byte for byte.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::checkpoint_bytes;
using test::lasting_metrics;
using test::Process;
using test::ScratchDirectory;

/// Trains without a break in run.dir, moves the run to FOLDER/straight, and so leaves the place to another.
fs::path straight_run(const fs::path& folder, const Config& config) {
  const TrainResult result = test::train_here(config);
  REQUIRE(result.state.step == config.train.steps);
  fs::rename(config.run.dir, folder / "straight");
  return folder / "straight";
}

void check_same_run(const fs::path& run, const fs::path& straight) {
  for (const char* name : {"last", "best"}) {
    CAPTURE(name);
    REQUIRE(!checkpoint_bytes(straight, name).empty());
    CHECK(checkpoint_bytes(run, name) == checkpoint_bytes(straight, name));
  }
  CHECK(lasting_metrics(run) == lasting_metrics(straight));
}

/// Stops at each of the given calls of `stop`, counted over the whole run, and resumes until the run is done.
void train_in_pieces(const Config& config, const std::set<int64_t>& stops) {
  int64_t calls = 0;
  size_t stopped = 0;
  const auto stop = [&] { return stops.contains(++calls); };
  TrainResult result = test::train_here(config, false, stop);
  for (; result.stopped && stopped <= stops.size(); ++stopped) result = test::train_here(config, true, stop);
  CHECK(stopped == stops.size());
  CHECK(result.state.step == config.train.steps);
}

/// Ten calls: after the batch that ends a validated and saved window, in its validation, in the next window,
/// and random ones.
std::set<int64_t> ten_calls(const Config& config, uint32_t seed) {
  const int64_t window = 10 * config.train.accumulate;
  std::set<int64_t> stops{window, window + 1, window + 3, window + 8};
  std::mt19937 random(seed);
  std::uniform_int_distribution<int64_t> any(1, config.train.steps * config.train.accumulate - 1);
  while (stops.size() < 10) stops.insert(any(random));
  return stops;
}

TEST_CASE("a run stopped at ten places resumes: fixed normalisers") {
  const ScratchDirectory scratch;
  const Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  const fs::path straight = straight_run(scratch.path, config);
  train_in_pieces(config, ten_calls(config, 1));
  check_same_run(config.run.dir, straight);
}

TEST_CASE("a run stopped at ten places resumes: online normalisers") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.normalize.mode = NormalizeMode::online;
  config.normalize.warmup_steps = 4;
  config.normalize.max_samples = 50;
  const fs::path straight = straight_run(scratch.path, config);
  std::set<int64_t> stops = ten_calls(config, 2);
  stops.erase(std::prev(stops.end()));
  stops.insert(2);  // in the warm-up
  train_in_pieces(config, stops);
  check_same_run(config.run.dir, straight);
}

TEST_CASE("a run stopped in its very last validation resumes") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 3;
  const fs::path straight = straight_run(scratch.path, config);
  const int64_t in_windows = 3 * 3 - 1, at_start = 2;  // batches of the first validation
  int64_t calls = 0;
  const TrainResult stopped =
      test::train_here(config, false, [&] { return ++calls == at_start + in_windows + 2; });
  CHECK(stopped.stopped);
  CHECK(stopped.state.step == 3);
  CHECK(stopped.state.validation_due);
  calls = 0;
  // Nothing is asked after the validation, so that a finished run does not say that it can be resumed.
  CHECK_FALSE(test::train_here(config, true, [&] { return ++calls == 5; }).stopped);
  CHECK(calls == config.train.validate_samples / config.train.batch);  // one for each batch
  check_same_run(config.run.dir, straight);
}

TEST_CASE("a repeated validation has one line after a kill") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 12;
  const fs::path straight = straight_run(scratch.path, config);
  int64_t calls = 0;
  const int64_t in_validation = 2 + 10 * config.train.accumulate + 1;  // its second batch, after step 0's two
  const TrainResult stopped = test::train_here(config, false, [&] { return ++calls == in_validation; });
  CHECK(stopped.state.validation_due);
  const fs::path last = fs::path(config.run.dir) / "checkpoints" / "last.safetensors";
  fs::copy_file(last, scratch.path / "stopped");
  CHECK_FALSE(test::train_here(config, true).stopped);
  fs::rename(scratch.path / "stopped", last);  // as if it had been killed before its next checkpoint
  CHECK_FALSE(test::train_here(config, true).stopped);
  check_same_run(config.run.dir, straight);
}

/// The last step in metrics.jsonl, 0 before there is one.
int64_t last_logged_step(const fs::path& run) {
  const std::string text = test::read_text(run / "metrics.jsonl");
  const size_t at = text.rfind("{\"step\": ");
  return at == text.npos ? 0 : std::atoll(text.c_str() + at + 9);
}

void wait_for_step(Process& process, const fs::path& run, int64_t step) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (last_logged_step(run) < step && process.running() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(300us);
}

std::vector<std::string> train_arguments(const std::string& file, const fs::path& run) {
  std::vector<std::string> arguments{"train", file, "--quiet"};
  if (fs::exists(run / "checkpoints" / "last.safetensors")) arguments.push_back("--resume");
  return arguments;
}

TEST_CASE("a run killed ten times is the run without a break") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.run.threads = 1;
  config.train.steps = 60;
  config.train.checkpoint_every = 1;  // so that many kills fall into the writing of a checkpoint
  config.train.log_every = 1;
  const fs::path straight = straight_run(scratch.path, config);
  const std::string file = test::write_config(scratch.path, config);
  std::mt19937 random(5);
  for (int64_t i = 0; i < 10; ++i) {
    Process process(train_arguments(file, config.run.dir));
    wait_for_step(process, config.run.dir, 5 * i + static_cast<int64_t>(random() % 5));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    process.send(SIGKILL);
    REQUIRE(process.wait().code == -SIGKILL);
  }
  const test::Outcome end = test::run_meshgrad(train_arguments(file, config.run.dir));
  CAPTURE(end.err);
  REQUIRE(end.code == 0);
  check_same_run(config.run.dir, straight);
}

TEST_CASE("SIGTERM and SIGUSR1 end a run with exit code 75") {
  for (const int signal_number : {SIGTERM, SIGUSR1}) {
    const ScratchDirectory scratch;
    Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
    config.train.steps = 100000;
    config.train.checkpoint_every = 0;
    config.train.validate_every = 0;
    config.train.log_every = 1;
    const std::string file = test::write_config(scratch.path, config);
    Process process({"train", file});
    wait_for_step(process, config.run.dir, 3);
    CHECK(checkpoint_bytes(config.run.dir, "last").empty());
    process.send(signal_number);
    const test::Outcome outcome = process.wait();
    CAPTURE(outcome.err);
    CHECK(outcome.code == 75);
    CHECK(test::contains(outcome.err, "--resume continues"));
    const int64_t logged = last_logged_step(config.run.dir);
    config.train.steps = logged + 2;
    const TrainResult resumed = test::train_here(config, true);
    CHECK(resumed.state.step == config.train.steps);
  }
}

TEST_CASE("results do not depend on the number of threads") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 40, 6));
  config.train.steps = 6;
  config.train.validate_every = 3;
  const fs::path straight = straight_run(scratch.path, config);
  for (const int threads : {2, 3}) {
    CAPTURE(threads);
    test::train_here(config, false, nullptr, threads);
    check_same_run(config.run.dir, straight);
    fs::remove_all(config.run.dir);
  }
}

}  // namespace
}  // namespace meshgrad
