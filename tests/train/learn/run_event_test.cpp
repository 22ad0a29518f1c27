// SPDX-License-Identifier: Apache-2.0
// Events of a run as lines of events.jsonl.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/run/run_event.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "paths.h"
#include "support.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

void write_lines(const fs::path& path, const std::vector<std::string>& lines) {
  std::ofstream file(path);
  for (const std::string& line : lines) file << line << "\n";
}

TEST_CASE("an event is one line of JSON, and reads back") {
  const test::ScratchDirectory scratch;
  const RunEvent event{.kind = RunEventKind::validation,
                       .text = "a \"text\"\nof two lines",
                       .fields = {{"valid_loss", 0.1}, {"best", true}, {"epoch", int64_t{3}}, {"by", "nccl"}},
                       .step = 12};
  const std::string line = event_line(event);
  CHECK(line ==
        R"({"step": 12, "kind": "validation", "fields": {"valid_loss": 0.1, "best": true, "epoch": 3, )"
        R"("by": "nccl"}, "text": "a \"text\"\nof two lines"})");
  write_lines(scratch.path / "events.jsonl", {line, line});
  const std::vector<RunEvent> events = read_events(scratch.path / "events.jsonl");
  REQUIRE(events.size() == 2);
  CHECK(events[1].kind == event.kind);
  CHECK(events[1].text == event.text);
  CHECK(events[1].step == 12);
  CHECK(events[1].fields.size() == 4);
  CHECK(events[1].field("by") == "nccl");
  CHECK(events[1].field("best") == "");
  CHECK(events[1].field("none") == "");
}

TEST_CASE("lines that are no events are left out") {
  const test::ScratchDirectory scratch;
  const std::string good = event_line({.kind = RunEventKind::stopped, .text = "", .fields = {}});
  write_lines(scratch.path / "events.jsonl",
              {good.substr(0, good.size() / 2), "", "[1]", "{}",
               R"({"step": 1, "kind": 3, "fields": {}, "text": ""})",
               R"({"step": 1, "kind": "of a later version", "fields": {}, "text": ""})", good,
               R"({"step": 1.5, "kind": "stopped", "fields": {}, "text": ""})",
               R"({"step": 1, "kind": "stopped", "fields": {"a": null, "b": [1]}, "text": "x"})"});
  const std::vector<RunEvent> events = read_events(scratch.path / "events.jsonl");
  REQUIRE(events.size() == 2);
  CHECK(events[1].fields.empty());
  CHECK_THROWS_AS(read_events(scratch.path / "none"), DataError);
}

TEST_CASE("each kind of event has its own name and a line in the docs") {
  std::set<std::string_view> names;
  const std::string page = test::read_text(test::source_file("docs/run-directory.md"));
  for (int kind = 0; kind <= static_cast<int>(RunEventKind::bytes_sent); ++kind) {
    const std::string_view name = name_of(static_cast<RunEventKind>(kind));
    CHECK(names.insert(name).second);
    CHECK_MESSAGE(page.find("| `" + std::string(name) + "` |") != std::string::npos, name);
  }
}

TEST_CASE("a run's events have the steps at which they happened") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 4;
  config.train.validate_every = 2;
  TrainOptions options;
  std::vector<std::pair<std::string, int64_t>> told;
  options.observer.event = [&](const RunEvent& event) { told.emplace_back(name_of(event.kind), event.step); };
  Runtime runtime({.device = {}, .threads = 1});
  train(runtime, config, options);
  const auto times = [&](const char* kind, int64_t step) {
    return std::ranges::count(told, std::pair<std::string, int64_t>(kind, step));
  };
  CHECK(times("begins", 0) == 1);
  CHECK(times("validation", 2) == 1);
  CHECK(times("validation", 4) == 1);
  CHECK(times("memory", 4) == 1);
}

}  // namespace
}  // namespace meshgrad
