// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/task/curriculum.h>
#include <meshgrad/train/learn/task/displacements.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace meshgrad {
namespace {

/// The value in an epoch of a pair of the first and the last.
double between_epochs(const std::vector<double>& pair, int64_t epoch, int64_t epochs) {
  const double way = epochs > 1 ? static_cast<double>(epoch) / static_cast<double>(epochs - 1) : 0.0;
  return pair[0] + (pair[1] - pair[0]) * way;
}

/// The class with most samples; of equally large ones the first.
int32_t largest_class(const std::vector<int32_t>& classes) {
  std::map<int32_t, int64_t> counts;
  for (const int32_t one : classes) ++counts[one];
  return std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; })->first;
}

}  // namespace

Curriculum::Curriculum(const Config& config, int64_t samples, const std::vector<int32_t>& classes)
    : seed_(static_cast<uint64_t>(config.run.seed)), samples_(samples) {
  const CurriculumConfig& keys = config.curriculum;
  const int64_t epochs = config.train.epochs;
  // Scores of a model that does not learn stay.
  refresh_ = keys.score == CurriculumScore::model ? epochs : std::min(keys.refresh_epochs, epochs);
  if (!classes.empty()) largest_class_ = largest_class(classes);
  for (int64_t i = 0; i < samples; ++i) {
    const bool other = !classes.empty() && classes[static_cast<size_t>(i)] != largest_class_;
    (other ? always_ : ranked_).push_back(i);
  }
  if (!classes.empty() && always_.empty()) {
    throw config_error("curriculum.score", "training samples of two classes or more",
                       fmt::format("class {} in all {}", largest_class_, samples),
                       "set curriculum.score = \"none\", or train on samples of another class, too");
  }
  epochs_.resize(1);
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    const double percentile = between_epochs(keys.percentile, epoch, epochs);
    const int64_t ranked = std::ssize(ranked_);
    constexpr double kRounding = 1e-9;  // of a percentile between two
    const double easy = std::floor(percentile * static_cast<double>(ranked) / 100.0 + kRounding);
    const int64_t hard = ranked - static_cast<int64_t>(easy);
    if (hard == 0) {
      throw config_error(
          "curriculum.percentile", "a hard sample in every epoch",
          fmt::format("0 of {} above percentile {:.4g}, in epoch {}", ranked, percentile, epoch + 1),
          "lower curriculum.percentile");
    }
    const int64_t kept = classes.empty() ? hard : std::ssize(always_);
    const int64_t others = classes.empty() ? ranked - hard : hard;
    const double wanted = between_epochs(keys.ratio, epoch, epochs) * static_cast<double>(kept);
    const int64_t drawn = wanted < static_cast<double>(others) ? std::llround(wanted) : others;
    epochs_.back().hard = hard;
    epochs_.back().draws = drawn;
    epochs_.push_back({epochs_.back().begin + kept + drawn, 0, 0});
  }
}

std::optional<Curriculum> Curriculum::of(const Config& config, const Task& task) {
  if (config.curriculum.score == CurriculumScore::none) return std::nullopt;
  const std::string& split = config.data.train_split;
  const int64_t samples = task.samples(split).size();
  if (samples == 0) throw task.no_samples(split);
  return Curriculum(config, samples, task.classes_of(split));
}

int64_t Curriculum::epoch_of(int64_t position) const {
  const auto next = std::ranges::upper_bound(epochs_, position, {}, &Epoch::begin);
  return next - epochs_.begin() - 1;
}

int64_t Curriculum::most_uses(int64_t positions) const {
  int64_t shortest = samples_;
  for (int64_t epoch = 0; epoch < epochs(); ++epoch)
    shortest = std::min(shortest, begin_of(epoch + 1) - begin_of(epoch));
  const int64_t touched = (positions + shortest - 2) / shortest + 1;
  return 2 * touched;  // an epoch draws a sample twice where it goes through the set's end
}

std::string Curriculum::describe() const {
  const auto counts = [&](int64_t epoch) {
    const Epoch &one = epochs_[static_cast<size_t>(epoch)], &next = epochs_[static_cast<size_t>(epoch) + 1];
    const std::string all = fmt::format("{} of {} samples", next.begin - one.begin, samples_);
    return always_.empty() ? fmt::format("{}, its {} hard ones and {} others", all, one.hard, one.draws)
                           : fmt::format("{}, {} of the {} hard ones of class {} among them", all, one.draws,
                                         one.hard, largest_class_);
  };
  const int64_t last = epochs() - 1;
  return fmt::format("curriculum: the first epoch has {}{}", counts(0),
                     last > 0 ? "; the last " + counts(last) : std::string());
}

Curriculum::Drawn Curriculum::at(int64_t position) const {
  const int64_t epoch = epoch_of(position);
  const Epoch& one = epochs_[static_cast<size_t>(epoch)];
  const int64_t size = begin_of(epoch + 1) - one.begin;
  const Sets& sets = sets_of(epoch);
  const auto place = static_cast<int64_t>(shuffled(seed_, static_cast<uint64_t>(epoch),
                                                   static_cast<uint64_t>(position - one.begin),
                                                   static_cast<uint64_t>(size)));
  const int64_t kept = std::ssize(sets.kept);
  if (place < kept) return {sets.kept[static_cast<size_t>(place)], static_cast<uint32_t>(epoch)};
  return sets.drawn[static_cast<size_t>(place - kept)];
}

int64_t Curriculum::known_until() const { return begin_of(std::min(next_epoch(), epochs())); }

void Curriculum::add_scores(std::vector<float> scores, const std::string& hash) {
  scores_.push_back(std::move(scores));
  hashes_ += (hashes_.empty() ? "" : " ") + hash;
}

const Curriculum::Sets& Curriculum::sets_of(int64_t epoch) const {
  if (const Sets& sets = sets_[static_cast<size_t>(epoch % 2)]; sets.epoch == epoch) return sets;
  const int64_t walked = std::ssize(walks_) - 1;
  for (int64_t each = std::min(epoch, walked); each < epoch; ++each) make_sets(each);
  return make_sets(epoch);
}

const Curriculum::Sets& Curriculum::make_sets(int64_t epoch) const {
  const Epoch& one = epochs_[static_cast<size_t>(epoch)];
  const std::vector<float>& scores = scores_.at(static_cast<size_t>(epoch / refresh_));
  std::vector<int64_t> ranked = ranked_;
  const auto easier = ranked.begin() + one.hard;
  std::nth_element(ranked.begin(), easier, ranked.end(), [&](int64_t a, int64_t b) {
    const float of_a = scores[static_cast<size_t>(a)], of_b = scores[static_cast<size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  const bool draws_hard = largest_class_ >= 0;
  std::vector<bool> in_set(static_cast<size_t>(samples_));
  for (auto at = draws_hard ? ranked.begin() : easier; at != (draws_hard ? easier : ranked.end()); ++at)
    in_set[static_cast<size_t>(*at)] = true;
  Sets& sets = sets_[static_cast<size_t>(epoch % 2)];
  sets = {epoch, always_, {}};
  if (!draws_hard) {
    sets.kept.assign(ranked.begin(), easier);
    std::ranges::sort(sets.kept);
  }
  const uint64_t seed = seed_ ^ hash_of("draws");  // other shuffles than those of epochs
  const auto all = std::ssize(ranked_);
  const int64_t begin = walks_[static_cast<size_t>(epoch)];
  int64_t walk = begin;
  for (; std::ssize(sets.drawn) < one.draws; ++walk) {
    const uint64_t place = shuffled(seed, static_cast<uint64_t>(walk / all),
                                    static_cast<uint64_t>(walk % all), static_cast<uint64_t>(all));
    const int64_t sample = ranked_[place];
    if (!in_set[static_cast<size_t>(sample)]) continue;
    // A sample that is drawn twice in an epoch is so in two rounds.
    const int64_t again = walk / all - begin / all;
    sets.drawn.push_back({sample, static_cast<uint32_t>(epoch + again * epochs())});
  }
  if (std::ssize(walks_) == epoch + 1) walks_.push_back(walk);
  return sets;
}

void check_scores(const std::vector<float>& scores, const Task& task, const Config& config,
                  std::string_view by) {
  const std::string& split = config.data.train_split;
  const SplitSamples& samples = task.samples(split);
  constexpr int64_t kListed = 3;
  std::string first;
  int64_t count = 0;
  for (int64_t i = 0; i < std::ssize(scores); ++i) {
    if (std::isfinite(scores[static_cast<size_t>(i)])) continue;
    if (count++ >= kListed) continue;
    const Sample sample = samples.at(i);
    first += fmt::format("{}{} of sample {} ({})", first.empty() ? "" : ", ", scores[static_cast<size_t>(i)],
                         i, frame_name(task.dataset().trajectory(split, sample.trajectory), sample.frame));
  }
  if (count == 0) return;
  const std::string_view wider = wider_range_fix(config.precision);
  throw data_error(
      "curriculum.score", fmt::format("a finite score of each sample by {}", by),
      fmt::format("{}{}", first, count > kListed ? fmt::format(", the first of {}", count) : ""),
      fmt::format("{}, or {}", wider.empty() ? "look for bad values in these samples" : wider,
                  config.curriculum.score == CurriculumScore::model ? "name another curriculum.model"
                                                                    : "lower optimizer.lr"));
}

}  // namespace meshgrad
