// SPDX-License-Identifier: Apache-2.0
// Whole training steps of the largest batch, computed on the device: what they take of memory and time.
#pragma once
#include <meshgrad/train/learn/planning/step_memory.h>
#include <meshgrad/train/learn/task/upload.h>

namespace meshgrad {

class MeasuredStep {
 public:
  /// `config` outlives it. Throws OutOfMemory, and what largest_samples throws.
  MeasuredStep(const StepProbe& probe, const Config& config);
  /// A batch and its update; waits for the device. Throws OutOfMemory.
  void run();
  /// Of the steps so far, at the peak.
  StepMemory memory() { return step_.memory(); }
  /// Seconds of an optimizer step of train.accumulate such batches: the median of at most `steps` steps after
  /// a first one, fewer where `limit` seconds are over. Infinite where not one was done in that time; on a
  /// GPU a step is always finished.
  double seconds(int steps, double limit);

 private:
  const Config& config_;
  ProbedStep step_;
  std::vector<Sample> samples_;
  Normalizers normalizers_;
  BatchLayout layout_;
  Uploader uploader_;
  SampleScratch scratch_;
};

}  // namespace meshgrad
