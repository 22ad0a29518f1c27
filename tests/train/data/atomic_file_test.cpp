// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>

#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;

namespace {

namespace fs = std::filesystem;

std::size_t entries(const fs::path& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

/// Makes write() fail in the middle of a file for as long as it lives: what a full disk does, without a disk.
struct FileSizeLimit {
  rlimit before{};
  void (*handler)(int) = std::signal(SIGXFSZ, SIG_IGN);
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit limit{bytes, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
  }
};

}  // namespace

TEST_CASE("a committed file has all its bytes") {
  const ScratchDirectory scratch;
  const fs::path target = scratch.path / "a.bin";
  const std::string large(700'000, 'x');
  AtomicFile file(target);
  file.write("head ");
  file.write(large);
  file.write(" middle ");
  file.write(std::string(200'000, 'y'));
  file.write(std::string(200'000, 'z'));
  CHECK(file.size() == 5 + 700'000 + 8 + 400'000);
  CHECK_FALSE(fs::exists(target));
  file.commit();
  CHECK(read_text(target) ==
        "head " + large + " middle " + std::string(200'000, 'y') + std::string(200'000, 'z'));
  CHECK(entries(scratch.path) == 1);
  CHECK_THROWS_AS(file.write("more"), InternalError);
  CHECK_THROWS_AS(file.commit(), InternalError);
}

TEST_CASE("the old content stays until commit, and for good without it") {
  const ScratchDirectory scratch;
  const fs::path target = scratch.path / "a.txt";
  write_file_atomically(target, "old");
  {
    AtomicFile file(target);
    file.write(std::string(1'000'000, 'n'));
    CHECK(read_text(target) == "old");
  }
  CHECK(read_text(target) == "old");
  CHECK(entries(scratch.path) == 1);
  write_file_atomically(target, "new");
  CHECK(read_text(target) == "new");
}

TEST_CASE("a new file obeys the umask") {
  const ScratchDirectory scratch;
  const mode_t before = umask(027);
  write_file_atomically(scratch.path / "a", "x");
  umask(before);
  CHECK((fs::status(scratch.path / "a").permissions() & fs::perms::all) ==
        (fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read));
}

TEST_CASE("two writers of one target do not disturb each other") {
  const ScratchDirectory scratch;
  AtomicFile first(scratch.path / "a");
  AtomicFile second(scratch.path / "a");
  first.write("first");
  second.write("second");
  second.commit();
  first.commit();
  CHECK(read_text(scratch.path / "a") == "first");
  CHECK(entries(scratch.path) == 1);
}

TEST_CASE("a file system without unnamed files works the same") {
  const ScratchDirectory scratch;
  const fs::path target = scratch.path / "a";
  AtomicFile first(target, AtomicFile::Temporary::named);
  AtomicFile second(target, AtomicFile::Temporary::named);
  CHECK(entries(scratch.path) == 2);
  first.write("first");
  second.write("second");
  second.commit();
  CHECK(read_text(target) == "second");
  first.commit();
  CHECK(read_text(target) == "first");
  CHECK(entries(scratch.path) == 1);
}

TEST_CASE("a killed writer leaves nothing that stays") {
  for (const auto kind : {AtomicFile::Temporary::unnamed, AtomicFile::Temporary::named}) {
    const ScratchDirectory scratch;
    const fs::path target = scratch.path / "a";
    write_file_atomically(target, "old");
    if (const pid_t child = fork(); child == 0) {
      AtomicFile file(target, kind);
      file.write(std::string(1'000'000, 'n'));
      kill(getpid(), SIGKILL);
    } else {
      waitpid(child, nullptr, 0);
    }
    CHECK(read_text(target) == "old");
    CHECK(entries(scratch.path) == (kind == AtomicFile::Temporary::named ? 2 : 1));
    AtomicFile next(target, kind);
    next.write("new");
    next.commit();
    CHECK(read_text(target) == "new");
    CHECK(entries(scratch.path) == 1);
  }
}

TEST_CASE("a sole writer keeps others out until it ends") {
  const ScratchDirectory scratch;
  const fs::path target = scratch.path / "a";
  if (const pid_t child = fork(); child == 0) {
    const auto abandoned = AtomicFile::sole(target);
    kill(getpid(), SIGKILL);
  } else {
    waitpid(child, nullptr, 0);
  }
  auto first = AtomicFile::sole(target);
  REQUIRE(first != nullptr);
  CHECK(AtomicFile::sole(target) == nullptr);
  CHECK(AtomicFile::sole(scratch.path / "b") != nullptr);
  first->write("first");
  first.reset();
  CHECK(entries(scratch.path) == 0);
  first = AtomicFile::sole(target);
  REQUIRE(first != nullptr);
  first->write("again");
  first->commit();
  CHECK(read_text(target) == "again");
  CHECK(AtomicFile::sole(target) != nullptr);
  CHECK(entries(scratch.path) == 1);
}

TEST_CASE("files of killed writers are removed, held ones stay") {
  const ScratchDirectory scratch;
  write_file_atomically(scratch.path / ".a.meshgrad.tmp.3", "abandoned");
  write_file_atomically(scratch.path / ".a.tmp.3", "a user's");
  AtomicFile held(scratch.path / "b", AtomicFile::Temporary::named);
  remove_abandoned_files(scratch.path);
  CHECK_FALSE(fs::exists(scratch.path / ".a.meshgrad.tmp.3"));
  CHECK(fs::exists(scratch.path / ".a.tmp.3"));
  CHECK(fs::exists(scratch.path / ".b.meshgrad.tmp.0"));
  held.write("new");
  held.commit();
  CHECK(read_text(scratch.path / "b") == "new");
  remove_abandoned_files(scratch.path / "none");
}

TEST_CASE("only a regular file is replaced") {
  const ScratchDirectory scratch;
  write_file_atomically(scratch.path / "plain", "x");
  fs::create_symlink("plain", scratch.path / "link");
  REQUIRE(mkfifo((scratch.path / "fifo").c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(write_file_atomically(scratch.path / "link", "y"),
                       doctest::Contains("got a symbolic link; fix: name the file that the link points to"),
                       DataError);
  CHECK_THROWS_WITH_AS(write_file_atomically(scratch.path / "fifo", "y"), doctest::Contains("FIFO"),
                       DataError);
  CHECK_THROWS_WITH_AS(write_file_atomically("/dev/null", "y"), doctest::Contains("device"), DataError);
  CHECK(fs::is_symlink(scratch.path / "link"));
  CHECK(fs::is_fifo(scratch.path / "fifo"));
  CHECK(read_text(scratch.path / "plain") == "x");
}

TEST_CASE("an output replaces files of its kind, no other and no input") {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path / "a";
  OutputFile output{
      .path = file, .option = "--out", .kind = "a page", .is_of_kind = [](const fs::path& path) {
        return read_text(path) == "page";
      }};
  const auto refused = [&](std::string_view message) {
    CHECK_THROWS_WITH_AS(check_output(output), doctest::Contains(std::string(message).c_str()), DataError);
  };
  check_output(output);  // a new name
  write_file_atomically(file, "");
  check_output(output);
  write_file_atomically(file, "notes");
  refused("/a] needed a new name or a page, got a file that is not a page; fix: choose another name");
  write_file_atomically(file, "page");
  check_output(output);
  output.replace = false;
  refused("/a] needed a new name, got a page; fix: --force replaces it");
  output.replace = true;

  fs::create_hard_link(file, scratch.path / "hard");
  fs::create_symlink("a", scratch.path / "soft");
  fs::create_symlink("none", scratch.path / "dangling");
  for (const char* name : {"a", "hard", "soft", "./a"}) {
    output.taken = {"", scratch.path / "none", scratch.path / name};
    refused("which this command reads or writes, too");
  }
  output.path = scratch.path / "new";
  output.taken = {scratch.path / "." / "new"};  // two outputs of one name, neither of them there
  refused("which this command reads or writes, too");
  output.taken.clear();
  for (const char* name : {"soft", "dangling"}) {
    output.path = scratch.path / name;
    refused("got a symbolic link");
  }
  output.path = scratch.path;
  refused("[--out " + scratch.path.string() + "] needed a new name or a page, got a folder");
  output = {.path = file, .kind = {}};
  refused("/a] needed a new name, got a regular file");
}

TEST_CASE("a write that fails half-way keeps the old file") {
  const ScratchDirectory scratch;
  const fs::path target = scratch.path / "checkpoint";
  write_file_atomically(target, "old");
  std::string text;
  {
    const FileSizeLimit limit(300'000);
    try {
      write_file_atomically(target, std::string(1'000'000, 'n'));
    } catch (const DataError& error) {
      text = error.what();
    }
  }
  CHECK_MESSAGE(text.find(target.string()) != std::string::npos, text);
  CHECK_MESSAGE(text.find("File too large") != std::string::npos, text);
  CHECK_MESSAGE(text.find("fix: raise the file size limit") != std::string::npos, text);
  CHECK(read_text(target) == "old");
  CHECK(entries(scratch.path) == 1);
}

TEST_CASE("a target that cannot be written is refused") {
  const ScratchDirectory scratch;
  write_file_atomically(scratch.path / "plain", "x");
  fs::create_directory(scratch.path / "folder");
  CHECK_THROWS_WITH_AS(write_file_atomically(scratch.path / "absent" / "a", "x"),
                       doctest::Contains("fix: create the directory first"), DataError);
  CHECK_THROWS_WITH_AS(write_file_atomically(scratch.path / "plain" / "a", "x"),
                       doctest::Contains("not a directory"), DataError);
  CHECK_THROWS_WITH_AS(write_file_atomically(scratch.path / "folder", "x"), doctest::Contains("got a folder"),
                       DataError);
  CHECK(entries(scratch.path) == 2);
}
