// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, connected by TCP: the variables that torchrun sets, and no launcher.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <set>
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

TEST_CASE("processes that TCP connects train the same bits as one") {
  const ScratchDirectory scratch;
  Config config = test::processes_config(scratch.path);
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
  Config config = test::processes_config(scratch.path);
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
  Config config = test::endless_config(scratch.path);
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

/// KiB of a file's mappings in a process: resident, and with each page divided by the processes that map it.
std::pair<int64_t, int64_t> mapped_kib(pid_t process, const std::string& file) {
  std::ifstream lines("/proc/" + std::to_string(process) + "/smaps");
  std::pair<int64_t, int64_t> sums;
  bool of_file = false;
  for (std::string line; std::getline(lines, line);) {
    const auto value = [&](std::string_view name) {
      return line.starts_with(name) ? std::stoll(line.substr(name.size())) : 0;
    };
    if (line.find('-') < line.find(' ')) of_file = line.ends_with(file);
    if (!of_file) continue;
    sums.first += value("Rss:");
    sums.second += value("Pss:");
  }
  return sums;
}

TEST_CASE("ranks of a host share the pages of the packed file") {
  EndlessRun run("checkpoints/last.safetensors");
  int64_t resident = 0, shared = 0;
  for (size_t rank = 0; rank < 3; ++rank) {
    const auto [rss, pss] = mapped_kib(run.ranks[rank].id(), run.config.data.path);
    CHECK(rss > 0);
    resident += rss;
    shared += pss;
  }
  CHECK_MESSAGE(3 * shared <= 2 * resident, shared << " of " << resident << " KiB");
}

TEST_CASE("SIGTERM to a rank on TCP stops all with exit code 75") {
  EndlessRun run("checkpoints/last.safetensors");
  run.ranks[1].send(SIGTERM);
  const std::vector<Outcome> outcomes = run.ranks.wait();
  for (const Outcome& outcome : outcomes) CHECK_MESSAGE(outcome.code == 75, outcome.err);
  CHECK(outcomes[0].err.find("--resume continues") != std::string::npos);
}

TEST_CASE("a rank that is killed ends all that TCP connects") {
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

TEST_CASE("commands on TCP ranks print once, as one process does") {
  const ScratchDirectory scratch;
  test::check_rank_commands(scratch.path, [](const test::RankCommand& command) {
    const std::vector<Outcome> outcomes = TcpRun(command.ranks, command.words).wait();
    for (const Outcome& outcome : outcomes) CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK(outcomes.back().out == "");
    if (command.words.front() != "evaluate") CHECK(outcomes.back().err == "");  // each tells its trajectories
    return outcomes.front().out;
  });
}

/// Numbers but for rounding, and all else.
void check_close(const nlohmann::json& got, const nlohmann::json& expected, const std::string& where = "") {
  CAPTURE(where);
  if (expected.is_number()) {
    CHECK(got.get<double>() == doctest::Approx(expected.get<double>()).epsilon(1e-4));
  } else if (expected.is_structured() && !expected.empty()) {
    REQUIRE(got.size() == expected.size());
    for (const auto& [key, value] : expected.items()) {
      const size_t index = expected.is_array() ? std::stoul(key) : 0;
      check_close(expected.is_array() ? got.at(index) : got.at(key), value, where + "/" + key);
    }
  } else {
    CHECK(got == expected);
  }
}

TEST_CASE("ranks that trained in parts predict in parts") {
  const ScratchDirectory scratch;
  Config squares = test::steady_config(scratch.path);
  squares.run.dir = (scratch.path / "squares").string();
  Config waves = test::small_config(scratch.path, test::pack_waves(scratch.path));
  waves.run.dir = (scratch.path / "waves_run").string();
  for (Config* config : {&squares, &waves}) {
    config->train.steps = 1;
    config->ranks.partition = MeshPartition::rcb;
    test::train_here(*config);
  }
  const fs::path folder = scratch.path / "files";
  for (std::vector<std::string> words :
       std::vector<std::vector<std::string>>{{"rollout", waves.run.dir, "--steps", "3", "-o", folder},
                                             {"predict", squares.run.dir, "-o", folder},
                                             {"evaluate", waves.run.dir, "--split", "train"},
                                             {"evaluate", squares.run.dir}}) {
    CAPTURE(words.front());
    words.insert(words.end(), {"--checkpoint", "last", "--threads", "1", "--json"});
    const auto files = [&] {
      std::set<std::string> names;
      if (fs::exists(folder))
        for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
      fs::remove_all(folder);
      return names;
    };
    const Outcome one = test::run_meshgrad(words);
    CHECK_MESSAGE(one.code == 0, one.err);
    CHECK(one.err.find("compute each mesh together") == std::string::npos);
    const std::set<std::string> expected = files();
    CHECK(expected.empty() == (words.front() == "evaluate"));
    const std::vector<Outcome> outcomes = TcpRun(3, words).wait();
    for (const Outcome& outcome : outcomes) CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK(outcomes[0].err.find("3 ranks compute each mesh together") != std::string::npos);
    for (const size_t rank : {size_t{1}, size_t{2}}) CHECK(outcomes[rank].out + outcomes[rank].err == "");
    check_close(nlohmann::json::parse(outcomes[0].out), nlohmann::json::parse(one.out));
    CHECK(files() == expected);
  }
}

TEST_CASE("where rank 0 predicts alone, only it needs the run") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.run.dir = (scratch.path / "run").string();
  config.train.steps = 1;
  test::train_here(config);
  const fs::path elsewhere = scratch.path / "other";
  fs::create_directory(elsewhere);
  const std::string port = std::to_string(test::free_port());
  std::vector<std::unique_ptr<Process>> processes;
  for (const int rank : {0, 1}) {
    processes.push_back(std::make_unique<Process>(
        std::vector<std::string>{"-C", rank == 0 ? scratch.path : elsewhere, "RANK=" + std::to_string(rank),
                                 "WORLD_SIZE=2", "MASTER_ADDR=localhost", "MASTER_PORT=" + port,
                                 test::program(), "rollout", "run", "--checkpoint", "last", "--steps", "1"},
        "/usr/bin/env"));
  }
  for (const auto& process : processes) {
    const Outcome outcome = process->wait();
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
  }
}

TEST_CASE("a run that does not exist is told once") {
  for (const char* command : {"evaluate", "rollout", "predict"}) {
    CAPTURE(command);
    const std::vector<Outcome> outcomes = TcpRun(2, {command, "runs/none"}).wait();
    CHECK(outcomes[0].err.find("error: rank 0: ") != std::string::npos);
    CHECK(outcomes[1].err == "");
    for (const Outcome& outcome : outcomes)
      CHECK(outcome.code == test::run_meshgrad({command, "runs/none"}).code);
  }
}

TEST_CASE("a rank alone says whom it waited for") {
  const ScratchDirectory scratch;
  Config config = test::processes_config(scratch.path);
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
