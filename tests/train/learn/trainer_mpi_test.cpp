// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, started by mpirun. Part of the tests where the build has MPI.
#include <doctest/doctest.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/ranks/mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "paths.h"
#include "train/process.h"
#include "train/small_run.h"
#include "train/steady_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::Outcome;
using test::Process;
using test::ScratchDirectory;

/// 12 steps of 4 samples, with sums in the samples' order.
Config processes_config(const std::filesystem::path& folder) {
  Config config = test::small_config(folder, test::pack_waves(folder));
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
Config endless_config(const std::filesystem::path& folder) {
  Config config = processes_config(folder);
  config.train.steps = 1'000'000;
  config.train.log_every = 1;
  return config;
}

/// The words of `mpirun ... PROGRAM ARGUMENTS`, for /usr/bin/env: also as root, on fewer CPUs than ranks, and
/// without a network.
std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& arguments,
                                const std::string& program = test::program()) {
  std::vector<std::string> words{"OMPI_ALLOW_RUN_AS_ROOT=1",
                                 "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                 "OMPI_MCA_btl=^tcp",
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

int times_in(const std::string& text, std::string_view part) {
  int times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

Outcome run_on(int ranks, const std::vector<std::string>& arguments) {
  return Process(mpirun(ranks, arguments), "/usr/bin/env").wait();
}

TEST_CASE("processes train the same bits as one, and say so once") {
  const ScratchDirectory scratch;
  Config config = processes_config(scratch.path);
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
  Config config = processes_config(scratch.path);
  config.data.path = (scratch.path / "none.mgd").string();
  const std::string file = test::write_config(scratch.path, config);
  const Outcome alone = test::run_meshgrad({"train", file});
  const Outcome outcome = run_on(3, {"train", file});
  CHECK(outcome.code == alone.code);
  CHECK_MESSAGE(outcome.err.find("error: rank 0: [" + config.data.path) != std::string::npos, outcome.err);
  CHECK(times_in(outcome.err, "error: rank") == 1);
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
  Config config = endless_config(scratch.path);
  std::string file = test::write_config(scratch.path, config);
  Process process{mpirun(3, {"train", file}), "/usr/bin/env"};
  std::vector<pid_t> ranks;

  ~EndlessRun() {
    if (!process.running()) return;
    for (const pid_t rank : ranks) kill(rank, SIGKILL);  // without mpirun they would write on for a moment
  }
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
  const auto deadline = std::chrono::steady_clock::now() + 60s;
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
  Config squares = test::steady_config(scratch.path);
  squares.run.dir = (scratch.path / "squares").string();
  Config waves = test::small_config(scratch.path, test::pack_waves(scratch.path));
  waves.run.dir = (scratch.path / "waves_run").string();
  for (Config* config : {&squares, &waves}) {
    config->train.steps = 1;
    test::train_here(*config);
  }
  const auto words_of = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--checkpoint", "last", "--threads", "1", "--json"});
    return words;
  };
  // Rank 0 runs all but evaluate while the others wait; of two trajectories to evaluate, the third rank has
  // none.
  const std::vector<std::string> evaluate = words_of({"evaluate", waves.run.dir, "--split", "train"});
  for (const auto& [ranks, words] : std::vector<std::pair<int, std::vector<std::string>>>{
           {2, words_of({"predict", squares.run.dir, "--split", "test"})},
           {2, words_of({"rollout", waves.run.dir, "--steps", "3"})},
           {2, {"verify", test::data_file("oracles/mgn_small.safetensors"), "--json"}},
           {2, {"plan", test::write_config(scratch.path, waves), "--device-memory", "1GiB", "--json"}},
           {2, evaluate},
           {3, evaluate}}) {
    CAPTURE(words.front());
    const Outcome one = test::run_meshgrad(words);
    CHECK_MESSAGE(one.code == 0, one.err);
    CHECK(one.out != "");
    const Outcome all = run_on(ranks, words);
    CHECK_MESSAGE(all.code == 0, all.err);
    CHECK(all.out == one.out);
  }
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
    const Outcome parts = run_on(3, words);
    CHECK_MESSAGE(parts.code == 0, parts.err);
    CHECK(times_in(parts.err, "3 ranks compute each mesh together") == 1);
    check_close(nlohmann::json::parse(parts.out), nlohmann::json::parse(one.out));  // printed only by rank 0
    CHECK(files() == expected);
  }
}

TEST_CASE("where rank 0 predicts for all, only it needs the run") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.run.dir = (scratch.path / "run").string();
  config.train.steps = 1;
  test::train_here(config);
  fs::create_directory(scratch.path / "other");
  // Not `mpirun --wdir A ... : --wdir B ...`, by which Open MPI 5.0.7 crashes.
  const std::string script =
      R"(cd "$1" && if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then cd other; fi; shift; exec "$@")";
  const Outcome outcome = Process(mpirun(2,
                                         {"-c", script, "sh", scratch.path, test::program(), "rollout", "run",
                                          "--checkpoint", "last", "--steps", "1"},
                                         "/bin/sh"),
                                  "/usr/bin/env")
                              .wait();
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
}

TEST_CASE("a run that does not exist is told once") {
  for (const char* command : {"evaluate", "rollout", "predict"}) {
    CAPTURE(command);
    const Outcome outcome = run_on(2, {command, "runs/none"});
    CHECK_MESSAGE(outcome.err.find("error: rank 0: ") != std::string::npos, outcome.err);
    CHECK(times_in(outcome.err, "error: rank") == 1);
    CHECK(outcome.code == test::run_meshgrad({command, "runs/none"}).code);
  }
}

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
  const EndlessRun run(1);
  int64_t resident = 0, shared = 0;
  for (const pid_t rank : run.ranks) {
    const auto [rss, pss] = mapped_kib(rank, run.config.data.path);
    CHECK(rss > 0);
    resident += rss;
    shared += pss;
  }
  CHECK_MESSAGE(3 * shared <= 2 * resident, shared << " of " << resident << " KiB");
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
