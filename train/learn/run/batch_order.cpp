// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/run/batch_order.h>

#include <algorithm>

namespace meshgrad {

BatchOrder::BatchOrder(const Config& config, const Task& task)
    : sampler_(task, config.data.train_split, static_cast<uint64_t>(config.run.seed),
               Curriculum::of(config, task)),
      samples_(config.train.batch),
      most_nodes_(config.train.batch_nodes) {
  const Dataset& data = task.dataset();
  const int64_t trajectories = most_nodes_ > 0 ? data.size(config.data.train_split) : 0;
  for (int64_t i = 0; i < trajectories; ++i)
    nodes_of_.push_back(static_cast<int32_t>(data.mesh_sizes(config.data.train_split, i).nodes));
}

int64_t BatchOrder::begin_of(int64_t batch) {
  if (most_nodes_ == 0) return batch * samples_;
  for (int64_t pass = std::ssize(pass_begins_); pass_begins_.back() <= batch; ++pass) batches_of(pass);
  const auto next = std::upper_bound(pass_begins_.begin(), pass_begins_.end(), batch);
  const int64_t pass = next - pass_begins_.begin() - 1;
  const auto place = static_cast<size_t>(batch - pass_begins_[static_cast<size_t>(pass)]);
  return pass * sampler_.samples() + (place == 0 ? 0 : begins_in(pass)[place]);
}

int64_t BatchOrder::batches_of(int64_t passes) {
  if (most_nodes_ == 0) return (sampler_.begin_of(passes) + samples_ - 1) / samples_;
  for (int64_t pass = std::ssize(pass_begins_) - 1; pass < passes; ++pass)
    pass_begins_.push_back(pass_begins_.back() + std::ssize(begins_in(pass)));
  return pass_begins_[static_cast<size_t>(passes)];
}

const std::vector<int64_t>& BatchOrder::begins_in(int64_t pass) {
  CutPass& cut = cut_[static_cast<size_t>(pass % 2)];
  if (cut.pass == pass) return cut.begins;
  cut.pass = pass;
  cut.begins.clear();
  int64_t nodes = most_nodes_;
  for (int64_t place = 0; place < sampler_.samples(); ++place) {
    const int64_t more = nodes_at(pass * sampler_.samples() + place);
    nodes += more;
    if (nodes <= most_nodes_) continue;
    cut.begins.push_back(place);
    nodes = more;
  }
  return cut.begins;
}

size_t BatchOrder::first_batch(int64_t first, std::span<const int64_t> places) const {
  if (most_nodes_ == 0) return std::min(places.size(), static_cast<size_t>(samples_));
  size_t count = 0;
  for (int64_t nodes = 0; count < places.size(); ++count) {
    nodes += nodes_at(first + places[count]);
    if (nodes > most_nodes_) break;
  }
  return count;
}

}  // namespace meshgrad
