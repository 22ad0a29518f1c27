// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/kernels/work.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace meshgrad {
namespace {

constexpr std::array<DevicePeaks, 3> kDevicePeaks{{
    {"a100", 2.039e12, 312e12, 19.5e12, 156e12},
    {"h100", 3.35e12, 989e12, 67e12, 494e12},
    {"h200", 4.8e12, 989e12, 67e12, 494e12},
}};

WorkTrace*& current_work_trace() {
  thread_local WorkTrace* trace = nullptr;
  return trace;
}

}  // namespace

WorkTrace::WorkTrace() {
  check_internal(current_work_trace() == nullptr, "one work trace at a time");
  current_work_trace() = this;
}

WorkTrace::~WorkTrace() { current_work_trace() = nullptr; }

WorkTrace* WorkTrace::current() { return current_work_trace(); }

const DevicePeaks& device_peaks(std::string_view name) {
  const auto* const found = std::find_if(kDevicePeaks.begin(), kDevicePeaks.end(),
                                         [&](const DevicePeaks& peaks) { return peaks.name == name; });
  if (found == kDevicePeaks.end()) {
    throw invalid_argument("device peaks", fmt::format("\"{}\"", fmt::join(device_peak_names(), "\", \"")),
                           fmt::format("\"{}\"", name), "name one of these");
  }
  return *found;
}

std::vector<std::string> device_peak_names() {
  std::vector<std::string> names;
  for (const DevicePeaks& peaks : kDevicePeaks) names.emplace_back(peaks.name);
  return names;
}

double least_seconds(const Work& work, const DevicePeaks& peaks, DType storage, bool tf32) {
  const double single = tf32 ? peaks.flops_per_s_tf32 : peaks.flops_per_s_32;
  const double flops_per_s = size_of(storage) == 2 ? peaks.flops_per_s_16 : single;
  return std::max(work.bytes / peaks.bytes_per_s, work.flops / flops_per_s);
}

}  // namespace meshgrad
