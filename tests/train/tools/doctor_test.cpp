// SPDX-License-Identifier: Apache-2.0
// `meshgrad doctor`: the machine, and a run's health, from runs that are well and from files that are not.
#include <doctest/doctest.h>
#include <meshgrad/train/tools/extras/health.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "support.h"
#include "train/fault_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using Verdict = HealthCheck::Verdict;

/// A run's folder with made-up metrics: 100 lines, of which `change` may spoil each.
struct MadeUpRun {
  test::ScratchDirectory scratch;
  Config config;
  std::vector<RunEvent> events{{.kind = RunEventKind::begins, .text = "reworded", .fields = {}}};
  MadeUpRun() { config.train.steps = 100; }

  std::vector<HealthCheck> examine(const std::function<void(int64_t, std::map<std::string, double>&)>& change,
                                   int64_t steps = 100) {
    fs::remove(scratch.path / "metrics.jsonl");
    MetricsLog metrics = MetricsLog::create(scratch.path / "metrics.jsonl");
    for (int64_t step = 1; step <= steps; ++step) {
      std::map<std::string, double> row{{"loss", 1.0 / static_cast<double>(step)},
                                        {"gradient_norm", 2.0},
                                        {"steps_per_second", 10.0},
                                        {"data_wait_seconds", 0.001},
                                        {"skipped_steps", 0.0}};
      if (step % 10 == 0) {
        row["valid_error"] = 2.0 / static_cast<double>(step);
        row["valid_baseline"] = 1.0;
        row["epoch"] = static_cast<double>(step) / 10.0;
        row["memory_peak_bytes"] = 9e8;
        row["memory_reserved_bytes"] = 1e9;
        row["memory_waste"] = 0.1;
      }
      change(step, row);
      MetricsRow line{{"step", step}};
      for (const auto& [key, value] : row) line.emplace_back(key, value);
      metrics.write(line);
    }
    std::ofstream(scratch.path / "config.resolved.toml") << to_toml(config);
    std::ofstream lines(scratch.path / "events.jsonl");
    for (const RunEvent& event : events) lines << event_line(event) << "\n";
    lines.close();
    return examine_run(scratch.path);
  }
};

const HealthCheck& named(const std::vector<HealthCheck>& checks, std::string_view name) {
  const auto found = std::ranges::find(checks, name, &HealthCheck::name);
  REQUIRE(found != checks.end());
  return *found;
}

TEST_CASE("a run that is well passes seven checks") {
  MadeUpRun run;
  const auto checks = run.examine([](int64_t, auto&) {});
  CHECK(checks.size() == 7);
  for (const HealthCheck& check : checks) {
    CAPTURE(check.name);
    CAPTURE(check.found);
    CHECK(check.verdict == Verdict::good);
    CHECK(check.remedy == "");
    CHECK(check.found != "");
  }
}

TEST_CASE("a small model's unused memory is no finding") {
  MadeUpRun run;
  const auto checks = run.examine([](int64_t, auto& row) {
    if (row.contains("memory_reserved_bytes")) row["memory_reserved_bytes"] = 4 << 20;
    if (row.contains("memory_waste")) row["memory_waste"] = 0.66;
  });
  CHECK(named(checks, "memory").verdict == Verdict::good);
}

TEST_CASE("warm-up lines say nothing of a run") {
  MadeUpRun run;
  run.config.normalize.mode = NormalizeMode::online;
  run.config.normalize.warmup_steps = 30;
  const auto checks = run.examine([](int64_t step, auto& row) {
    if (step > 30) return;
    row["loss"] = std::nan("");
    row["gradient_norm"] = 0.0;
    row["steps_per_second"] = 1000.0;
  });
  for (const HealthCheck& check : checks) {
    CAPTURE(check.found);
    CHECK(check.verdict == Verdict::good);
  }
}

TEST_CASE("a run of epochs has ended when it has them all") {
  MadeUpRun run;
  run.config.train.epochs = 10;
  CHECK(named(run.examine([](int64_t, auto&) {}), "end").verdict == Verdict::good);
  CHECK(named(run.examine([](int64_t, auto&) {}, 80), "end").verdict == Verdict::note);
}

TEST_CASE("each problem of a run is found with a remedy") {
  MadeUpRun run;
  struct Case {
    std::string name;
    Verdict verdict;
    std::function<void(int64_t, std::map<std::string, double>&)> change;
    std::string gain;
  };
  const Case cases[] = {
      {"memory", Verdict::note,
       [](int64_t step, auto& row) {
         if (row.contains("memory_peak_bytes")) row["memory_peak_bytes"] = 1e7 * static_cast<double>(step);
       },
       "762.9 MiB"},  // 1e9 - 2e8 bytes
      {"memory", Verdict::note,
       [](int64_t, auto& row) {
         if (row.contains("memory_waste")) row["memory_waste"] = 0.25;
       },
       "238.4 MiB"},  // a quarter of 1e9 bytes
      {"loss", Verdict::bad, [](int64_t, auto& row) { row["loss"] = 0.5; }, "0.5"},
      {"loss", Verdict::bad,
       [](int64_t step, auto& row) {
         if (step > 80) row["loss"] = 3.0;
       },
       "step 80"},
      {"loss", Verdict::bad,
       [](int64_t step, auto& row) {
         if (step == 7) row["loss"] = std::nan("");
       },
       "0.167, which this run had at step 6"},
      {"loss", Verdict::bad,
       [](int64_t step, auto& row) {
         if (step > 1) row["loss"] = 1e20 / static_cast<double>(step);
       },
       "a loss of 1, which this run had at step 1"},
      {"validation", Verdict::bad,
       [](int64_t step, auto& row) {
         if (row.contains("valid_error")) row["valid_error"] = static_cast<double>(step);
       },
       "at most 99 %, by which the training loss fell"},
      {"validation", Verdict::note,
       [](int64_t, auto& row) {
         if (row.contains("valid_error")) row["valid_error"] = 0.9;
       },
       "at most 99 %"},
      {"validation", Verdict::note,
       [](int64_t step, auto& row) {
         if (row.contains("valid_error"))
           row["valid_error"] = 0.1 + std::abs(static_cast<double>(step) - 40.0);
       },
       "60 steps less"},
      {"gradients", Verdict::bad,
       [](int64_t step, auto& row) { row["skipped_steps"] = std::floor(static_cast<double>(step) / 5.0); },
       "25 % more"},  // 20 of 100 are skipped
      {"speed", Verdict::note, [](int64_t, auto& row) { row["data_wait_seconds"] = 0.02; }, "1.25 times"},
      {"speed", Verdict::note,
       [](int64_t step, auto& row) {
         if (step > 60) row["steps_per_second"] = 5.0;
       },
       "2.00 times"},
  };
  for (const Case& one : cases) {
    const auto checks = run.examine(one.change);
    const HealthCheck& check = named(checks, one.name);
    CAPTURE(one.name);
    CAPTURE(check.found);
    CAPTURE(check.gain);
    CHECK(check.verdict == one.verdict);
    CHECK(check.remedy != "");
    CHECK(check.gain != "");
    CHECK(contains(check.gain, one.gain));
    CHECK(std::ranges::count(checks, Verdict::good, &HealthCheck::verdict) == 6);
  }
}

TEST_CASE("doctor names no remedy that the run has") {
  MadeUpRun run;
  const auto diverged = [](int64_t step, auto& row) {
    if (step > 1) row["loss"] = 1e20;
  };
  run.config.train.clip_norm = 0.0;
  CHECK(contains(named(run.examine(diverged), "loss").remedy, "and set train.clip_norm"));
  run.config.train.clip_norm = 2.0;
  CHECK(contains(named(run.examine(diverged), "loss").remedy, "and set train.clip_norm below 2"));
  // 10 MiB more are no finding.
  const auto grows = run.examine([](int64_t step, auto& row) {
    if (row.contains("memory_peak_bytes")) row["memory_peak_bytes"] = 1e5 * static_cast<double>(step);
  });
  CHECK(named(grows, "memory").verdict == Verdict::good);
}

TEST_CASE("a step's samples are held against the gradient noise scale") {
  MadeUpRun run;
  const auto batch = [&](double scale, int64_t samples) {
    run.config.train.batch = 1;
    run.config.train.accumulate = samples;
    return named(run.examine([&](int64_t, auto& row) {
      row["gradient_noise"] = 1.0;
      row["gradient_noise_scale"] = scale;
    }),
                 "batch");
  };
  CHECK(batch(8.0, 8).verdict == Verdict::good);
  const HealthCheck large = batch(10.0, 30);
  CHECK(large.verdict == Verdict::note);
  CHECK(contains(large.remedy, "down to 10 samples"));
  CHECK(contains(large.gain, "2.00 times fewer samples"));  // (1 + 30 / 10) / (1 + 10 / 10)
  CHECK(contains(large.gain, "1.50 times as many steps"));  // (1 + 10 / 10) / (1 + 10 / 30)
  const HealthCheck small = batch(40.0, 4);
  CHECK(small.verdict == Verdict::note);
  CHECK(contains(small.remedy, "towards 40 samples"));
  CHECK(contains(small.gain, "5.50 times fewer steps, for 1.82 times the samples"));  // 11 / 2, 2 / 1.1
  const auto few = run.examine([](int64_t, auto& row) { row["gradient_noise"] = 1.0; }, 9);
  CHECK(named(few, "batch").verdict == Verdict::unknown);
}

TEST_CASE("how a run ended is told by the kinds of its events") {
  MadeUpRun run;
  using Kind = RunEventKind;
  const RunEvent begins{.kind = Kind::begins, .text = "reworded", .fields = {}};
  const auto end = [&](std::vector<RunEvent> events) {
    events.insert(events.begin(), begins);
    run.events = std::move(events);
    return named(run.examine([](int64_t, auto&) {}, 60), "end");
  };
  const auto event = [](Kind kind, std::string text = "reworded", RunEvent::Fields fields = {}) {
    return RunEvent{.kind = kind, .text = std::move(text), .fields = std::move(fields)};
  };
  CHECK(contains(end({event(Kind::stopped)}).found, "stopped with a checkpoint"));
  CHECK(end({}).verdict == Verdict::note);
  CHECK(contains(end({}).found, "killed"));
  const HealthCheck early = end({event(Kind::patience)});
  CHECK(early.verdict == Verdict::good);
  CHECK(contains(early.found, "60 steps of 100; train.patience ended it"));
  const RunEvent without_room =
      event(Kind::error, "error: needed 3 GiB\nby tag", {{"error", std::string("out_of_memory")}});
  const HealthCheck memory = end({without_room});
  CHECK(memory.verdict == Verdict::bad);
  CHECK(contains(memory.remedy, "meshgrad plan"));
  CHECK(contains(memory.remedy, "from the beginning"));  // there is no checkpoint
  CHECK(contains(memory.gain, "no checkpoint"));
  CHECK(memory.found == "60 steps of 100; error: needed 3 GiB");
  const HealthCheck disk = end({event(Kind::error, "error: disk", {{"error", "data"}})});
  CHECK(disk.verdict == Verdict::bad);
  CHECK_FALSE(contains(disk.remedy, "meshgrad plan"));
  for (const Kind later : {Kind::resumed, Kind::begins, Kind::stopped})
    CHECK(end({without_room, event(later)}).verdict == Verdict::note);
  CHECK(end({event(Kind::stopped), without_room}).verdict == Verdict::bad);
  // What merely speaks of an error is none.
  CHECK(end({event(Kind::log, "error: --resume continues, ends early at step 3")}).verdict == Verdict::note);
  fs::remove(run.scratch.path / "events.jsonl");
  CHECK(contains(named(examine_run(run.scratch.path), "end").found, "it has no events.jsonl"));
  for (const char* reason : {"cpu", "unrolled steps"}) {
    run.events = {event(Kind::not_captured, "reworded", {{"reason", std::string(reason)}})};
    const HealthCheck once = named(run.examine([](int64_t, auto&) {}), "work done once");
    CHECK(once.verdict == Verdict::note);
    CHECK(contains(once.gain, "none on a CPU") == (std::string(reason) == "cpu"));
  }
}

TEST_CASE("doctor says which steps a resume keeps") {
  test::FaultFixture f;
  f.config.train.steps = 20;
  f.config.train.checkpoint_every = 5;
  int64_t asked = 0;  // after each batch
  const TrainResult result = test::train_here(f.config, false, [&] { return ++asked > 50; });
  const HealthCheck end = named(examine_run(f.config.run.dir), "end");
  CHECK(end.verdict == Verdict::note);
  CHECK(contains(end.remedy, "--resume"));
  const std::string step = std::to_string(result.state.step);
  CHECK_MESSAGE(contains(end.gain, step + " of the " + step + " steps are kept"), end.gain);
  fs::remove(fs::path(f.config.run.dir) / "checkpoints" / "last.safetensors");
  CHECK(contains(named(examine_run(f.config.run.dir), "end").remedy, "--resume --checkpoint best"));
}

TEST_CASE("doctor examines a run and the machine, as text and JSON") {
  test::FaultFixture f;
  test::train_here(f.config);
  const test::Outcome text = test::run_meshgrad({"doctor", f.config.run.dir});
  CHECK_MESSAGE(text.code == 1, text.out);  // four steps teach nothing
  CHECK_MESSAGE(contains(text.out, "gradients"), text.out);
  const auto json = nlohmann::json::parse(test::run_meshgrad({"doctor", f.config.run.dir, "--json"}).out);
  CHECK(json.at("checks").size() == 9);  // its steps have several batches
  CHECK(json.at("checks")[0].at("verdict") == "good");

  const auto machine = nlohmann::json::parse(
      test::run_meshgrad({"doctor", "--json", "--folder", f.scratch.path.string()}).out);
  std::vector<std::string> names;
  for (const auto& check : machine.at("checks")) names.push_back(check.at("name"));
  CHECK(names == std::vector<std::string>{"cpu", "threads", "memory", "gpu", "disk", "mpi"});
  CHECK(contains(machine.at("checks")[4].at("found").get<std::string>(), "MB/s"));
  const test::Outcome none = test::run_meshgrad({"doctor", "--folder", (f.scratch.path / "no").string()});
  CHECK(none.code == 1);
  CHECK(contains(none.out, "cannot be written"));
  test::check_one_error(test::run_meshgrad({"doctor", (f.scratch.path / "no").string()}), 2,
                        {"metrics.jsonl"});
}

TEST_CASE("an error that ends a run is in its log and events") {
  test::FaultFixture f;
  f.config.memory.memory_limit = 300000;
  const std::string file = test::write_config(f.scratch.path, f.config);
  CHECK(test::run_meshgrad({"train", file}).code == 1);
  const fs::path log = fs::path(f.config.run.dir) / "log.txt";
  REQUIRE(fs::exists(log));
  CHECK(contains(test::read_text(log), "error: "));
  CHECK(contains(test::read_text(log), "memory"));
  const std::vector<RunEvent> events = read_events(fs::path(f.config.run.dir) / "events.jsonl");
  REQUIRE_FALSE(events.empty());
  CHECK(events.back().kind == RunEventKind::error);
  CHECK(events.back().field("error") == "out_of_memory");
  std::string texts;
  for (const RunEvent& event : events) texts += event.text + "\n";
  CHECK(test::read_text(log) == texts);
  // A folder of another run gets no line.
  f.config.memory.memory_limit = 0;
  fs::remove_all(f.config.run.dir);
  test::train_here(f.config);
  const std::string second = test::write_config(f.scratch.path, f.config);
  CHECK(test::run_meshgrad({"train", second}).code == 2);
  CHECK(!(fs::exists(log) && contains(test::read_text(log), "error: ")));
}

TEST_CASE("a run that resumes cuts off the incomplete last event") {
  test::FaultFixture f;
  const std::string file = test::write_config(f.scratch.path, f.config);
  CHECK(test::run_meshgrad({"train", file}).code == 0);
  const fs::path path = fs::path(f.config.run.dir) / "events.jsonl";
  const size_t before = read_events(path).size();
  std::ofstream(path, std::ios::app) << R"({"step": 1, "kind": "st)";
  const std::string steps = "train.steps=" + std::to_string(f.config.train.steps + 1);
  CHECK(test::run_meshgrad({"train", file, "--resume", "--set", steps}).code == 0);
  const std::vector<RunEvent> events = read_events(path);
  REQUIRE(events.size() > before);
  CHECK(events[before].kind == RunEventKind::resumed);
  CHECK(test::read_text(path).find(R"("kind": "st{)") == std::string::npos);
}

TEST_CASE("a command without its folder writes no log there") {
  test::FaultFixture f;
  CHECK(test::run_meshgrad({"train", test::write_config(f.scratch.path, f.config)}).code == 0);
  const fs::path log = fs::path(f.config.run.dir) / "log.txt";
  const std::string before = test::read_text(log);
  REQUIRE(before != "");
  f.config.data.path = (f.scratch.path / "gone.mgd").string();
  const std::string file = test::write_config(f.scratch.path, f.config);
  CHECK(test::run_meshgrad({"train", file, "--resume"}).code != 0);
  CHECK(test::read_text(log) == before);
  CHECK(test::run_meshgrad({"doctor", f.config.run.dir}).out.starts_with("end "));
}

}  // namespace
}  // namespace meshgrad
