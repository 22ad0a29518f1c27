// SPDX-License-Identifier: Apache-2.0
#include "timing.h"

#include <meshgrad/engine/gpu.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>

namespace meshgrad::bench {
namespace {

constexpr double kConfidence = 0.95;

std::vector<std::shared_ptr<void>> timing_events(int device, int count) {
  std::vector<std::shared_ptr<void>> events;
  for (int i = 0; i < count; ++i) events.emplace_back(gpu::create_event(device, true), gpu::destroy_event);
  return events;
}

}  // namespace

Timer::Timer(Runtime& runtime, int64_t flush_bytes, bool by_host)
    : runtime_(runtime), flush_bytes_(flush_bytes) {
  if (runtime.stream().on_gpu() && !by_host) {
    buffer_ = gpu::allocate(runtime.device().index,
                            flush_bytes);  // not by the runtime's allocator, whose peak is reported
  } else {
    host_buffer_.resize(static_cast<size_t>(flush_bytes));
  }
}

Timer::~Timer() {
  if (buffer_ != nullptr) gpu::free(buffer_);
}

void Timer::flush() {
  if (buffer_ != nullptr) {
    gpu::fill(runtime_.device().index, buffer_, 0, flush_bytes_, runtime_.stream().native());
  } else {
    std::memset(host_buffer_.data(), static_cast<int>(++host_buffer_[0]), host_buffer_.size());
  }
}

std::vector<double> Timer::run(const std::function<void()>& work, int count, bool cold) {
  std::vector<double> ms;
  if (buffer_ == nullptr) {
    for (int i = 0; i < count; ++i) {
      if (cold) flush();
      const auto start = std::chrono::steady_clock::now();
      work();
      ms.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    return ms;
  }
  void* const stream = runtime_.stream().native();
  const auto begin = timing_events(runtime_.device().index, count);
  const auto end = timing_events(runtime_.device().index, count);
  for (size_t i = 0; i < begin.size(); ++i) {
    if (cold) flush();
    gpu::record(begin[i].get(), stream);
    work();
    gpu::record(end[i].get(), stream);
  }
  gpu::synchronize(stream);
  for (size_t i = 0; i < begin.size(); ++i) ms.push_back(gpu::milliseconds(begin[i].get(), end[i].get()));
  return ms;
}

CpuTime cpu_time() {
  CpuTime time{.ran = static_cast<double>(std::clock()) / CLOCKS_PER_SEC};
  std::error_code ignored;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    double ran_ns = 0.0, waited_ns = 0.0;
    if (!(std::ifstream(thread.path() / "schedstat") >> ran_ns >> waited_ns)) continue;
    time.waited += waited_ns / 1e9;
    time.counted = time.counted || ran_ns > 0.0;
  }
  return time;
}

Interval median_interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<int>(values.size());
  const auto at = [&](int i) { return values[static_cast<size_t>(i)]; };
  Interval result{
      .median = 0.5 * (at((n - 1) / 2) + at(n / 2)), .low = at(0), .high = at(n - 1), .coverage = 0.0};
  // The k smallest and the k largest may be left out as long as P(fewer than k + 1 of n fall below the
  // median) is at most 2.5 %.
  double below = 0.0;
  for (int k = 0; 2 * k < n - 1; ++k) {
    below +=
        std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0) - n * std::log(2.0));
    const double coverage = 1.0 - 2.0 * below;
    if (k > 0 && coverage < kConfidence) break;
    result = {result.median, at(k), at(n - 1 - k), coverage};
  }
  return result;
}

}  // namespace meshgrad::bench
