// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/history.h>
#include <meshgrad/engine/span.h>

#include <algorithm>
#include <utility>

namespace meshgrad {
namespace {

thread_local RecordSpans* recording = nullptr;

}  // namespace

int SpanRecorder::track(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto known = std::find(tracks_.begin(), tracks_.end(), name);
  if (known != tracks_.end()) return static_cast<int>(known - tracks_.begin());
  tracks_.emplace_back(name);
  return static_cast<int>(tracks_.size()) - 1;
}

void SpanRecorder::add(SpanEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

std::vector<SpanEvent> SpanRecorder::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

std::vector<std::string> SpanRecorder::tracks() const {
  const std::lock_guard lock(mutex_);
  return tracks_;
}

int64_t SpanRecorder::now() { return MemoryRecorder::now(); }

RecordSpans::RecordSpans(std::shared_ptr<SpanRecorder> recorder, std::string_view track)
    : recorder_(std::move(recorder)) {
  if (recorder_ == nullptr) return;
  check_internal(recording == nullptr, "one recording of spans at a time");
  track_ = recorder_->track(track);
  recording = this;
}

RecordSpans::~RecordSpans() {
  if (recording == this) recording = nullptr;
}

bool records_spans() { return recording != nullptr; }

bool Span::wanted() { return recording != nullptr || gpu::profiled(); }

Span::Span(std::string_view name, std::string_view kind) {
  if (!wanted()) return;
  name_ = name;
  kind_ = kind;
  range_ = gpu::profiled();
  if (range_) gpu::begin_range(name_.c_str());
  if (recording != nullptr) begin_ = SpanRecorder::now();
}

Span::~Span() {
  if (range_) gpu::end_range();
  if (begin_ != 0) record_span(name_, kind_, begin_);
}

void record_span(std::string_view name, std::string_view kind, int64_t begin) {
  if (recording == nullptr) return;
  recording->recorder_->add({.name = std::string(name),
                             .kind = kind,
                             .track = recording->track_,
                             .begin = begin,
                             .end = SpanRecorder::now()});
}

}  // namespace meshgrad
