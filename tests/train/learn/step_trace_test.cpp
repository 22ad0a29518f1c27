// SPDX-License-Identifier: Apache-2.0
// The trace of a step: the file's form, that spans nest and what they contain, on ranks and on a GPU.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/run/step_trace.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "simulated_ranks.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::ScratchDirectory;

/// A span of a trace, in nanoseconds.
struct TracedSpan {
  std::string name, kind;
  int process = 0, thread = 0;
  int64_t begin = 0, end = 0;
  std::string parents;  ///< "step 2/backward/"
  int64_t covered = 0;  ///< by its children
};

int64_t nanoseconds(const Json& microseconds) { return std::llround(1e3 * microseconds.get<double>()); }

/// The spans of a trace, each thread's in the order of their beginnings. Fails for one that overlaps its
/// parent's end.
std::vector<TracedSpan> spans_of(const Json& trace) {
  std::vector<TracedSpan> spans;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const int64_t begin = nanoseconds(event.at("ts"));
    spans.push_back({event.at("name"), event.at("cat"), event.at("pid"), event.at("tid"), begin,
                     begin + nanoseconds(event.at("dur")), "", 0});
  }
  std::stable_sort(spans.begin(), spans.end(), [](const TracedSpan& a, const TracedSpan& b) {
    return std::tuple(a.thread, a.begin, -a.end) < std::tuple(b.thread, b.begin, -b.end);
  });
  std::vector<TracedSpan*> open;
  for (TracedSpan& span : spans) {
    CHECK(span.begin <= span.end);
    while (!open.empty() && (open.back()->end <= span.begin || open.back()->thread != span.thread))
      open.pop_back();
    for (const TracedSpan* parent : open) span.parents += parent->name + "/";
    if (!open.empty()) {
      CHECK_MESSAGE(span.end <= open.back()->end, span.parents << span.name);
      open.back()->covered += span.end - span.begin;
    }
    open.push_back(&span);
  }
  for (const TracedSpan& span : spans) CHECK(span.covered <= span.end - span.begin);
  return spans;
}

/// Names of the spans whose parents are these.
std::vector<std::string> children(const std::vector<TracedSpan>& spans, const std::string& parents) {
  std::vector<std::string> names;
  for (const TracedSpan& span : spans)
    if (span.parents == parents) names.push_back(span.name);
  return names;
}

Json traced(Config config, int64_t step, Device device = {}, Ranks* ranks = nullptr) {
  Runtime runtime({.device = device, .threads = 1, .allocator = config.memory});
  TrainOptions options;
  options.trace_step = step;
  options.ranks = ranks;
  train(runtime, config, options);
  if (ranks != nullptr && !ranks->first()) return {};
  return Json::parse(test::read_text(fs::path(config.run.dir) / ("trace-" + std::to_string(step) + ".json")));
}

Config traced_config(const ScratchDirectory& scratch) {
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.model.width = 8;
  config.train.steps = 3;
  config.train.accumulate = 1;
  config.train.validate_every = 2;
  config.train.validate_samples = 1;
  config.train.checkpoint_every = 0;
  config.train.log_every = 1;
  return config;
}

TEST_CASE("a trace has each phase, stage and op of the step") {
  const ScratchDirectory scratch;
  Config config = traced_config(scratch);
  const Json trace = traced(config, 2);
  const std::vector<TracedSpan> spans = spans_of(trace);
  const std::vector<std::string> stages{"encoder", "processor.0", "processor.1", "decoder", "masked_loss"};
  CHECK(children(spans, "") == std::vector<std::string>{"step 2"});
  CHECK(children(spans, "step 2/") == std::vector<std::string>{"load batch", "upload", "forward", "backward",
                                                               "optimizer", "log", "validation"});
  CHECK(children(spans, "step 2/forward/") == stages);
  CHECK(children(spans, "step 2/backward/") == std::vector<std::string>(stages.rbegin(), stages.rend()));
  CHECK(children(spans, "step 2/forward/processor.1/") == std::vector<std::string>{"edge_update", "mlp"});
  std::string validation;
  for (const std::string& name : children(spans, "step 2/validation/")) validation += name + " ";
  CHECK(validation ==
        "encoder processor.0 processor.1 decoder prediction masked_loss checkpoint ");  // the best so far

  int64_t most = 0;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "C") continue;
    int64_t sum = 0;
    for (const auto& [tag, bytes] : event.at("args").items()) {
      CHECK(bytes.get<int64_t>() >= 0);
      sum += bytes.get<int64_t>();
    }
    most = std::max(most, sum);
  }
  CHECK(most > 0);

  SUBCASE("and the run has the bits of one without a trace, which says so for a step that it lacks") {
    const auto tensors = test::tensors_of(config);
    config.run.dir = (scratch.path / "plain").string();
    CHECK_THROWS_WITH_AS(traced(config, 4), doctest::Contains("[--trace]"), ConfigError);
    test::train_here(config);
    CHECK(test::tensors_of(config) == tensors);
  }
}

TEST_CASE("a trace marks recomputed segments") {
  const ScratchDirectory scratch;
  Config config = traced_config(scratch);
  config.train.validate_every = 0;
  config.model.blocks = 3;
  config.recompute.mode = RecomputeMode::every;
  config.recompute.every = 2;
  const std::vector<TracedSpan> spans = spans_of(traced(config, 3));
  const std::string segment = "step 3/backward/processor.0..processor.1/";
  CHECK(children(spans, segment) == std::vector<std::string>{"recompute", "processor.1", "processor.0"});
  CHECK(children(spans, segment + "recompute/") == std::vector<std::string>{"processor.0", "processor.1"});
  const auto marked = std::count_if(spans.begin(), spans.end(), [](const TracedSpan& span) {
    return span.kind == "segment" || span.kind == "recompute";
  });
  CHECK(marked == 2);
}

TEST_CASE("ranks are the processes of one trace") {
  const ScratchDirectory scratch;
  Config config = traced_config(scratch);
  Json trace;
  test::on_ranks(3, [&](Ranks& ranks) {
    const Json mine = traced(config, 2, {}, &ranks);
    if (ranks.first()) trace = mine;
  });
  const std::vector<TracedSpan> spans = spans_of(trace);
  for (int process = 1; process <= 3; ++process) {
    CHECK(std::count_if(spans.begin(), spans.end(), [&](const TracedSpan& span) {
            return span.process == process && span.name == "step 2";
          }) == 1);
    CHECK(std::any_of(spans.begin(), spans.end(), [&](const TracedSpan& span) {
      return span.process == process && span.kind == "ranks" && span.parents == "step 2/sum of gradients/";
    }));
  }
}

TEST_CASE("a GPU's trace has launches below their spans" * doctest::skip(cuda_devices().empty())) {
  bool prefetched = false;  // on a busy machine the thread may do nothing within a short step
  for (int attempt = 0; attempt < 20 && !prefetched; ++attempt) {
    const ScratchDirectory scratch;
    Config config = traced_config(scratch);
    config.run.device = "cuda";
    config.train.steps = 6;
    config.train.validate_every = 0;
    const Json trace = traced(config, 3, {DeviceKind::cuda, 0});
    std::map<std::string, int> threads;
    for (const Json& event : trace.at("traceEvents"))
      if (event.at("ph") == "M" && event.at("name") == "thread_name")
        threads[event.at("args").at("name")] = event.at("tid");
    REQUIRE(threads.contains("GPU launches"));
    const std::vector<TracedSpan> spans = spans_of(trace);
    const auto on = [&](const std::string& thread, const std::string& name) {
      return std::count_if(spans.begin(), spans.end(), [&](const TracedSpan& span) {
        return span.thread == threads.at(thread) && (name.empty() || span.name == name);
      });
    };
    prefetched = threads.contains("prefetch") && on("prefetch", "write batch") > 0;
    CHECK(on("training", "write batch") == 0);
    CHECK(on("GPU launches", "") > 20);
    CHECK(on("GPU spans", "processor.1") == 2);  // forward and backward
  }
  CHECK(prefetched);
}

TEST_CASE("captured steps are traced, too, without their launches" * doctest::skip(cuda_devices().empty())) {
  for (const int64_t step : {1, 2, 3}) {  // queued, captured, replayed
    const ScratchDirectory scratch;
    Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 6, 14, true));
    config.run.device = "cuda";
    config.graphs = GraphsMode::capture;
    config.model.width = 8;
    config.train.steps = 3;
    config.train.accumulate = 1;
    config.train.validate_every = 0;
    const std::vector<TracedSpan> spans = spans_of(traced(config, step, {DeviceKind::cuda, 0}));
    const auto found = children(spans, "step " + std::to_string(step) + "/");
    CHECK(std::ranges::count(found, "captured step") == 1);
  }
}

/// Of one host span with two launches.
StepTraceEvents small_events() {
  StepTraceEvents events;
  events.rank = 1;
  events.tracks = {"training"};
  events.spans = {{"forward", "phase", 0, 2'000, 5'500}};
  events.launches = {{"a", 0.001, 0.0, 0.001, 3'000}, {"b", 0.002, 0.004, 0.006, 4'000}};
  events.in_use[static_cast<size_t>(Tag::data)] = 70;
  events.allocations = {{MemoryEvent::Kind::alloc, Tag::data, 0, 0, 0, 100, 2'500},
                        {MemoryEvent::Kind::segment_map, Tag::host, 0, 0, 0, 4096, 2'600},
                        {MemoryEvent::Kind::free_requested, Tag::data, 0, 0, 0, 40, 3'500}};
  return events;
}

TEST_CASE("a trace counts microseconds since the beginning") {
  const std::string list = trace_json(small_events(), 1'000);
  const Json trace = Json::parse(trace_file(std::span(&list, 1)));
  std::string lines;
  for (const Json& event : trace.at("traceEvents")) lines += event.dump() + "\n";
  CHECK(lines ==
        R"({"args":{"name":"rank 1"},"name":"process_name","ph":"M","pid":2,"tid":65}
{"args":{"name":"training"},"name":"thread_name","ph":"M","pid":2,"tid":65}
{"cat":"phase","dur":3.5,"name":"forward","ph":"X","pid":2,"tid":65,"ts":1.0}
{"args":{"name":"GPU spans"},"name":"thread_name","ph":"M","pid":2,"tid":66}
{"args":{"name":"GPU launches"},"name":"thread_name","ph":"M","pid":2,"tid":67}
{"cat":"launch","dur":1.0,"name":"a","ph":"X","pid":2,"tid":67,"ts":2.0}
{"cat":"launch","dur":2.0,"name":"b","ph":"X","pid":2,"tid":67,"ts":6.0}
{"cat":"phase","dur":6.0,"name":"forward","ph":"X","pid":2,"tid":66,"ts":2.0}
{"args":{"data":110},"name":"bytes in use","ph":"C","pid":2,"ts":1.5}
{"args":{"data":70},"name":"bytes in use","ph":"C","pid":2,"ts":2.5}
)");
}

}  // namespace
}  // namespace meshgrad
