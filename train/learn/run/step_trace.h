// SPDX-License-Identifier: Apache-2.0
// StepTrace: what one step of a run did and when, as a file that ui.perfetto.dev and chrome://tracing open:
// JSON in the Trace Event Format
// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). Ranks are its processes.
// On a GPU the host's spans are of queueing; the launches have a track of their own.
#pragma once
#include <meshgrad/engine/launch_trace.h>
#include <meshgrad/engine/memory/stats.h>
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/engine/span.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// What a trace holds of one process. Times are nanoseconds since the Unix epoch.
struct StepTraceEvents {
  int rank = 0;
  std::vector<std::string> tracks;
  std::vector<SpanEvent> spans;
  std::vector<LaunchTrace::Launch> launches;  ///< of the device, in order
  /// Bytes in use of each tag after the last of `allocations`.
  std::array<int64_t, kTagCount> in_use{};
  std::vector<MemoryEvent> allocations;  ///< of the allocator, oldest first
};

/// The events as a list of the format, without its brackets. Times count from `zero`.
std::string trace_json(const StepTraceEvents& events, int64_t zero);
/// The lists of all ranks as a file.
std::string trace_file(std::span<const std::string> lists);

class StepTrace {
 public:
  /// Records from here on: spans of the calling thread, launches, and allocations.
  StepTrace(Runtime& runtime, int64_t step);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  int64_t step() const { return step_; }
  /// For other threads: RecordSpans.
  const std::shared_ptr<SpanRecorder>& recorder() const { return recorder_; }
  /// Ends the recording; rank 0 gets the file with the events of all ranks, others an empty text. Collective.
  std::string finish(Ranks& ranks);

 private:
  Runtime& runtime_;
  int64_t step_;
  int64_t begin_ = 0;
  std::shared_ptr<SpanRecorder> recorder_ = std::make_shared<SpanRecorder>();
  std::optional<RecordSpans> recording_;
  std::optional<LaunchTrace> launches_;  // on a GPU
  std::optional<Span> span_;             // of the whole step
};

}  // namespace meshgrad
