// SPDX-License-Identifier: Apache-2.0
// Curriculum: which training samples an epoch draws, by how difficult they are (curriculum.*). Of samples in
// classes, those of all classes but the largest are in every epoch, and beside each of them `ratio` hard ones
// of the largest. Of others, the hard samples are in every epoch, and beside each of them `ratio` others.
// Hard are those above a percentile of the scores; percentile and ratio change linearly over the epochs. An
// epoch draws no more than there are.
//
// How many samples an epoch has follows from the numbers of samples alone, so that steps are known from the
// start. Which ones is a function of (seed, position, scores so far): epochs draw along one walk in rounds
// through all samples that are ranked, shuffled anew each round, and pass over those that are not in their
// set. So each sample that is in the sets of all epochs of a round is drawn once in it, however the sets
// change.
#pragma once
#include <meshgrad/train/learn/task/task.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace meshgrad {

class Curriculum {
 public:
  /// `samples` in the training split, `classes` of each, or empty. Throws ConfigError where an epoch has no
  /// hard sample, or all samples are of one class.
  Curriculum(const Config& config, int64_t samples, const std::vector<int32_t>& classes);
  /// Nothing without curriculum.score.
  static std::optional<Curriculum> of(const Config& config, const Task& task);

  int64_t samples() const { return samples_; }
  /// The position of the first sample of an epoch, from 0; of one more than there are, the end.
  int64_t begin_of(int64_t epoch) const { return epochs_[static_cast<size_t>(epoch)].begin; }
  int64_t epoch_of(int64_t position) const;
  /// How often so many positions in a row can have the same sample.
  int64_t most_uses(int64_t positions) const;
  /// What the epochs draw, for people.
  std::string describe() const;

  /// A sample's number in the split, and which of its uses it is (Sample::visit).
  struct Drawn {
    int64_t sample = 0;
    uint32_t visit = 0;
    bool operator==(const Drawn&) const = default;
  };
  /// The one at a position before known_until(). By one thread.
  Drawn at(int64_t position) const;

  /// The position from which on the order needs scores that are not there.
  int64_t known_until() const;
  /// Whether the scores of all epochs are there.
  bool complete() const { return next_epoch() >= epochs(); }
  /// How many epochs end before the next scores are made.
  int64_t next_epoch() const { return std::ssize(scores_) * refresh_; }
  /// Of each sample, and the hash of their file.
  void add_scores(std::vector<float> scores, const std::string& hash);
  /// With the hash of another model, before its scores.
  void scored_by(const std::string& model) { hashes_ = scorer_ = model; }
  /// Of that model; "" before, and where the run's own scores.
  const std::string& scorer() const { return scorer_; }
  /// Of that model, and of the files of all scores so far, in their order, separated by spaces.
  const std::string& hashes() const { return hashes_; }

 private:
  struct Epoch {
    int64_t begin = 0;  // position
    int64_t draws = 0;
    int64_t hard = 0;  // samples
  };
  /// What an epoch has in any case, ascending, and what it draws, in the order of the walk.
  struct Sets {
    int64_t epoch = -1;
    std::vector<int64_t> kept;
    std::vector<Drawn> drawn;
  };
  int64_t epochs() const { return std::ssize(epochs_) - 1; }
  /// After those of the epochs before, where they were not made yet: their ends follow from one another.
  const Sets& sets_of(int64_t epoch) const;
  const Sets& make_sets(int64_t epoch) const;

  uint64_t seed_;
  int64_t samples_;
  int64_t refresh_;              // epochs that the same scores are for
  std::vector<int64_t> ranked_;  // samples that hard ones are among, ascending
  std::vector<int64_t> always_;  // those of other classes
  int32_t largest_class_ = -1;   // -1: there are no classes
  std::vector<Epoch> epochs_;    // and the end
  std::vector<std::vector<float>> scores_;
  std::string scorer_, hashes_;
  mutable std::vector<int64_t> walks_ = {0};  // where the walks of the first epochs begin, in steps
  mutable std::array<Sets, 2> sets_;          // of an epoch and of its neighbour, by its number modulo 2
};

/// Throws DataError with the first samples whose scores are not finite, unless all are.
void check_scores(const std::vector<float>& scores, const Task& task, const Config& config,
                  std::string_view by);

}  // namespace meshgrad
