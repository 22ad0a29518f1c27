// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/kernels/gemm_tuning.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace meshgrad::test {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "meshgrad-gemm-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
};

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void write(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }

TEST_CASE("gemm choices outlive the process, and are read by the next") {
  const Folder folder;
  const fs::path file = folder.path / "cache" / "gemm.txt";
  GemmChoices first(file, "H200, cuBLASLt 13");
  CHECK(first.problem().empty());
  CHECK(first.find("128x128x5") == nullptr);
  first.add("128x128x5", "1f 2 0");
  first.add("64x3x7", "aa");
  GemmChoices second(file, "H200, cuBLASLt 13");
  CHECK(second.problem().empty());
  REQUIRE(second.find("128x128x5") != nullptr);
  CHECK(*second.find("128x128x5") == "1f 2 0");
  CHECK(*second.find("64x3x7") == "aa");
  CHECK(std::distance(fs::directory_iterator(file.parent_path()), fs::directory_iterator()) == 1);
}

TEST_CASE("gemm choices of two processes are merged in the file") {
  const Folder folder;
  const fs::path file = folder.path / "gemm.txt";
  GemmChoices a(file, "machine"), b(file, "machine");
  a.add("one", "1");
  b.add("two", "2");
  GemmChoices both(file, "machine");
  CHECK(both.find("one") != nullptr);
  CHECK(both.find("two") != nullptr);
}

TEST_CASE("gemm choices that are damaged or foreign are ignored") {
  const Folder folder;
  const fs::path file = folder.path / "gemm.txt";
  GemmChoices(file, "machine").add("product", "ab cd");
  const std::string whole = text_of(file);
  for (size_t length = 1; length < whole.size(); ++length) {
    CAPTURE(length);
    write(file, whole.substr(0, length));
    const GemmChoices cut(file, "machine");
    CHECK(cut.find("product") == nullptr);
    // What ends with the first line is a file without choices.
    CHECK(cut.problem().empty() == (length == whole.find('\n') || length == whole.find('\n') + 1));
  }
  write(file, whole);
  const GemmChoices other(file, "another machine");
  CHECK(other.find("product") == nullptr);
  CHECK(other.problem().find("another machine") != std::string::npos);
  write(file, std::string("\0\x01\xff", 3));
  CHECK_FALSE(GemmChoices(file, "machine").problem().empty());
}

TEST_CASE("gemm choices without a file are kept in memory") {
  GemmChoices nowhere;
  nowhere.add("product", "1");
  CHECK(*nowhere.find("product") == "1");
  GemmChoices refused("/proc/meshgrad/gemm.txt", "machine");
  refused.add("product", "2");
  CHECK(*refused.find("product") == "2");
}

TEST_CASE("the file of gemm choices lies in the user's cache") {
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string kept = before != nullptr ? before : "";
  setenv("XDG_CACHE_HOME", "/somewhere", 1);
  CHECK(gemm_choices_file("NVIDIA H200/2") == "/somewhere/meshgrad/gemm-NVIDIA-H200-2.txt");
  if (before != nullptr) {
    setenv("XDG_CACHE_HOME", kept.c_str(), 1);
  } else {
    unsetenv("XDG_CACHE_HOME");
  }
}

}  // namespace
}  // namespace meshgrad::test
