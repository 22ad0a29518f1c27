// SPDX-License-Identifier: Apache-2.0
// The order of training: which sample stands at a position of the endless sequence of passes, and at which
// position each micro-batch begins. Both follow from the seed and the sizes of the data alone; with a
// curriculum which sample, but not where batches begin, from the scores too.
#pragma once
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/task/curriculum.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace meshgrad {

/// The order in which training visits the samples of a split: every pass visits each once, shuffled by (seed,
/// pass), or those of a curriculum. Its only state is a position, so that training can resume at any point.
class Sampler {
 public:
  /// Throws DataError when the split has no sample of the task.
  Sampler(const Task& task, std::string_view split, uint64_t seed, std::optional<Curriculum> curriculum = {})
      : seed_(seed), samples_(task.samples(split)), curriculum_(std::move(curriculum)) {
    if (samples() == 0) throw task.no_samples(split);
  }
  /// Of the split.
  int64_t samples() const { return samples_.size(); }
  /// The position at which a pass begins, and the pass of a position.
  int64_t begin_of(int64_t pass) const {
    return curriculum_ ? curriculum_->begin_of(pass) : pass * samples();
  }
  int64_t pass_of(int64_t position) const {
    return curriculum_ ? curriculum_->epoch_of(position) : position / samples();
  }
  /// The sample at a position in the endless sequence of passes.
  Sample at(int64_t position) const {
    if (curriculum_) {
      const Curriculum::Drawn drawn = curriculum_->at(position);
      Sample sample = samples_.at(drawn.sample);
      sample.visit = drawn.visit;
      return sample;
    }
    const auto pass = static_cast<uint64_t>(position / samples());
    Sample sample = samples_.at(static_cast<int64_t>(shuffled(
        seed_, pass, static_cast<uint64_t>(position % samples()), static_cast<uint64_t>(samples()))));
    sample.visit = static_cast<uint32_t>(pass);
    return sample;
  }

  /// Null without one.
  Curriculum* curriculum() { return curriculum_ ? &*curriculum_ : nullptr; }

 private:
  uint64_t seed_;
  SplitSamples samples_;
  std::optional<Curriculum> curriculum_;
};

/// Where the micro-batches of a run begin. With train.batch_nodes each pass is cut anew: a batch takes
/// samples in order while their nodes are within the budget, so batches have different numbers of samples and
/// passes different numbers of batches. Where a pass begins follows from those before it, which are counted
/// once.
class BatchOrder {
 public:
  /// Throws DataError when the training split has no sample of the task.
  BatchOrder(const Config& config, const Task& task);

  const Sampler& sampler() const { return sampler_; }
  Curriculum* curriculum() { return sampler_.curriculum(); }
  /// The position of the first sample of micro-batch `batch`, counted from 0 over all windows.
  int64_t begin_of(int64_t batch);
  /// Micro-batches of the first `passes` passes.
  int64_t batches_of(int64_t passes);
  /// How many of the samples at positions `first` + places, from the first place on, make a batch.
  size_t first_batch(int64_t first, std::span<const int64_t> places) const;

 private:
  /// The positions within a pass at which its batches begin.
  const std::vector<int64_t>& begins_in(int64_t pass);
  int64_t nodes_at(int64_t position) const {
    return nodes_of_[static_cast<size_t>(sampler_.at(position).trajectory)];
  }

  struct CutPass {
    int64_t pass = -1;
    std::vector<int64_t> begins;
  };
  Sampler sampler_;
  int64_t samples_;                         // of a batch, without a budget of nodes
  int64_t most_nodes_;                      // 0: no budget
  std::vector<int32_t> nodes_of_;           // by trajectory, with a budget
  std::vector<int64_t> pass_begins_ = {0};  // of each pass that is counted, the number of its first batch
  std::array<CutPass, 2> cut_;              // of a pass and of its neighbour, by its number modulo 2
};

}  // namespace meshgrad
