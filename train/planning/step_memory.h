// SPDX-License-Identifier: Apache-2.0
// What a training step takes of a device's memory: predicted by running it dry, with the same code and
// nothing computed, or measured by running it.
#pragma once
#include <meshgrad/engine/memory/stats.h>
#include <meshgrad/train/task/frame_features.h>

namespace meshgrad {

/// Bytes, when most of them are in use.
struct StepMemory {
  int64_t live = 0;                         ///< handed out
  std::array<int64_t, kTagCount> by_tag{};  ///< of them; they add up to `live`
  int64_t reserved = 0;                     ///< the most that was mapped: what is kept for reuse, too
  int64_t offloaded = 0;                    ///< waits elsewhere (recompute.offload)
  int64_t of(Tag tag) const { return by_tag[static_cast<size_t>(tag)]; }
};

/// Runs the steps of one data set on one device, or of a device that is not there. All sizes are those of a
/// batch of config.train.batch samples of the largest mesh (with captured graphs, unless measured, of every
/// class of batches that the data can make).
class StepProbe {
 public:
  enum class Batches : uint8_t { largest, all_classes };

  StepProbe(const Dataset& dataset, const FrameFeatures& features, Device device)
      : dataset_(dataset), features_(features), device_(device) {}
  Device device() const { return device_; }
  const Dataset& dataset() const { return dataset_; }

  /// Takes no memory on the device and needs none to be there; milliseconds. Throws DeviceError for a GPU in
  /// a build without CUDA.
  StepMemory predict(const Config& config, Batches batches = Batches::all_classes) const;
  /// Takes as much as the step, and as long. Throws OutOfMemory.
  StepMemory measure(const Config& config) const;
  /// Samples of the largest mesh in one batch whose rows can still be numbered.
  int64_t most_samples(const Config& config) const;

 private:
  const Dataset& dataset_;
  const FrameFeatures& features_;
  Device device_;
};

}  // namespace meshgrad
