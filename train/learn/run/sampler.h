// SPDX-License-Identifier: Apache-2.0
// Sampler: the order in which training visits the samples of a split. Its only state is a position, so that
// training can resume at any point.
#pragma once
#include <meshgrad/train/learn/task/task.h>

namespace meshgrad {

/// Every pass visits every sample of a split once, in an order shuffled by (seed, pass).
class Sampler {
 public:
  /// Throws DataError when the split has no sample of the task.
  Sampler(const Task& task, std::string_view split, uint64_t seed);
  int64_t samples() const { return first_sample_.back(); }
  /// The sample at a position in the endless sequence of passes.
  Sample at(int64_t position) const;
  /// Sample number i of the split in order, without shuffling.
  Sample in_order(int64_t i) const;

 private:
  uint64_t seed_;
  int64_t first_frame_;
  std::vector<int64_t> first_sample_;  // per trajectory, and the total
};

}  // namespace meshgrad
