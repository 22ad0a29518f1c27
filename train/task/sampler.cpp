// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/random.h>
#include <meshgrad/train/task/sampler.h>

#include <algorithm>

namespace meshgrad {

FrameRange usable_frames(Prediction predict, int64_t frames, int64_t steps) {
  const int64_t first = predict == Prediction::second_change ? 1 : 0;
  return {first, std::max(first, frames - steps)};
}

Sampler::Sampler(const Dataset& dataset, std::string_view split, Prediction predict, uint64_t seed,
                 int64_t steps)
    : seed_(seed), predict_(predict) {
  first_sample_.push_back(0);
  for (int64_t i = 0; i < dataset.size(split); ++i) {
    const FrameRange range = usable_frames(predict, dataset.frames(split, i), steps);
    first_sample_.push_back(first_sample_.back() + range.end - range.first);
  }
  if (samples() == 0) {
    const int64_t frames = steps + (predict == Prediction::second_change ? 2 : 1);
    throw data_error(dataset.path().string() + ": split " + std::string(split),
                     "trajectories of at least " + std::to_string(frames) + " frames", "none",
                     steps > 1 ? "lower unroll.steps, or convert data with more frames"
                               : "convert data with more frames, or choose another split");
  }
}

Sample Sampler::in_order(int64_t i) const {
  const auto next = std::upper_bound(first_sample_.begin(), first_sample_.end(), i);
  const int64_t trajectory = next - first_sample_.begin() - 1;
  const int64_t first_frame = predict_ == Prediction::second_change ? 1 : 0;
  return {trajectory, first_frame + i - first_sample_[static_cast<size_t>(trajectory)], 0};
}

Sample Sampler::at(int64_t position) const {
  const int64_t pass = position / samples();
  const auto index = shuffled(seed_, static_cast<uint64_t>(pass), static_cast<uint64_t>(position % samples()),
                              static_cast<uint64_t>(samples()));
  Sample sample = in_order(static_cast<int64_t>(index));
  sample.visit = static_cast<uint32_t>(pass);
  return sample;
}

}  // namespace meshgrad
