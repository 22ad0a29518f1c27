// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, started by mpirun. Part of the tests where the build has MPI.
#include <doctest/doctest.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/ranks/mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "paths.h"
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

/// The words of `mpirun ... PROGRAM ARGUMENTS`, for /usr/bin/env: also as root, on fewer CPUs than ranks.
std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& arguments,
                                const std::string& program = test::program()) {
  std::vector<std::string> words{"OMPI_ALLOW_RUN_AS_ROOT=1",
                                 "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                 MESHGRAD_MPIRUN,
                                 "--oversubscribe",
                                 "--bind-to",
                                 "none",
                                 "-n",
                                 std::to_string(ranks),
                                 program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

Outcome run_on(int ranks, const std::vector<std::string>& arguments) {
  return Process(mpirun(ranks, arguments), "/usr/bin/env").wait();
}

TEST_CASE("processes train the same bits as one, and say so once") {
  const ScratchDirectory scratch;
  Config config = test::processes_config(scratch.path);
  const std::string file = test::write_config(scratch.path, config);
  CHECK(test::run_meshgrad({"train", file}).code == 0);
  const auto one = test::tensors_of(config);
  for (const int ranks : {2, 4}) {
    config.run.dir = (scratch.path / std::to_string(ranks)).string();
    const Outcome outcome = run_on(ranks, {"train", test::write_config(scratch.path, config), "--json"});
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK(nlohmann::json::parse(outcome.out).at("step") == 12);  // printed only by rank 0
    CHECK(outcome.err.find(std::to_string(ranks) + " ranks: 4 samples a step") != std::string::npos);
    CHECK(test::tensors_of(config) == one);
  }
}

TEST_CASE("errors of every process are told once") {
  const ScratchDirectory scratch;
  Config config = test::processes_config(scratch.path);
  config.data.path = (scratch.path / "none.mgd").string();
  const std::string file = test::write_config(scratch.path, config);
  const Outcome alone = test::run_meshgrad({"train", file});
  const Outcome outcome = run_on(3, {"train", file});
  CHECK(outcome.code == alone.code);
  const std::string text = "error: rank 0: [" + config.data.path;
  const size_t at = outcome.err.find(text);
  CHECK_MESSAGE(at != std::string::npos, outcome.err);
  CHECK(outcome.err.find("error: rank", at + 1) == std::string::npos);
}

/// Processes of the program that were started with this word.
std::vector<pid_t> ranks_of(const std::string& word) {
  std::vector<pid_t> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string words = test::read_text(entry.path() / "cmdline");
    if (words.starts_with(test::program()) && words.find(word) != std::string::npos)
      found.push_back(std::stoi(name));
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// A run without end on 3 ranks, which has begun to train.
struct EndlessRun {
  ScratchDirectory scratch;
  Config config = test::endless_config(scratch.path);
  std::string file = test::write_config(scratch.path, config);
  Process process{mpirun(3, {"train", file}), "/usr/bin/env"};
  std::vector<pid_t> ranks;

  explicit EndlessRun(int64_t checkpoints) {
    const fs::path last = fs::path(config.run.dir) / "checkpoints/last.safetensors";
    for (int i = 0; i < 2000 && process.running(); ++i) {
      ranks = ranks_of(file);
      if (ranks.size() == 3 && (checkpoints == 0 || fs::exists(last))) return;
      std::this_thread::sleep_for(10ms);
    }
    FAIL("the ranks did not start: " << process.wait().err);
  }
};

constexpr const char* kToldFile = "MESHGRAD_TEST_TOLD";  // of the test below, whose rank appends its number

TEST_CASE("one rank of the test below" * doctest::skip(std::getenv(kToldFile) == nullptr)) {
  Ranks ranks = launched_ranks();
  barrier(ranks, "start");
  if (ranks.rank() == 1) ranks.leave();
  // The others as those that wait for NCCL: no message of MPI is awaited.
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  std::string told;
  while (ranks.rank() != 1 && told.empty() && std::chrono::steady_clock::now() < deadline) {
    told = test::message_of([&] { ranks.check("sum of gradients"); });
    std::this_thread::sleep_for(1ms);
  }
  const std::string file = std::getenv(kToldFile);
  const auto of_rank = [&](int rank) { return file + std::to_string(rank); };
  test::write_bytes(of_rank(ranks.rank()) + ".new", std::as_bytes(std::span(told)));
  fs::rename(of_rank(ranks.rank()) + ".new", of_rank(ranks.rank()));
  // The end of a process would tell the others, too.
  for (int other = 0; other < ranks.size(); ++other)
    while (!fs::exists(of_rank(other)) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(1ms);
  CHECK(told.empty() == (ranks.rank() == 1));
  ranks.leave();
}

TEST_CASE("a rank not in MPI learns that another has left") {
  const ScratchDirectory scratch;
  const std::string file = scratch.path / "told";
  std::vector<std::string> words =
      mpirun(3, {"-tc=one rank of the test below"}, fs::read_symlink("/proc/self/exe"));
  words.insert(words.begin(), std::string(kToldFile) + "=" + file);
  const Outcome outcome = Process(words, "/usr/bin/env").wait();  // not 0: a rank that left finalises no MPI
  for (const char* rank : {"0", "2"}) {
    const std::string told = fs::exists(file + rank) ? test::read_text(file + rank) : outcome.err;
    CHECK_MESSAGE(told.find("got the end of rank 1") != std::string::npos, told);
  }
}

TEST_CASE("commands print the same under mpirun as on one process, once") {
  const ScratchDirectory scratch;
  test::check_rank_commands(scratch.path, [](const test::RankCommand& command) {
    const Outcome outcome = run_on(command.ranks, command.words);
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    return outcome.out;
  });
}

TEST_CASE("SIGTERM to any rank stops all with exit code 75") {
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    EndlessRun run(1);
    kill(run.ranks[rank], SIGTERM);
    const Outcome outcome = run.process.wait();
    CHECK_MESSAGE(outcome.code == 75, outcome.err);
    CHECK(outcome.err.find("--resume continues") != std::string::npos);
    const SafetensorsFile checkpoint(fs::path(run.config.run.dir) / "checkpoints/last.safetensors");
    CHECK(checkpoint.view().tensors.size() > 0);
  }
}

TEST_CASE("a rank that is killed ends all, at any moment") {
  std::mt19937 random(static_cast<unsigned>(std::chrono::steady_clock::now().time_since_epoch().count()));
  const char* const many = std::getenv("MESHGRAD_KILLS");  // scripts/nightly
  for (int attempt = 0; attempt < (many == nullptr ? 3 : std::atoi(many)); ++attempt) {
    EndlessRun run(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 500));
    kill(run.ranks[random() % 3], SIGKILL);
    const auto deadline = std::chrono::steady_clock::now() + 60s;  // ranks.timeout is 20 s
    while (!ranks_of(run.file).empty() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(10ms);
    CHECK(ranks_of(run.file).empty());  // a zombie has no words
    // When none of its processes is left, Open MPI 4.1's mpirun may wait for itself for ever, in
    // PMIx_server_finalize.
    run.process.ends_by(std::chrono::steady_clock::now() + 10s);
    CHECK(run.process.wait().code != 0);
  }
}

}  // namespace
}  // namespace meshgrad
