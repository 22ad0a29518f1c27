// SPDX-License-Identifier: Apache-2.0
// scripts/pytorch-trace on pickles made here by Python itself.
#include <doctest/doctest.h>
#include <meshgrad/train/tools/extras/replay/trace.h>

#include "paths.h"
#include "train/process.h"

namespace meshgrad {
namespace {

/// A pickle of what a Python expression gives.
std::string pickle_of(const test::ScratchDirectory& scratch, const std::string& setup,
                      const std::string& value) {
  const std::string path = (scratch.path / "snapshot.pickle").string();
  const std::string code =
      "import pickle\n" + setup + "\npickle.dump(" + value + ", open('" + path + "', 'wb'))";
  const test::Outcome python = test::Process({"python3", "-c", code}, "/usr/bin/env").wait();
  REQUIRE_MESSAGE(python.code == 0, python.err);
  return path;
}

test::Outcome convert(std::vector<std::string> arguments) {
  return test::Process(std::move(arguments), test::source_file("scripts/pytorch-trace")).wait();
}

const std::string kSetup = R"(
def event(action, addr, size, stream=0):
    return dict(action=action, addr=addr, size=size, stream=stream, time_us=1, frames=[])
busy = [event('free_requested', 7, 64), event('free_completed', 7, 64), event('segment_alloc', 4096, 2 << 20),
        event('alloc', 4096, 1000), event('alloc', 8192, 2000, 93824992),
        event('free_requested', 4096, 1000), event('free_completed', 4096, 1000), dict(action='oom', device_free=5),
        event('alloc', 4096, 3000), event('free_completed', 8192, 2000, 93824992),
        event('alloc', 4096, 10), event('snapshot', 0, 0)]
snapshot = dict(segments=[], device_traces=[[], busy], allocator_settings={})
)";

TEST_CASE("a snapshot becomes a trace") {
  const test::ScratchDirectory scratch;
  const std::string path = pickle_of(scratch, kSetup, "snapshot");
  const test::Outcome outcome = convert({path, "--device", "1"});
  CHECK(outcome.code == 0);
  CHECK(outcome.err == "pytorch-trace: left out 1 frees of blocks allocated before the recording began\n");
  CHECK(outcome.out ==
        "# from a memory snapshot of PyTorch\n"
        "a 0 1000\na 1 2000 1\nf 0\na 2 3000\nf 1\nf 2\na 3 10\n");
  CHECK(parse_memory_trace(outcome.out, "trace").peak_requested == 5000);
}

TEST_CASE("what is no snapshot is refused, and runs nothing") {
  const test::ScratchDirectory scratch;
  const auto check_fails = [&](const std::vector<std::string>& arguments, const std::string& part) {
    const test::Outcome outcome = convert(arguments);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 1);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.find("pytorch-trace: error: [") == 0);
    CHECK(outcome.err.find(part) != std::string::npos);
    CHECK(outcome.err.find("Traceback") == std::string::npos);
  };
  const std::string path = pickle_of(scratch, kSetup, "snapshot");
  check_fails({path}, "got none; fix: use --device 1");
  check_fails({path, "--device", "2"}, "needed a device below 2, got 2");
  check_fails({path + "x"}, "No such file");
  check_fails({pickle_of(scratch, "", "[1, 2]")}, "needed a dict with device_traces, got list");
  check_fails({pickle_of(scratch, "", "dict(device_traces=[[dict(action='alloc')]])")},
              "needed events with action");
  check_fails({pickle_of(scratch, "", "dict(device_traces=[[dict(action='snapshot')]])")},
              "needed allocations");
  const std::string marker = (scratch.path / "ran").string();
  const std::string evil =
      "class Evil:\n  def __reduce__(self): import os; return os.system, ('touch " + marker + "',)";
  check_fails({pickle_of(scratch, evil, "dict(device_traces=[Evil()])")}, "which no snapshot does");
  CHECK_FALSE(std::filesystem::exists(marker));
  std::ofstream(path) << "a 0 16\n";
  check_fails({path}, "needed a pickle of torch.cuda.memory._dump_snapshot");
}

TEST_CASE("help says how to record") {
  const test::Outcome outcome = convert({"--help"});
  CHECK(outcome.code == 0);
  CHECK(outcome.out.find("_record_memory_history") != std::string::npos);
}

}  // namespace
}  // namespace meshgrad
