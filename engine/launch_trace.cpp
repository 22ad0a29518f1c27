// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/launch_trace.h>

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

LaunchTrace::LaunchTrace(Device device) : device_(device) {
  check_internal(current_trace() == nullptr, "one launch trace at a time");
  current_trace() = this;
}

LaunchTrace::~LaunchTrace() { current_trace() = nullptr; }

std::vector<LaunchTrace::Launch> LaunchTrace::take(const Stream& stream) {
  stream.synchronize();
  std::vector<Launch> launches;
  for (const Timed& timed : std::exchange(timed_, {}))
    launches.push_back({timed.name, gpu::milliseconds(timed.begin.get(), timed.end.get())});
  return launches;
}

TracedLaunch::TracedLaunch(const char* name, const Stream& stream) {
  LaunchTrace* const trace = current_trace();
  if (trace == nullptr || stream.dry() || trace->device_ != stream.device()) return;
  native_ = stream.native();
  end_ = timing_event(trace->device_);
  trace->timed_.push_back({name, timing_event(trace->device_), end_});
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
