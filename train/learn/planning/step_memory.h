// SPDX-License-Identifier: Apache-2.0
// Memory of a training step, predicted by a dry run, with the same code and nothing computed.
#pragma once
#include <meshgrad/engine/memory/stats.h>
#include <meshgrad/train/learn/run/step_cache.h>

#include <string>
#include <vector>

namespace meshgrad {

/// Bytes at the peak of a step.
struct StepMemory {
  int64_t live = 0;                         ///< allocated
  std::array<int64_t, kTagCount> by_tag{};  ///< of them; they add up to `live`
  int64_t reserved = 0;                     ///< mapped at most: cached memory included
  int64_t offloaded = 0;                    ///< at once, at most (recompute.offload)
  int64_t teacher = 0;                      ///< weights of distill.teacher, among the parameters
  /// What a predicted step's Runtime logged: which ops of a GPU run op by op, and why.
  std::vector<std::string> messages;
  int64_t of(Tag tag) const { return by_tag[static_cast<size_t>(tag)]; }
};

/// Of a Runtime that predicts the steps of `config` on a device, which need not be there.
RuntimeOptions dry_options(const Config& config, Device device);

/// What a step is made of, in a Runtime of its own. A dry run recomputes what a run within memory.limit would
/// choose.
struct ProbedStep {
  /// `config` outlives it.
  ProbedStep(RuntimeOptions options, const Config& config, const Dataset& dataset);
  ProbedStep(const ProbedStep&) = delete;
  ProbedStep& operator=(const ProbedStep&) = delete;

  Runtime runtime;
  const Task task;
  const Model model;
  const Optimizer optimizer;
  StepCache steps;

  /// Forward and backward of a batch in memory that is not filled, of a dry run.
  void run(const BatchLayout& layout);
  /// Whole steps, as many as memory takes until it is that of all further ones. Returns how many.
  int repeat(const BatchLayout& layout);
  /// So far, at the peak.
  StepMemory memory();
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
  /// Samples of the largest mesh in one batch whose rows can still be numbered.
  int64_t most_samples(const Config& config) const;

 private:
  Dataset dataset_;
  Device device_;
};

}  // namespace meshgrad
