// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/launch_trace.h>
#include <meshgrad/engine/span.h>

#include <utility>

namespace meshgrad {
namespace {

LaunchTrace*& current_trace() {
  thread_local LaunchTrace* trace = nullptr;
  return trace;
}

std::shared_ptr<void> timing_event(Device device) {
  return {gpu::create_event(device.index, true), gpu::destroy_event};
}

}  // namespace

LaunchTrace::LaunchTrace(const Stream& stream) : stream_(stream) {
  check_internal(current_trace() == nullptr, "one launch trace at a time");
  current_trace() = this;
}

LaunchTrace::~LaunchTrace() { current_trace() = nullptr; }

std::vector<LaunchTrace::Launch> LaunchTrace::take() {
  stream_.synchronize();
  std::vector<Launch> launches;
  const std::vector<Timed> all = std::exchange(timed_, {});
  for (const Timed& timed : all) {
    const auto since_first = [&](const std::shared_ptr<void>& event) {
      return gpu::milliseconds(all.front().begin.get(), event.get());
    };
    launches.push_back({timed.name, gpu::milliseconds(timed.begin.get(), timed.end.get()),
                        since_first(timed.begin), since_first(timed.end), timed.launched});
  }
  return launches;
}

TracedLaunch::TracedLaunch(const char* name, const Stream& stream) {
  LaunchTrace* const trace = current_trace();
  if (trace == nullptr || stream.dry() || trace->stream_.native() != stream.native()) return;
  native_ = stream.native();
  end_ = timing_event(stream.device());
  trace->timed_.push_back({name, SpanRecorder::now(), timing_event(stream.device()), end_});
  gpu::record(trace->timed_.back().begin.get(), native_);
}

TracedLaunch::~TracedLaunch() {
  if (end_ == nullptr) return;
  try {
    gpu::record(end_.get(), native_);
  } catch (const Error&) {
    // The launch failed and reports it; a destructor must not throw.
  }
}

}  // namespace meshgrad
