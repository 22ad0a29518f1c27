// SPDX-License-Identifier: Apache-2.0
// FIFOs, devices and names that the file system refuses, in every place for a file; files that claim too
// much.
#include <doctest/doctest.h>
#include <meshgrad/engine/regular_file.h>
#include <sys/stat.h>
#include <zlib.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "train/fault_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// The command ends by itself, with one error that names `parts`.
void check_refused(const std::vector<std::string>& arguments, const std::vector<std::string>& parts,
                   int code = 1) {
  CAPTURE(arguments.front());
  CAPTURE(parts.front());
  std::vector<std::string> all = arguments;
  all.emplace_back("--quiet");
  test::Process process(all);
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (process.running() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(2ms);
  CHECK_FALSE(process.running());
  process.send(SIGKILL);
  test::check_one_error(process.wait(), code, parts);
}

std::string fifo(const fs::path& path) {
  fs::remove(path);
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  return path.string();
}

TEST_CASE("a FIFO is refused wherever a file is read") {
  test::FaultFixture f;
  const fs::path& folder = f.scratch.path;
  const std::string output = (folder / "o.mgd").string();
  for (const char* name : {"a.npz", "a.h5", "a.tfrecord"}) {
    const std::string path = fifo(folder / name);
    // Without HDF5 the error is another; without meta.json too.
    if (std::string(name) == "a.npz") check_refused({"convert", path, "-o", output}, {path, "a FIFO"});
    check_refused({"convert", path, "-o", output}, {"fix: "});
  }
  fs::create_directory(folder / "deepmind");
  fs::copy(folder / "waves" / "train.tfrecord", folder / "deepmind" / "train.tfrecord");
  const std::string meta = fifo(folder / "deepmind" / "meta.json");
  check_refused({"convert", (folder / "deepmind").string(), "-o", output}, {meta, "a FIFO"});
  const std::string path = fifo(folder / "fifo");
  check_refused({"info", path}, {path, "a FIFO"});
  check_refused({"verify", path}, {path, "a FIFO"});
  check_refused({"memory", "replay", path}, {path, "a FIFO"});
  check_refused({"train", path}, {path, "a FIFO"}, 2);
  check_refused({"train", f.file, "--set", "data.path=" + path}, {path, "a FIFO"});
  test::train_here(f.config);
  const fs::path run = f.config.run.dir;
  check_refused({"evaluate", run.string(), "--checkpoint", path}, {path, "a FIFO"});
  check_refused({"evaluate", run.string(), "--data", path}, {path, "a FIFO"});
  const std::string metrics = fifo(run / "metrics.jsonl");
  check_refused({"train", f.file, "--resume"}, {metrics, "a FIFO"});
  const std::string last = fifo(run / "checkpoints" / "last.safetensors");
  check_refused({"train", f.file, "--resume"}, {last, "a FIFO"});
}

TEST_CASE("devices without end are refused") {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"memory", "replay"}, {"info"}, {"verify"}}) {
    std::vector<std::string> arguments = command;
    arguments.emplace_back("/dev/zero");
    check_refused(arguments, {"/dev/zero", "a device"});
  }
  check_refused({"train", "/dev/zero"}, {"/dev/zero", "a device"}, 2);
  check_refused({"convert", "--format", "npz", "/dev/null", "-o", "/tmp/o.mgd"}, {"/dev/null", "a device"});
}

TEST_CASE("names that the file system refuses are ordinary errors") {
  test::FaultFixture f;
  test::train_here(f.config);
  const std::string loop = (f.scratch.path / "loop").string();
  fs::create_symlink("loop", loop);
  for (const std::string& name : {loop, std::string(300, 'a')}) {
    for (std::vector<std::string> arguments : {std::vector<std::string>{"train", f.file, "--run", name},
                                               {"train", f.file, "--resume", "--run", name},
                                               {"train", name},
                                               {"evaluate", name},
                                               {"evaluate", f.config.run.dir, "--checkpoint", name},
                                               {"convert", name, "-o", "/tmp/o.mgd"},
                                               {"info", name}}) {
      arguments.emplace_back("--quiet");
      const test::Outcome outcome = test::run_meshgrad(arguments);
      CAPTURE(outcome.err);
      CHECK((outcome.code == 1 || outcome.code == 2));
      CHECK(outcome.err.starts_with("meshgrad: error: ["));
      CHECK_FALSE(test::contains(outcome.err, "bug in meshgrad"));
      CHECK(test::contains(outcome.err, "fix: "));
    }
  }
  fs::remove(fs::path(f.config.run.dir) / "metrics.jsonl");
  fs::create_directory(fs::path(f.config.run.dir) / "metrics.jsonl");
  check_refused({"train", f.file, "--resume"}, {"metrics.jsonl", "a folder"});
}

TEST_CASE("a small compressed trace cannot take all memory") {
  const test::ScratchDirectory scratch;
  const std::string path = (scratch.path / "trace.gz").string();
  const gzFile file = gzopen(path.c_str(), "wb1");
  const std::string blanks(1 << 20, '\n');
  for (int i = 0; i < 700; ++i) gzwrite(file, blanks.data(), static_cast<unsigned>(blanks.size()));
  gzclose(file);
  check_refused({"memory", "replay", path}, {path, "MiB of text"});
}

/// A zip file of entries "0.npy", "1.npy", ..., all of which are the same bytes of the file.
std::string overlapping_zip(int entries, uint32_t stored, uint32_t size) {
  std::string local("PK\x03\x04\x14\0\0\0\x08\0\0\0\0\0", 14);
  const auto put = [](std::string& to, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) to += static_cast<char>(value >> (8 * i));
  };
  const auto sizes = [&](std::string& to) {
    put(to, 0, 4);  // CRC
    put(to, stored, 4);
    put(to, size, 4);
    put(to, 5, 2);  // name
    put(to, 0, 2);
  };
  sizes(local);
  local += "0.npy" + std::string(stored, 'x');
  std::string directory;
  for (int i = 0; i < entries; ++i) {
    directory += std::string("PK\x01\x02\x14\0\x14\0\0\0\x08\0\0\0\0\0", 16);
    sizes(directory);
    put(directory, 0, 2);  // comment
    put(directory, 0, 4);
    put(directory, 0, 4);
    put(directory, 0, 4);  // offset of the local header
    directory += std::to_string(i) + ".npy";
  }
  std::string end("PK\x05\x06\0\0\0\0", 8);
  put(end, static_cast<uint32_t>(entries), 2);
  put(end, static_cast<uint32_t>(entries), 2);
  put(end, static_cast<uint32_t>(directory.size()), 4);
  put(end, static_cast<uint32_t>(local.size()), 4);
  put(end, 0, 2);
  return local + directory + end;
}

TEST_CASE("NPZ files that claim too much are refused unread") {
  const test::ScratchDirectory scratch;
  const fs::path path = scratch.path / "bomb.npz";
  const auto write = [&](const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; };
  write(overlapping_zip(3, 50'000, 50'000));
  check_refused({"convert", path.string(), "-o", "/tmp/o.mgd"}, {path.string(), "overlap"});
  write(overlapping_zip(1, 500'000, 400'000'000));
  check_refused({"convert", path.string(), "-o", "/tmp/o.mgd"}, {path.string(), "arrays of at most 303 MiB"});
}

}  // namespace
}  // namespace meshgrad
