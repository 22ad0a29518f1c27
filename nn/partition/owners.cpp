// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/nn/partition/owners.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace meshgrad {
namespace {

void need_parts(std::string_view where, int64_t parts) {
  if (parts >= 1 && parts <= std::numeric_limits<int32_t>::max()) return;
  throw invalid_argument(where, "1 part or more", std::to_string(parts));
}

/// A node and its coordinate along the axis that is cut.
struct Key {
  float at;
  int32_t node;
  bool operator<(const Key& other) const { return at < other.at || (at == other.at && node < other.node); }
};

class Bisection {
 public:
  Bisection(std::span<const float> positions, int dim, std::span<const int32_t> weights)
      : positions_(positions), dim_(static_cast<size_t>(dim)), weights_(weights) {
    keys_.resize(weights.size());
    owners_.resize(weights.size());
    for (size_t i = 0; i < keys_.size(); ++i) keys_[i] = {0.0F, static_cast<int32_t>(i)};
  }

  /// Assigns the nodes of `keys` to the ranks [first, first + parts).
  void assign(std::span<Key> keys, int32_t first, int32_t parts) {
    if (parts == 1 || keys.empty()) {
      for (const Key& key : keys) owners_[static_cast<size_t>(key.node)] = first;
      return;
    }
    const size_t axis = longest_axis(keys);
    double total = 0.0;
    for (Key& key : keys) {
      key.at = positions_[static_cast<size_t>(key.node) * dim_ + axis];
      total += weight(key);
    }
    const int32_t below = parts / 2;
    const size_t cut = cut_at(keys, total * below / parts);
    assign(keys.first(cut), first, below);
    assign(keys.subspan(cut), first + below, parts - below);
  }
  std::vector<int32_t> run(int64_t parts) {
    assign(keys_, 0, static_cast<int32_t>(parts));
    return std::move(owners_);
  }

 private:
  double weight(const Key& key) const { return weights_[static_cast<size_t>(key.node)]; }

  size_t longest_axis(std::span<const Key> keys) const {
    size_t longest = 0;
    float most = -1.0F;
    for (size_t axis = 0; axis < dim_; ++axis) {
      float low = std::numeric_limits<float>::infinity(), high = -low;
      for (const Key& key : keys) {
        const float at = positions_[static_cast<size_t>(key.node) * dim_ + axis];
        low = std::min(low, at);
        high = std::max(high, at);
      }
      if (high - low > most) {
        most = high - low;
        longest = axis;
      }
    }
    return longest;
  }

  /// The number of first keys that weigh nearest to `wanted`; they are then in front. Halves what is
  /// undecided each time, so it takes linear time.
  size_t cut_at(std::span<Key> keys, double wanted) const {
    size_t begin = 0, end = keys.size();
    double before = 0.0;  // weight in front of `begin`
    while (end - begin > 1) {
      const size_t middle = begin + (end - begin) / 2;
      const auto at = [&](size_t i) { return keys.begin() + static_cast<std::ptrdiff_t>(i); };
      std::nth_element(at(begin), at(middle), at(end));
      double half = 0.0;
      for (size_t i = begin; i < middle; ++i) half += weight(keys[i]);
      if (before + half <= wanted) {
        before += half;
        begin = middle;
      } else {
        end = middle;
      }
    }
    if (begin == end) return begin;
    // The node on the border goes where the error is smaller.
    return before + weight(keys[begin]) - wanted < wanted - before ? begin + 1 : begin;
  }

  std::span<const float> positions_;
  size_t dim_;
  std::span<const int32_t> weights_;
  std::vector<Key> keys_;
  std::vector<int32_t> owners_;
};

}  // namespace

std::vector<int32_t> node_weights(std::span<const SortedEdges> edge_sets, int64_t nodes) {
  std::vector<int32_t> weights(static_cast<size_t>(nodes), 1);
  for (const SortedEdges& set : edge_sets)
    for (size_t i = 0; i < weights.size(); ++i)
      weights[i] += set.receiver_offsets[i + 1] - set.receiver_offsets[i];
  return weights;
}

std::vector<int32_t> bisect_coordinates(std::span<const float> positions, int dim,
                                        std::span<const int32_t> weights, int64_t parts) {
  constexpr std::string_view kWhere = "bisect_coordinates";
  need_parts(kWhere, parts);
  if (dim < 1 || positions.size() != weights.size() * static_cast<size_t>(dim)) {
    throw invalid_argument(kWhere, "positions [nodes, dim] for " + std::to_string(weights.size()) + " nodes",
                           std::to_string(positions.size()) + " values for dim " + std::to_string(dim));
  }
  for (size_t i = 0; i < positions.size(); ++i) {
    if (std::isfinite(positions[i])) continue;
    throw invalid_argument(
        kWhere, "finite positions",
        std::to_string(positions[i]) + " at node " + std::to_string(i / static_cast<size_t>(dim)));
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] >= 0) continue;
    throw invalid_argument(kWhere, "weights of 0 or more",
                           std::to_string(weights[i]) + " at node " + std::to_string(i));
  }
  return Bisection(positions, dim, weights).run(parts);
}

void check_owners(std::span<const int32_t> owners, int64_t nodes, int64_t parts) {
  constexpr std::string_view kWhere = "partition";
  need_parts(kWhere, parts);
  if (owners.size() != static_cast<size_t>(nodes)) {
    throw invalid_argument(kWhere, "a rank for each of " + std::to_string(nodes) + " nodes",
                           std::to_string(owners.size()));
  }
  for (size_t i = 0; i < owners.size(); ++i) {
    if (owners[i] >= 0 && owners[i] < parts) continue;
    throw invalid_argument("partition: node " + std::to_string(i),
                           "a rank in 0 .. " + std::to_string(parts - 1), std::to_string(owners[i]));
  }
}

}  // namespace meshgrad
