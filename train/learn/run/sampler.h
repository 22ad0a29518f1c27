// SPDX-License-Identifier: Apache-2.0
// Sampler: the order in which training visits the samples of a split. Its only state is a position, so that
// training can resume at any point.
#pragma once
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/task/task.h>

namespace meshgrad {

/// Every pass visits every sample of a split once, in an order shuffled by (seed, pass).
class Sampler {
 public:
  /// Throws DataError when the split has no sample of the task.
  Sampler(const Task& task, std::string_view split, uint64_t seed)
      : seed_(seed), samples_(task.samples(split)) {
    if (samples() == 0) throw task.no_samples(split);
  }
  int64_t samples() const { return samples_.size(); }
  /// The sample at a position in the endless sequence of passes.
  Sample at(int64_t position) const {
    const auto pass = static_cast<uint64_t>(position / samples());
    Sample sample = in_order(static_cast<int64_t>(shuffled(
        seed_, pass, static_cast<uint64_t>(position % samples()), static_cast<uint64_t>(samples()))));
    sample.visit = static_cast<uint32_t>(pass);
    return sample;
  }
  /// Sample number i of the split in order, without shuffling.
  Sample in_order(int64_t i) const { return samples_.at(i); }

 private:
  uint64_t seed_;
  SplitSamples samples_;
};

}  // namespace meshgrad
