// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/learn/run/step_trace.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace meshgrad {
namespace {

using Json = nlohmann::ordered_json;
using Kind = MemoryEvent::Kind;

constexpr int64_t kHistory = 1 << 18;  // events: a step of 15 blocks has some thousands
constexpr int kTracks = 64;            // of a rank, at most

/// Writes the events of one rank. Viewers want numbers above 0, and no thread in two processes.
class TraceWriter {
 public:
  TraceWriter(int rank, int64_t zero) : rank_(rank), zero_(zero) {
    name("process_name", 0, fmt::format("rank {}", rank));
  }
  void name(const char* what, int track, const std::string& name) {
    events_.push_back({{"name", what},
                       {"ph", "M"},
                       {"pid", rank_ + 1},
                       {"tid", thread(track)},
                       {"args", {{"name", name}}}});
  }
  void span(std::string_view name, std::string_view kind, int track, int64_t begin, int64_t end) {
    events_.push_back({{"name", name},
                       {"cat", kind},
                       {"ph", "X"},
                       {"ts", microseconds(begin - zero_)},
                       {"dur", microseconds(end - begin)},
                       {"pid", rank_ + 1},
                       {"tid", thread(track)}});
  }
  void counter(const char* name, int64_t at, Json values) {
    events_.push_back({{"name", name},
                       {"ph", "C"},
                       {"ts", microseconds(at - zero_)},
                       {"pid", rank_ + 1},
                       {"args", std::move(values)}});
  }
  std::string list() const {
    const std::string text = events_.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.substr(1, text.size() - 2);
  }

 private:
  static double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }
  int thread(int track) const { return rank_ * kTracks + track + 1; }

  int rank_;
  int64_t zero_;
  Json events_ = Json::array();
};

/// Launches on a track of their own, and above them what the host was doing when it launched them. The first
/// launch finds the stream idle, so it began when it was launched.
void write_launches(TraceWriter& writer, const StepTraceEvents& events, int track) {
  if (events.launches.empty()) return;
  const int64_t first = events.launches.front().launched;
  const auto at = [&](double ms) { return first + static_cast<int64_t>(1e6 * ms); };
  writer.name("thread_name", track, "GPU spans");
  writer.name("thread_name", track + 1, "GPU launches");
  for (const LaunchTrace::Launch& launch : events.launches)
    writer.span(launch.name, "launch", track + 1, at(launch.begin_ms), at(launch.end_ms));
  for (const SpanEvent& span : events.spans) {
    if (span.track != 0) continue;
    int64_t begin = 0, end = 0;
    for (const LaunchTrace::Launch& launch : events.launches) {
      if (launch.launched < span.begin || launch.launched > span.end) continue;
      if (begin == 0) begin = at(launch.begin_ms);
      end = at(launch.end_ms);
    }
    if (begin != 0) writer.span(span.name, span.kind, track, begin, end);
  }
}

/// Bytes in use by tag after each event; what was in use before the first follows from the last.
void write_memory(TraceWriter& writer, const StepTraceEvents& events) {
  std::array<int64_t, kTagCount> bytes = events.in_use;
  const auto change = [](const MemoryEvent& event) {
    return event.kind == Kind::alloc ? event.bytes : event.kind == Kind::free_requested ? -event.bytes : 0;
  };
  std::array<bool, kTagCount> used{};
  for (size_t tag = 0; tag < used.size(); ++tag) used[tag] = bytes[tag] > 0;
  for (const MemoryEvent& event : events.allocations) {
    bytes[static_cast<size_t>(event.tag)] -= change(event);
    used[static_cast<size_t>(event.tag)] |= change(event) != 0;
  }
  for (const MemoryEvent& event : events.allocations) {
    if (change(event) == 0) continue;
    bytes[static_cast<size_t>(event.tag)] += change(event);
    Json values;
    for (size_t tag = 0; tag < used.size(); ++tag)
      if (used[tag]) values[std::string(name_of(static_cast<Tag>(tag)))] = bytes[tag];
    writer.counter("bytes in use", event.nanoseconds, std::move(values));
  }
}

}  // namespace

std::string trace_json(const StepTraceEvents& events, int64_t zero) {
  TraceWriter writer(events.rank, zero);
  const auto tracks = static_cast<int>(events.tracks.size());
  for (int track = 0; track < tracks; ++track)
    writer.name("thread_name", track, events.tracks[static_cast<size_t>(track)]);
  for (const SpanEvent& span : events.spans)
    writer.span(span.name, span.kind, span.track, span.begin, span.end);
  write_launches(writer, events, tracks);
  write_memory(writer, events);
  return writer.list();
}

std::string trace_file(std::span<const std::string> lists) {
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", fmt::join(lists, ",\n"));
}

StepTrace::StepTrace(Runtime& runtime, int64_t step) : runtime_(runtime), step_(step) {
  if (runtime.stream().on_gpu()) {
    runtime.stream().synchronize();
    launches_.emplace(runtime.stream());
  }
  if (runtime.allocator().options().history == 0) runtime.allocator().restart_history(kHistory);
  begin_ = SpanRecorder::now();
  recording_.emplace(recorder_, "training");
  span_.emplace(fmt::format("step {}", step));
}

StepTrace::~StepTrace() {
  if (runtime_.allocator().options().history == 0) runtime_.allocator().restart_history(0);
}

std::string StepTrace::finish(Ranks& ranks) {
  StepTraceEvents events;
  if (launches_) events.launches = launches_->take();
  span_.reset();
  recording_.reset();
  launches_.reset();
  events.rank = ranks.rank();
  events.tracks = recorder_->tracks();
  events.spans = recorder_->events();
  const MemoryStats stats = runtime_.allocator().stats();
  for (size_t tag = 0; tag < kTagCount; ++tag) events.in_use[tag] = stats.by_tag[tag].requested.current;
  events.allocations = runtime_.allocator().history().events;
  std::erase_if(events.allocations, [this](const MemoryEvent& event) { return event.nanoseconds < begin_; });

  constexpr std::string_view kOperation = "trace of a step";
  const int64_t zero = all_gather(ranks, begin_, kOperation).front();
  std::vector<std::string> lists(static_cast<size_t>(ranks.first() ? ranks.size() : 1));
  lists.front() = trace_json(events, zero);
  const auto sizes = all_gather(ranks, static_cast<int64_t>(lists.front().size()), kOperation);
  if (!ranks.first()) {
    const Send mine{0, std::as_bytes(std::span(lists.front()))};
    ranks.exchange({&mine, 1}, {}, kOperation);
    return {};
  }
  std::vector<Receive> receives;
  for (int rank = 1; rank < ranks.size(); ++rank) {
    std::string& list = lists[static_cast<size_t>(rank)];
    list.resize(static_cast<size_t>(sizes[static_cast<size_t>(rank)]));
    receives.push_back({rank, std::as_writable_bytes(std::span(list))});
  }
  ranks.exchange({}, receives, kOperation);
  return trace_file(lists);
}

}  // namespace meshgrad
