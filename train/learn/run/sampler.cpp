// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/run/sampler.h>

#include <algorithm>

namespace meshgrad {

Sampler::Sampler(const Task& task, std::string_view split, uint64_t seed)
    : seed_(seed), first_frame_(task.sample_frames(0).first) {
  const Dataset& dataset = task.dataset();
  first_sample_.push_back(0);
  for (int64_t i = 0; i < dataset.size(split); ++i)
    first_sample_.push_back(first_sample_.back() + task.sample_frames(dataset.frames(split, i)).size());
  if (samples() == 0) {
    throw data_error(
        dataset.path().string() + ": split " + std::string(split),
        "trajectories of at least " + std::to_string(task.least_frames()) + " frames", "none",
        "lower unroll.steps or data.history, choose another split, or convert data with more frames");
  }
}

Sample Sampler::in_order(int64_t i) const {
  const auto next = std::upper_bound(first_sample_.begin(), first_sample_.end(), i);
  const int64_t trajectory = next - first_sample_.begin() - 1;
  return {trajectory, first_frame_ + i - first_sample_[static_cast<size_t>(trajectory)], 0};
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
