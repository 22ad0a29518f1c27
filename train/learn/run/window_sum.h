// SPDX-License-Identifier: Apache-2.0
// WindowSum: adds the gradients and losses of a window over the ranks, so that every rank then takes the same
// optimizer step. An overflow on one rank is one on all: infinities and NaN survive the sum.
//
// "fast": each rank accumulates its own batches; its gradients leave bucket by bucket while the backward pass
// of its last batch goes on, between GPUs by NCCL. "ordered": the unit is one sample, whose gradient is
// computed alone. Each rank owns a slice of the arena, receives that slice of each sample's gradient, and
// adds them in the window's order. Sums then do not depend on the number of ranks. It costs an exchange of
// the whole arena for every sample.
#pragma once
#include <meshgrad/engine/ranks/bucket_sum.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/run/step_cache.h>

#include <memory>
#include <string>

namespace meshgrad {

class WindowSum {
 public:
  /// References outlive it.
  WindowSum(Runtime& runtime, Ranks& ranks, const RanksConfig& config, const Model& model)
      : runtime_(runtime),
        ranks_(ranks),
        model_(model),
        reduction_(config.reduction),
        sum_alone_(config.sum_alone),
        timeout_(config.timeout) {}

  /// Before the run's first window, collective: who adds the gradients of "fast" between GPUs, in words;
  /// empty on CPUs and where nothing is added.
  std::string choose_path();
  /// Afterwards: NCCL between the GPUs of the ranks, or null.
  const std::shared_ptr<const DeviceRanks>& between_gpus() const { return device_; }
  /// Before the first batch of a window of `samples`. `assignment` is null for a window that is not split;
  /// sums are ordered for split windows alone.
  void begin(const WindowAssignment* assignment, int64_t samples, Optimizer& optimizer);
  /// Whether this window's gradients are added at its end, also by one rank.
  bool active() const { return !ranks_.single() || sum_alone_ || ordered(); }
  /// For the backward pass of this rank's last batch; nothing where sums have to wait for its end.
  GradientsReady while_backward(const Tensor& gradients);
  /// After each batch of this rank; `gradients` holds what was accumulated so far.
  void add_batch(const Tensor& gradients, Optimizer& optimizer);
  /// After the last one: gradients and the window's loss are then the same on every rank.
  void finish(const Tensor& gradients, double window_weight, Optimizer& optimizer);

 private:
  bool ordered() const { return assignment_ != nullptr && reduction_ == RankReduction::ordered; }
  /// Round `rounds_`: every rank calls it, also those without a sample in it.
  void add_round(const Tensor& gradients);
  template <class T>
  void add_round_of(const Tensor& host);
  BucketSum& buckets(const Tensor& gradients);
  void sum_losses(double window_weight, Optimizer& optimizer);

  Runtime& runtime_;
  Ranks& ranks_;
  const Model& model_;
  RankReduction reduction_;
  bool sum_alone_;
  std::chrono::seconds timeout_;
  std::shared_ptr<const DeviceRanks> device_;  // where every rank has a GPU of its own, and the build NCCL
  std::unique_ptr<BucketSum> buckets_;
  const WindowAssignment* assignment_ = nullptr;
  int64_t rounds_ = 0;             // added so far
  int64_t non_finite_before_ = 0;  // losses, before the window
  int64_t without_room_before_ = 0;
  std::vector<double> losses_;  // ordered: of each sample, on the rank that has it; fast: of the window
  Tensor sum_;                  // ordered: of this rank's slice, on the host
  Tensor received_;             // ordered: that slice of a round's other samples
};

}  // namespace meshgrad
