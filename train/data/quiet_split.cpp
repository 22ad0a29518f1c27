// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/data/quiet_split.h>

namespace meshgrad {
namespace {

constexpr int64_t kMostTrajectories = 16;
constexpr int64_t kMostPairs = 16;

// Adds the squares of one frame's change over nodes of the types.
void add_squares(const FieldView& field, int64_t t, std::span<const int32_t> node_type,
                 const NodeTypeSet& types, Moments& squares) {
  const std::span<const float> now = field.frame(t);
  const std::span<const float> next = field.frame(t + 1);
  const auto components = static_cast<size_t>(field.components);
  for (size_t n = 0; n < node_type.size(); ++n) {
    if (!types.contains(node_type[n])) continue;
    for (size_t i = n * components; i < (n + 1) * components; ++i) {
      const double change = static_cast<double>(next[i]) - static_cast<double>(now[i]);
      squares.add(change * change);
    }
  }
}

double root_mean_square(const FieldStatistics& stats) {
  double sum = 0;
  for (size_t c = 0; c < stats.mean.size(); ++c) {
    sum += stats.mean[c] * stats.mean[c] + stats.std[c] * stats.std[c];
  }
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(stats.mean.size(), 1)));
}

}  // namespace

std::optional<SplitChange> quiet_split(const Dataset& dataset, std::string_view split,
                                       const std::vector<std::string>& fields, const NodeTypeSet& types) {
  std::vector<SplitChange> changes;
  std::vector<Moments> squares;
  for (const std::string& name : fields) {
    const FieldInfo& info = dataset.field(name);
    if (!info.dynamic || info.on != FieldOn::node || info.dtype != DType::f32) continue;
    changes.push_back({name, 0, root_mean_square(dataset.field_stats(name, types, Quantity::change))});
    squares.emplace_back();
  }
  const int64_t trajectories = changes.empty() ? 0 : dataset.size(split);
  const int64_t count = std::min(trajectories, kMostTrajectories);
  for (int64_t i = 0; i < count; ++i) {
    const TrajectoryView trajectory = dataset.trajectory(split, i * trajectories / count);
    const int64_t pairs = trajectory.frames() - 1;
    const int64_t read = std::min(pairs, kMostPairs);
    for (int64_t k = 0; k < read; ++k) {
      for (size_t f = 0; f < changes.size(); ++f) {
        add_squares(trajectory.field(changes[f].field), k * pairs / read, trajectory.mesh().node_type, types,
                    squares[f]);
      }
    }
  }
  std::optional<SplitChange> quietest;
  for (size_t f = 0; f < changes.size(); ++f) {
    changes[f].split = std::sqrt(squares[f].mean);
    if (squares[f].count <= 0 || changes[f].training <= 0 || changes[f].ratio() < kQuietSplitRatio) continue;
    if (!quietest || changes[f].ratio() > quietest->ratio()) quietest = changes[f];
  }
  return quietest;
}

std::string quiet_split_warning(std::string_view split, const SplitChange& change) {
  const std::string times =
      change.split > 0 ? fmt::format("changes {:.0f} times less than the training data", change.ratio())
                       : std::string("does not change");
  return fmt::format(
      "split \"{}\" {} ({}: {:.1e} a frame, {:.1e} in training): the best checkpoint and errors on it say "
      "little",
      split, times, change.field, change.split, change.training);
}

}  // namespace meshgrad
