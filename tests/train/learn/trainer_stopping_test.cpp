// SPDX-License-Identifier: Apache-2.0
// A run belongs to one process, ends with a checkpoint for each stop signal, and does not end because
// something could not be shown.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/run/run_folder.h>
#include <meshgrad/train/tools/program/signals.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "paths.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::Outcome;
using test::Process;
using test::ScratchDirectory;

/// A run that would go on for minutes; its first checkpoint but for the last one is far away.
struct LongRun {
  ScratchDirectory scratch;
  Config config;
  std::string file;
  LongRun() {
    config = test::small_config(scratch.path, test::pack_waves(scratch.path));
    config.train.steps = 1'000'000;
    config.train.validate_every = 0;
    config.train.checkpoint_every = 0;
    config.run.threads = 1;
    file = test::write_config(scratch.path, config);
  }
  fs::path dir() const { return config.run.dir; }
  bool has_checkpoint() const { return fs::exists(dir() / "checkpoints" / "last.safetensors"); }
  void wait_for_first_step(Process& process) const {
    const fs::path metrics = dir() / "metrics.jsonl";
    while (process.running() && (!fs::exists(metrics) || fs::file_size(metrics) == 0))
      std::this_thread::sleep_for(2ms);
    REQUIRE(process.running());
  }
  /// `script` runs in a shell with $0 = meshgrad, $1 = the configuration.
  Outcome shell(const std::string& script) const {
    return Process({"-c", script, test::program(), file}, "/bin/sh").wait();
  }
};

/// The status of a child that runs `body`.
int status_of_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_CASE("each stop signal ends a run with exit code 75") {
  for (const auto& [first, second, gap] : {std::tuple{SIGINT, 0, 0ms},
                                           {SIGHUP, 0, 0ms},
                                           {SIGXCPU, 0, 0ms},
                                           {SIGTERM, SIGTERM, 0ms},
                                           {SIGTERM, SIGTERM, 5ms},
                                           {SIGUSR1, SIGTERM, 1ms},
                                           {SIGTERM, SIGHUP, 0ms}}) {
    CAPTURE(first);
    CAPTURE(second);
    const LongRun run;
    Process process({"train", run.file});
    run.wait_for_first_step(process);
    process.send(first);
    std::this_thread::sleep_for(gap);
    if (second != 0) process.send(second);
    const Outcome outcome = process.wait();
    CHECK(outcome.code == 75);
    CHECK(run.has_checkpoint());
    CHECK(outcome.err.find("stopped at step") != std::string::npos);
    CHECK((outcome.err.find("Ctrl-C again ends the process at once") != std::string::npos) ==
          (first == SIGINT));
  }
}

TEST_CASE("a second Ctrl-C after a moment ends the process at once") {
  const int status = status_of_child([] {
    cli::catch_stop_signals();
    if (cli::stop_requested()) _exit(10);
    raise(SIGINT);
    raise(SIGINT);  // a wrapper that passes on what the terminal has sent already
    if (!cli::stop_requested()) _exit(11);
    std::this_thread::sleep_for(250ms);
    raise(SIGTERM);
    raise(SIGINT);
    _exit(12);
  });
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGINT);
}

TEST_CASE("a signal ignored from the start stays ignored") {
  const int status = status_of_child([] {
    signal(SIGHUP, SIG_IGN);
    cli::catch_stop_signals();
    raise(SIGHUP);
    _exit(cli::stop_requested() ? 1 : 0);
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a run goes on where its messages cannot be written") {
  LongRun run;
  run.config.train.steps = 6;
  test::write_config(run.scratch.path, run.config);
  for (const char* script :
       {"exec \"$0\" train \"$1\" 2>/dev/full", "exec \"$0\" train \"$1\" 2>&-",
        "exec \"$0\" train \"$1\" 0<&- 1>&- 2>&-",
        // The reader has gone before the first line.
        "{ sleep 0.2; \"$0\" train \"$1\" 2>&1 >/dev/null; echo $? >code; } | true; [ $(cat code) = 0 ]"}) {
    CAPTURE(script);
    fs::remove_all(run.dir());
    const Outcome outcome = run.shell("cd " + run.scratch.path.string() + "; " + script);
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK(run.has_checkpoint());
    CHECK(read_metrics(run.dir() / "metrics.jsonl").size() >= 3);  // no line of it is a message
    CHECK(test::read_text(run.dir() / "metrics.jsonl").find("meshgrad") == std::string::npos);
  }
}

TEST_CASE("a closed pipe ends the program as any other one") {
  const LongRun run;
  const Outcome outcome = run.shell("{ sleep 0.1; \"$0\" config default; } | true");
  CHECK_MESSAGE(outcome.err.empty(), outcome.err);
}

TEST_CASE("a run folder belongs to one process, which the error names") {
  const LongRun run;
  Process process({"train", run.file});
  run.wait_for_first_step(process);
  const std::string metrics = test::read_text(run.dir() / "metrics.jsonl");
  for (const char* more : {"--quiet", "--resume"}) {
    CAPTURE(more);
    const Outcome second = test::run_meshgrad({"train", run.file, more, "--set", "model.width=24"});
    CHECK(second.code == 2);
    if (std::string_view(more) == "--resume") continue;  // there is no checkpoint yet
    CHECK(second.err.find("[run.dir] needed a folder that no other process writes to") != std::string::npos);
    CHECK(second.err.find("process ") != std::string::npos);
    CHECK(second.err.find(" UTC trains in; fix: wait for that run") != std::string::npos);
  }
  fs::remove(run.dir() / "run.lock");
  const Outcome second = test::run_meshgrad({"train", run.file, "--set", "model.width=24"});
  CHECK(second.err.find("[run.dir] needed a folder that no other process writes to") != std::string::npos);
  CHECK(test::read_text(run.dir() / "config.resolved.toml").find("width = 24") == std::string::npos);
  process.send(SIGTERM);
  CHECK(process.wait().code == 75);
  // Neither the killed holder nor its file keeps the folder.
  CHECK(test::run_meshgrad({"train", run.file, "--resume", "--set", "train.steps=1"}).code == 0);
}

TEST_CASE("a lock is released with its object") {
  const ScratchDirectory scratch;
  {
    const FolderLock lock(scratch.path);
    CHECK_THROWS_WITH_AS(FolderLock{scratch.path}, doctest::Contains("trains in"), ConfigError);
  }
  CHECK_NOTHROW(FolderLock{scratch.path});
}

TEST_CASE("a lock holds without its file") {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path / "run.lock";
  FolderLock lock(scratch.path);
  CHECK(lock.locked());
  fs::remove(file);
  CHECK(folder_is_locked(scratch.path));
  CHECK_THROWS_WITH_AS(FolderLock{scratch.path}, doctest::Contains("trains in"), ConfigError);
  fs::remove(file);
  lock.renew();
  CHECK(test::contains(test::read_text(file), "process "));
  lock.renew();
  // Where a file system locks no folders, such as NFS.
  fs::remove(file);
  const int second = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  REQUIRE(::flock(second, LOCK_EX | LOCK_NB) == 0);
  CHECK_THROWS_WITH_AS(lock.renew(), doctest::Contains("a process without a name trains in"), ConfigError);
  ::close(second);
}

TEST_CASE("of several ranks that MPI does not connect none trains") {
  const LongRun run;
  const Outcome outcome = run.shell("WORLD_SIZE=2 exec \"$0\" train \"$1\"");
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("[WORLD_SIZE=2] needed 2 ranks that MPI connects, got a launcher without MPI") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(run.dir()));
}

TEST_CASE("a run stops before the end of its SLURM job") {
  const LongRun run;
  // A program that starts in the last 120 s does not stop before the end: it has 6 s to start.
  const Outcome stopped =
      run.shell("SLURM_JOB_END_TIME=$(($(date +%s) + 126)) exec timeout 120 \"$0\" train \"$1\"");
  CHECK(stopped.code == 75);
  CHECK(run.has_checkpoint());
  CHECK(stopped.err.find("120 s before the end of the SLURM job") != std::string::npos);
  const Outcome late = run.shell(
      "SLURM_JOB_END_TIME=$(($(date +%s) + 60)) exec \"$0\" train \"$1\" --resume --set train.steps=1");
  CHECK(late.code == 0);
  CHECK(late.err.find("warning: the SLURM job ends in ") != std::string::npos);
}

}  // namespace
}  // namespace meshgrad
