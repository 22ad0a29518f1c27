// SPDX-License-Identifier: Apache-2.0
// A mesh that a solver has partitioned over ranks, and a trainer on its parts.
#pragma once
#include <meshgrad/train/embed/online_trainer.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "train/small_run.h"

namespace meshgrad::test::given_parts {

/// A wave on a square, whose node n belongs to rank (n / 4) % ranks: stripes that touch in many places.
struct Wave {
  static constexpr int kRanks = 3;
  SquareRecord record;
  int64_t frames;
  std::vector<int32_t> types, owners;
  explicit Wave(int side, int64_t count, double phase)
      : record(wave_record(side, count, phase)),
        frames(count),
        types(record.node_type.begin(), record.node_type.end()) {
    for (int32_t node = 0; node < nodes(); ++node) owners.push_back(node / 4 % kRanks);
  }
  /// The same wave, whose nodes are numbered rank after rank.
  Wave by_rank() const {
    Wave wave = *this;
    std::vector<size_t> order(types.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t node) { return owners[node]; });
    std::vector<int32_t> number(types.size());
    for (size_t i = 0; i < order.size(); ++i) {
      number[order[i]] = static_cast<int32_t>(i);
      wave.types[i] = types[order[i]];
      wave.owners[i] = owners[order[i]];
    }
    for (int32_t& node : wave.record.cells) node = number[static_cast<size_t>(node)];
    for (size_t i = 0; i < record.velocity.size(); ++i) {  // of frame after frame
      const size_t row = i / 2 % order.size(), frame = i / 2 - row;
      wave.record.velocity[i] = record.velocity[2 * (frame + order[row]) + i % 2];
      if (frame == 0) wave.record.mesh_pos[i] = record.mesh_pos[2 * order[row] + i % 2];
    }
    return wave;
  }
  int32_t nodes() const { return static_cast<int32_t>(types.size()); }
  int32_t owner(int32_t node) const { return owners[static_cast<size_t>(node)]; }
  std::span<const float> velocity(int64_t t) const {
    const auto size = 2 * types.size();
    return std::span(record.velocity).subspan(static_cast<size_t>(t) * size, size);
  }
  MeshArrays whole() const {
    return {.positions = record.mesh_pos, .cells = record.cells, .nodes_per_cell = 3, .node_type = types};
  }
};

/// What one rank's solver has of it: own nodes, ghosts in an order of its own, cells with an own node.
struct Part {
  std::vector<int32_t> nodes;  // of the whole mesh
  int32_t owned = 0;
  std::vector<float> positions;
  std::vector<int32_t> cells, types, ghost_owner, ghost_number;

  Part(const Wave& wave, int rank) {
    std::vector<int32_t> local(wave.types.size(), -1), counts(Wave::kRanks), number;
    for (int32_t node = 0; node < wave.nodes(); ++node)
      number.push_back(counts[static_cast<size_t>(wave.owner(node))]++);
    const auto add = [&](int32_t node) {
      int32_t& at = local[static_cast<size_t>(node)];
      if (at >= 0) return;
      at = static_cast<int32_t>(nodes.size());
      nodes.push_back(node);
    };
    for (int32_t node = 0; node < wave.nodes(); ++node)
      if (wave.owner(node) == rank) add(node);
    owned = static_cast<int32_t>(nodes.size());
    const std::vector<int32_t>& all = wave.record.cells;
    for (size_t cell = all.size(); cell >= 3; cell -= 3) {  // ghosts come in the reverse order
      const auto corners = std::span(all).subspan(cell - 3, 3);
      if (std::ranges::none_of(corners, [&](int32_t node) { return wave.owner(node) == rank; })) continue;
      for (const int32_t node : corners) {
        add(node);
        cells.push_back(local[static_cast<size_t>(node)]);
      }
    }
    for (const int32_t node : nodes) {
      const auto at = static_cast<size_t>(node);
      positions.insert(positions.end(), {wave.record.mesh_pos[2 * at], wave.record.mesh_pos[2 * at + 1]});
      types.push_back(wave.types[at]);
      if (static_cast<int32_t>(types.size()) <= owned) continue;
      ghost_owner.push_back(wave.owner(node));
      ghost_number.push_back(number[at]);
    }
  }
  MeshArrays arrays() const {
    return {.positions = positions,
            .cells = cells,
            .nodes_per_cell = 3,
            .node_type = types,
            .in_parts = true,
            .ghost_owner = ghost_owner,
            .ghost_number = ghost_number};
  }
  /// Rows of its nodes; those of ghosts have no meaning.
  std::vector<float> rows(std::span<const float> whole) const {
    std::vector<float> values;
    for (const int32_t node : nodes) {
      const bool ghost = static_cast<int32_t>(values.size()) >= 2 * owned;
      for (size_t c = 0; c < 2; ++c)
        values.push_back(ghost ? -1e3f : whole[2 * static_cast<size_t>(node) + c]);
    }
    return values;
  }
};

inline Config parts_config() {
  Config config;
  config.run.seed = 5;
  config.model.width = 16;
  config.model.blocks = 2;
  config.train.batch = 2;
  config.train.noise = 0;
  config.optimizer.lr = 2e-3;
  return config;
}

inline OnlineOptions parts_options() {
  return {.fields = {{.name = "velocity", .components = 2}}, .capacity = 8, .held_out_every = 4};
}

struct Learned {
  double loss = 0, held_out = 0;
};

/// Frames on two meshes, and steps after each.
inline Learned learn(OnlineTrainer& trainer, std::span<const Wave> waves,
                     const std::function<MeshArrays(size_t)>& mesh,
                     const std::function<std::vector<float>(size_t, int64_t)>& velocity) {
  Learned learned;
  for (size_t i = 0; i < waves.size(); ++i) {
    trainer.set_mesh(mesh(i));
    for (int64_t t = 0; t < waves[i].frames; ++t) {
      trainer.set_field("velocity", velocity(i, t));
      trainer.append();
    }
    learned.loss = trainer.train(4).loss;
  }
  learned.held_out = trainer.held_out_loss();
  return learned;
}

inline Learned learn_whole(OnlineTrainer& trainer, std::span<const Wave> waves) {
  return learn(
      trainer, waves, [&](size_t i) { return waves[i].whole(); },
      [&](size_t i, int64_t t) {
        const std::span<const float> all = waves[i].velocity(t);
        return std::vector<float>(all.begin(), all.end());
      });
}

inline Learned learn_parts(OnlineTrainer& trainer, std::span<const Wave> waves, int rank) {
  std::vector<Part> parts;
  for (const Wave& wave : waves) parts.emplace_back(wave, rank);
  return learn(
      trainer, waves, [&](size_t i) { return parts[i].arrays(); },
      [&](size_t i, int64_t t) { return parts[i].rows(waves[i].velocity(t)); });
}

}  // namespace meshgrad::test::given_parts
