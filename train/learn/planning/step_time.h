// SPDX-License-Identifier: Apache-2.0
// The time of a training step on a GPU, modelled from the bytes and FLOPs of its launches and the peaks that
// the device's maker states. Nothing is measured: real steps take longer than at the peaks.
#pragma once
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/batch_layout.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// What NVIDIA states in the data sheets of the SXM modules; 16 bits without sparsity.
struct DevicePeaks {
  std::string_view name;
  double bytes_per_s = 0;     ///< of its memory
  double flops_per_s_16 = 0;  ///< on tensor cores, accumulated in f32
  double flops_per_s_32 = 0;  ///< without tensor cores
  double flops_per_s_tf32 = 0;
};
/// By name: "a100" (80 GB), "h100" or "h200". Throws InvalidArgument for another.
const DevicePeaks& device_peaks(std::string_view name);
std::vector<std::string> device_peak_names();

/// The parts of a step. What backward recomputes by launches of its own is `recomputation`; what a fused
/// kernel recomputes inside is in `backward`.
enum class StepPart : uint8_t { forward, recomputation, backward, optimizer };
inline constexpr int kStepParts = 4;
std::string_view name_of(StepPart part);

/// A launch, or several of one kind: the roofline takes the longer of its two times.
struct LaunchWork {
  std::string name;
  StepPart part = StepPart::forward;
  double flops = 0;
  double bytes = 0;  ///< of device memory; a gathered row counts once per edge
  double launches = 1;
  /// The share of the tensor cores' peak that the launch may reach: of fused kernels what scripts/cuda-model
  /// counts from their machine code.
  double arithmetic_share = 0.5;
};

/// The launches of a training step: forward, backward, recomputation (recompute.mode as it is set; "auto" as
/// "off"), and the optimizer. `fused`: the edge updates take the fused kernels, else one launch per op.
std::vector<LaunchWork> work_of_step(const Config& config, const ModelSizes& sizes, const BatchShape& batch,
                                     bool fused);

/// What bounds the expected time of a launch.
enum class LaunchBound : uint8_t { memory, arithmetic };

struct LaunchTime {
  LaunchWork work;
  double at_peaks_ms = 0, expected_ms = 0;  ///< of all `work.launches`
  LaunchBound bound = LaunchBound::memory;
};

struct StepTime {
  double at_peaks_ms = 0;  ///< each launch at the peak that bounds it: no implementation of them is faster
  double expected_ms =
      0;  ///< at 85 % of the bandwidth, the launches' shares of the arithmetic, 2.5 us a launch
  std::array<double, kStepParts> expected_ms_of{};  ///< of each StepPart; their sum is expected_ms
  std::vector<LaunchTime> launches;                 ///< whose times these are the sums of
};
/// `tf32`: as RuntimeOptions::tf32.
StepTime modelled_time(const std::vector<LaunchWork>& work, const DevicePeaks& peaks, DType precision,
                       bool tf32 = false);

}  // namespace meshgrad
