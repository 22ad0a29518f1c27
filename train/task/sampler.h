// SPDX-License-Identifier: Apache-2.0
// Sampler: the order in which training visits the samples of a split. It has no state but a position, so that
// any point of a run can be taken up again.
#pragma once
#include <meshgrad/train/config/config.h>
#include <meshgrad/train/data/dataset.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Frames of a trajectory from which `steps` predictions in a row have all the neighbours they need: [first,
/// end).
struct FrameRange {
  int64_t first = 0;
  int64_t end = 0;
};
FrameRange usable_frames(Prediction predict, int64_t frames, int64_t steps = 1);

struct Sample {
  int64_t trajectory = 0;  ///< within the split
  int64_t frame = 0;
  uint32_t visit = 0;  ///< how often it was drawn before
  bool operator==(const Sample&) const = default;
};

/// Every pass visits every usable frame once, in an order shuffled by (seed, pass).
class Sampler {
 public:
  /// Of frames that `steps` predictions can start from. Throws DataError when the split has none.
  Sampler(const Dataset& dataset, std::string_view split, Prediction predict, uint64_t seed,
          int64_t steps = 1);
  int64_t samples() const { return first_sample_.back(); }
  /// The sample at a position in the endless sequence of passes.
  Sample at(int64_t position) const;
  /// Sample number i of the split in order, without shuffling.
  Sample in_order(int64_t i) const;

 private:
  uint64_t seed_;
  Prediction predict_;
  std::vector<int64_t> first_sample_;  // per trajectory, and the total
};

}  // namespace meshgrad
#pragma GCC visibility pop
