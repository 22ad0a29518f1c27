// SPDX-License-Identifier: Apache-2.0
// Span: a named stretch of time of the calling thread, such as a step, its backward pass, or a stage of it. A
// SpanRecorder keeps the spans of the threads that record to it. In a build with CUDA a span is an NVTX
// range, too, which Nsight Systems shows above the kernels. Without a recorder and a profiler a span costs
// some nanoseconds.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

struct SpanEvent {
  std::string name;       ///< "backward", "processor.3"
  std::string_view kind;  ///< a literal: "phase", "stage", "segment", "recompute", "op" or "ranks"
  int track = 0;          ///< index into SpanRecorder::tracks()
  int64_t begin = 0;      ///< nanoseconds since the Unix epoch, as MemoryEvent's
  int64_t end = 0;
};

/// Thread-safe.
class SpanRecorder {
 public:
  /// The number of the track of this name; threads that say the same name share one.
  int track(std::string_view name);
  void add(SpanEvent event);
  /// What was added so far, in the order of the ends.
  std::vector<SpanEvent> events() const;
  std::vector<std::string> tracks() const;
  /// The time for an event's begin and end.
  static int64_t now();

 private:
  mutable std::mutex mutex_;
  std::vector<SpanEvent> events_;
  std::vector<std::string> tracks_;
};

/// While it lives, spans of the calling thread that begin and end are added to a recorder, on the track of a
/// name. One at a time per thread. Without a recorder it does nothing.
class RecordSpans {
 public:
  RecordSpans(std::shared_ptr<SpanRecorder> recorder, std::string_view track);
  ~RecordSpans();
  RecordSpans(const RecordSpans&) = delete;
  RecordSpans& operator=(const RecordSpans&) = delete;

 private:
  friend class Span;
  friend void record_span(std::string_view name, std::string_view kind, int64_t begin);
  std::shared_ptr<SpanRecorder> recorder_;
  int track_ = 0;
};

class Span {
 public:
  explicit Span(std::string_view name, std::string_view kind = "phase");
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  /// Whether a recorder of this thread, or a profiler, takes spans.
  static bool wanted();

 private:
  std::string name_;
  std::string_view kind_;
  int64_t begin_ = 0;   // 0: not recorded
  bool range_ = false;  // an NVTX range was begun
};

/// Whether this thread records spans; a profiler does not count.
bool records_spans();
/// For this thread's recorder: a span that began at `begin` and ends now. Nothing without a recorder.
void record_span(std::string_view name, std::string_view kind, int64_t begin);

}  // namespace meshgrad
