// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, connected by TCP: the variables that torchrun sets, and no launcher.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "free_port.h"
#include "train/process.h"
#include "train/rank_commands.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::Outcome;
using test::Process;
using test::ScratchDirectory;

/// Processes of the program, one a rank.
class TcpRun {
 public:
  TcpRun(int ranks, const std::vector<std::string>& arguments) {
    const std::string port = std::to_string(test::free_port());
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<std::string> words{"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(ranks),
                                     "MASTER_ADDR=localhost", "MASTER_PORT=" + port, test::program()};
      words.insert(words.end(), arguments.begin(), arguments.end());
      processes_.push_back(std::make_unique<Process>(words, "/usr/bin/env"));
    }
  }
  Process& operator[](size_t rank) { return *processes_[rank]; }
  std::vector<Outcome> wait() {
    std::vector<Outcome> outcomes;
    for (const auto& process : processes_) outcomes.push_back(process->wait());
    return outcomes;
  }

 private:
  std::vector<std::unique_ptr<Process>> processes_;
};

Config tcp_config(const ScratchDirectory& scratch) {
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
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

TEST_CASE("processes that TCP connects train the same bits as one") {
  const ScratchDirectory scratch;
  Config config = tcp_config(scratch);
  CHECK(test::run_meshgrad({"train", test::write_config(scratch.path, config)}).code == 0);
  const auto one = test::tensors_of(config);
  for (const int ranks : {2, 4}) {
    config.run.dir = (scratch.path / std::to_string(ranks)).string();
    const std::vector<Outcome> outcomes =
        TcpRun(ranks, {"train", test::write_config(scratch.path, config), "--json"}).wait();
    for (const Outcome& outcome : outcomes) CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK(nlohmann::json::parse(outcomes[0].out).at("step") == 12);
    CHECK(outcomes[1].out == "");
    CHECK(outcomes[0].err.find(std::to_string(ranks) + " ranks: 4 samples a step") != std::string::npos);
    CHECK(test::tensors_of(config) == one);
  }
}

TEST_CASE("by TCP too, what every process gets wrong is told once") {
  const ScratchDirectory scratch;
  Config config = tcp_config(scratch);
  config.data.path = (scratch.path / "none.mgd").string();
  const std::string file = test::write_config(scratch.path, config);
  const Outcome alone = test::run_meshgrad({"train", file});
  const std::vector<Outcome> outcomes = TcpRun(3, {"train", file}).wait();
  CHECK(outcomes[0].err.find("error: rank 0: [" + config.data.path) != std::string::npos);
  CHECK(outcomes[1].err + outcomes[2].err == "");
  for (const Outcome& outcome : outcomes) CHECK(outcome.code == alone.code);
}

/// A run without end on 3 ranks, which has begun to train.
struct EndlessRun {
  ScratchDirectory scratch;
  Config config = [&] {
    Config endless = tcp_config(scratch);
    endless.train.steps = 1'000'000;
    endless.train.log_every = 1;
    return endless;
  }();
  TcpRun ranks{3, {"train", test::write_config(scratch.path, config)}};

  /// `wait_for`: a file in the run directory.
  explicit EndlessRun(const char* wait_for) {
    for (int i = 0; i < 6000 && ranks[0].running(); ++i) {
      if (fs::exists(fs::path(config.run.dir) / wait_for)) return;
      std::this_thread::sleep_for(10ms);
    }
    ranks[0].send(SIGKILL);
    FAIL("the ranks did not start: " << ranks[0].wait().err);
  }
};

TEST_CASE("SIGTERM to a rank that TCP connects stops all with a checkpoint and exit code 75") {
  EndlessRun run("checkpoints/last.safetensors");
  run.ranks[1].send(SIGTERM);
  const std::vector<Outcome> outcomes = run.ranks.wait();
  for (const Outcome& outcome : outcomes) CHECK_MESSAGE(outcome.code == 75, outcome.err);
  CHECK(outcomes[0].err.find("--resume continues") != std::string::npos);
}

TEST_CASE("a rank that is killed ends all that TCP connects, at any moment, not by the time-out") {
  std::mt19937 random(static_cast<unsigned>(std::chrono::steady_clock::now().time_since_epoch().count()));
  const char* const many = std::getenv("MESHGRAD_KILLS");  // scripts/nightly
  for (int attempt = 0; attempt < (many == nullptr ? 3 : std::atoi(many)); ++attempt) {
    EndlessRun run("log.txt");
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 500));
    const size_t killed = random() % 3;
    run.ranks[killed].send(SIGKILL);
    const auto deadline = std::chrono::steady_clock::now() + 60s;  // ranks.timeout is 20 s
    for (size_t rank = 0; rank < 3; ++rank) CHECK_MESSAGE(run.ranks[rank].ends_by(deadline), rank);
    const std::vector<Outcome> outcomes = run.ranks.wait();
    std::string told;
    for (size_t rank = 0; rank < 3; ++rank) {
      CHECK(outcomes[rank].code == (rank == killed ? -SIGKILL : 1));
      told += outcomes[rank].err;
    }
    CHECK_MESSAGE(told.find("needed a connection with rank") != std::string::npos, told);
  }
}

TEST_CASE("commands of one process print the same on ranks that TCP connects, once") {
  const ScratchDirectory scratch;
  for (const test::RankCommand& command : test::rank_commands(scratch.path)) {
    CAPTURE(command.words.front());
    const std::vector<Outcome> outcomes = TcpRun(2, command.words).wait();
    for (const Outcome& outcome : outcomes) CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK(outcomes[0].out == command.out);
    CHECK(outcomes[1].out + outcomes[1].err == "");
  }
}

TEST_CASE("a rank alone says whom it waited for") {
  const ScratchDirectory scratch;
  Config config = tcp_config(scratch);
  config.ranks.timeout = 1;
  const std::string port = std::to_string(test::free_port());
  const Outcome outcome = Process({"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=localhost", "MASTER_PORT=" + port,
                                   test::program(), "train", test::write_config(scratch.path, config)},
                                  "/usr/bin/env")
                              .wait();
  CHECK(outcome.code == 1);
  CHECK_MESSAGE(outcome.err.find("needed rank 0 at localhost:" + port +
                                 " within 1 s, got Connection refused") != std::string::npos,
                outcome.err);
}

}  // namespace
}  // namespace meshgrad
