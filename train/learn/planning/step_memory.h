// SPDX-License-Identifier: Apache-2.0
// Memory and kernel calls of a training step: predicted by a dry run, with the same code and nothing
// computed; memory also measured by running it.
#pragma once
#include <meshgrad/engine/memory/stats.h>
#include <meshgrad/kernels/work.h>
#include <meshgrad/nn/partition/part.h>
#include <meshgrad/train/learn/task/task.h>

#include <string>
#include <vector>

namespace meshgrad {

/// Bytes at the peak of a step.
struct StepMemory {
  int64_t live = 0;                         ///< allocated
  std::array<int64_t, kTagCount> by_tag{};  ///< of them; they add up to `live`
  int64_t reserved = 0;                     ///< mapped at most: cached memory included
  int64_t offloaded = 0;                    ///< at once, at most (recompute.offload)
  /// What a predicted step's Runtime logged: which ops of a GPU run op by op, and why.
  std::vector<std::string> messages;
  int64_t of(Tag tag) const { return by_tag[static_cast<size_t>(tag)]; }
};

/// Steps of one data set on one device, which need not exist. All sizes are those of largest_batch() or, with
/// captured graphs and unless measured, of every class of batches that the data can make.
class StepProbe {
 public:
  enum class Batches : uint8_t { largest, all_classes };

  StepProbe(const Dataset& dataset, Device device) : dataset_(dataset), device_(device) {}
  Device device() const { return device_; }
  const Dataset& dataset() const { return dataset_; }

  /// Takes no memory on the device, which need not be there, also in a build without CUDA; milliseconds.
  StepMemory predict(const Config& config, Batches batches = Batches::all_classes) const;
  struct PartStep {
    StepMemory memory;
    int64_t sent_bytes = 0;  ///< to neighbours, forward and backward, in one batch
  };
  /// As predict(), of a rank that computes this part of each mesh in a batch.
  PartStep predict_part(const Config& config, const Part& part) const;
  /// The kernel calls of a step of one batch of this shape, whose rows are all real, and of its update. As
  /// predict(), it needs no device.
  std::vector<WorkTrace::Call> kernel_calls(const Config& config, const BatchShape& shape) const;
  /// Takes as much as the step, and as long. Throws OutOfMemory.
  StepMemory measure(const Config& config) const;
  /// The first trajectory of the training split on the largest mesh.
  TrajectoryView largest_trajectory(const Config& config) const;
  /// Samples of the largest mesh in one batch whose rows can still be numbered.
  int64_t most_samples(const Config& config) const;

 private:
  Dataset dataset_;
  Device device_;
};

}  // namespace meshgrad
