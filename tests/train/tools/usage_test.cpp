// SPDX-License-Identifier: Apache-2.0
// Everything that people read fits a terminal of 80 columns, and a wider one is used.
#include <doctest/doctest.h>
#include <meshgrad/train/data/text.h>

#include <cstdlib>
#include <sstream>

#include "paths.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

struct Columns {
  explicit Columns(const char* number) { setenv("COLUMNS", number, 1); }
  ~Columns() { unsetenv("COLUMNS"); }
  Columns(const Columns&) = delete;
  Columns& operator=(const Columns&) = delete;
};

/// The lines that are wider than `width`; a path that a test's folder makes long is no column's fault.
std::string too_wide(const std::string& text, size_t width) {
  std::istringstream lines(text);
  std::string wide;
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > width && line.find("/tmp/") == line.npos) wide += line + "\n";
  }
  return wide;
}

TEST_CASE("every help text fits 80 columns") {
  const std::vector<std::vector<std::string>> commands = {{},
                                                          {"convert"},
                                                          {"train"},
                                                          {"evaluate"},
                                                          {"rollout"},
                                                          {"predict"},
                                                          {"verify"},
                                                          {"config"},
                                                          {"info"},
                                                          {"memory"},
                                                          {"plan"},
                                                          {"config", "default"},
                                                          {"config", "effective"},
                                                          {"config", "schema"},
                                                          {"config", "docs"},
                                                          {"memory", "replay"}};
  for (std::vector<std::string> command : commands) {
    command.emplace_back("--help");
    const auto lines = [&](const char* columns) {
      const Columns set(columns);
      return test::run_meshgrad(command).out;
    };
    const std::string narrow = lines("80");
    CAPTURE(command.front());
    CHECK(narrow.size() > 100);
    CHECK(too_wide(narrow, 80) == "");
    CHECK(too_wide(lines("60"), 60) == "");
  }
  const Columns set("200");
  CHECK(too_wide(test::run_meshgrad({"evaluate", "--help"}).out, 80) != "");
  // What a terminal's width is when there is none.
  unsetenv("COLUMNS");
  CHECK(too_wide(test::run_meshgrad({"evaluate", "--help"}).out, 80) == "");
}

TEST_CASE("tables and generated comments fit 80 columns") {
  const Columns set("80");
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 2;
  const std::string file = test::write_config(scratch.path, config);
  const std::string trace = test::data_file("traces/meshgrad_sample.txt.gz");
  const std::vector<std::vector<std::string>> commands = {
      {"train", file, "--quiet"},
      {"evaluate", config.run.dir, "--quiet"},
      {"rollout", config.run.dir, "--quiet"},
      {"plan", file, "--device-memory", "8GiB"},
      {"plan", file, "--mode", "measured"},
      {"memory", "replay", trace, "--quiet"},
      {"memory", "replay", trace, "--capacity", "1GiB", "--quiet"},
      {"info"},
      {"info", config.data.path},
      {"config", "default"},
      {"verify", test::data_file("oracles/mgn_small.safetensors")}};
  for (const auto& command : commands) {
    const test::Outcome outcome = test::run_meshgrad(command);
    CAPTURE(command.front());
    CAPTURE(command[1]);
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    CHECK(too_wide(outcome.out, 80) == "");
  }
}

TEST_CASE("lines that are too wide go on below") {
  CHECK(fitted("short\n", 20) == "short\n");
  CHECK(fitted("  --name   one two three four\nnext", 20) ==
        "  --name   one two\n           three\n           four\nnext");
  CHECK(fitted("  1. one two three four", 14) == "  1. one two\n    three four");
  CHECK(fitted("", 10).empty());
  CHECK(fitted("\n\na\n", 10) == "\n\na\n");
}

}  // namespace
}  // namespace meshgrad
