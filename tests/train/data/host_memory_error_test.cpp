// SPDX-License-Identifier: Apache-2.0
// When the host has no memory left, the data set, its size and the limits are named.
#include <doctest/doctest.h>
#include <meshgrad/engine/memory/source_host.h>
#include <meshgrad/train/data/host_memory_error.h>
#include <meshgrad/train/data/packed_file.h>
#include <sys/resource.h>

#include <new>

#include "paths.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;

/// The program where it may have so many KiB of addresses.
test::Outcome run_with_addresses(int64_t kibibytes, std::vector<std::string> arguments) {
  std::vector<std::string> shell{"-c", "ulimit -v " + std::to_string(kibibytes) + "; exec \"$0\" \"$@\"",
                                 test::program()};
  shell.insert(shell.end(), arguments.begin(), arguments.end());
  return test::Process(std::move(shell), "/bin/sh").wait();
}

void check_names(const std::string& text, const fs::path& data, const std::string& size) {
  CAPTURE(text);
  for (const std::string& part : {data.string(), size, std::string("cgroup limit"), std::string("ulimit -v")})
    CHECK(contains(text, part));
}

// A sanitizer takes more addresses than any limit leaves.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLimitable = false;
#else
constexpr bool kLimitable = true;
#endif

TEST_CASE("a file larger than the address space is one error") {
  const test::ScratchDirectory scratch;
  const fs::path packed = test::pack_waves(scratch.path);
  const fs::path large = scratch.path / "large.mgd";
  fs::copy_file(packed, large);
  fs::resize_file(large, uintmax_t{64} << 30);          // holes: nothing is written
  CHECK_THROWS_AS(PackedFile::open(large), DataError);  // cut, where there are addresses
  if (!kLimitable) return;
  Config config = test::small_config(scratch.path, large);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"info", large.string()},
        std::vector<std::string>{"train", test::write_config(scratch.path, config), "--quiet"}}) {
    const test::Outcome outcome = run_with_addresses(int64_t{48} << 20, arguments);
    CHECK(outcome.code == 1);
    CHECK(outcome.err.starts_with("meshgrad: error: "));
    check_names(outcome.err, large, "64.0 GiB");
    CHECK(contains(outcome.err, "addresses are limited to 48.0 GiB"));
  }
}

TEST_CASE("under ulimit -v at most half of the addresses are reserved") {
  if (!kLimitable) return;
  const pid_t child = fork();
  if (child == 0) {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto limit = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (int64_t{1} << 30));
    const rlimit limits{limit, limit};
    setrlimit(RLIMIT_AS, &limits);
    HostMemorySource source(int64_t{1} << 40);
    const bool refused = source.reserve(int64_t{600} << 20) == nullptr;
    const bool reserved = source.reserve(int64_t{400} << 20) != nullptr;
    _exit((refused ? 0 : 1) + (reserved ? 0 : 2));
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(test::exit_code_of_status(status) == 0);
}

TEST_CASE("training short of host memory names the data set") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.memory.memory_limit = int64_t{4} << 20;
  config.model.width = 256;
  try {
    test::train_here(config);
    FAIL("there was memory");
  } catch (const OutOfMemory& error) {
    check_names(error.what(), config.data.path, "KiB");
  }
}

TEST_CASE("std::bad_alloc of work on data becomes a named error") {
  const test::ScratchDirectory scratch;
  const fs::path packed = test::pack_waves(scratch.path);
  const auto exhausted = []() -> int { throw std::bad_alloc(); };
  CHECK_THROWS_WITH_AS(with_host_memory_named(packed, true, "to pack", exhausted),
                       doctest::Contains("needed memory of the host to pack"), OutOfMemory);
  const std::string folder = host_out_of_memory(scratch.path / "waves", "to pack").what();
  check_names(folder, scratch.path / "waves", "KiB");
  const auto elsewhere = []() -> int { throw OutOfMemory("of the device"); };
  CHECK_THROWS_WITH_AS(with_host_memory_named(packed, false, "", elsewhere), "of the device", OutOfMemory);
  CHECK(with_host_memory_named(packed, true, "", [] { return 7; }) == 7);
  // Described once, whatever the text says.
  const auto named = [&]() -> int { throw host_out_of_memory(packed, "to map"); };
  const auto count = [](const std::string& text) {
    size_t found = 0;
    for (size_t at = text.find("no cgroup limit"); at != std::string::npos;
         at = text.find("no cgroup limit", at + 1))
      ++found;
    for (size_t at = text.find("the cgroup limit is"); at != std::string::npos;
         at = text.find("the cgroup limit is", at + 1))
      ++found;
    return found;
  };
  const auto text_of = [&](const std::function<int()>& work) -> std::string {
    try {
      with_host_memory_named(packed, true, "", work);
    } catch (const HostOutOfMemory& error) {
      return error.what();
    }
    return "no error";
  };
  CHECK(count(text_of(named)) == 1);
  CHECK(count(text_of([]() -> int { throw OutOfMemory("raise ulimit -v"); })) == 1);
}

}  // namespace
}  // namespace meshgrad
