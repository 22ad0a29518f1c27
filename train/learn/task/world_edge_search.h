// SPDX-License-Identifier: Apache-2.0
// WorldEdgeSearch: the edge set "world" of a batch (data.world_radius), found on the host or by a device with
// the same bits. Features: the relative current position, sender minus receiver, and its length.
#pragma once
#include <meshgrad/engine/error.h>
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/data/world_edges.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/batch_layout.h>

#include <span>
#include <string_view>
#include <vector>

namespace meshgrad {

/// What data.period and data.hops ask for.
MeshEdgeOptions edge_options(const DataConfig& config);

/// Room of a batch of so many nodes for world edges; 0 where there are none.
int64_t world_room(const DataConfig& config, int64_t nodes);

/// What WorldEdgeSearch::find returned, read back; 0 of nothing. Waits for the device.
int64_t missing_edges(const Runtime& runtime, const Tensor& missing);

/// Positions are the current ones, f32 [nodes, dim], of one mesh.
class WorldEdgeSearch {
 public:
  /// Without data.world_radius there are none, and only any() may be asked.
  WorldEdgeSearch(const DataConfig& config, int dim);

  bool any() const { return options_.radius > 0.0; }
  const WorldEdgeOptions& options() const { return options_; }
  int dim() const { return dim_; }
  int64_t inputs() const { return dim_ + 1; }
  /// The same for batches that have as much room as their frames need, as in validation.
  WorldEdgeSearch without_limit() const;
  /// Whether data.world_edges_per_node, which binds only training, limits them.
  bool limited() const { return limited_; }
  /// Most world edges of a mesh of so many nodes in a batch: its share, or most_world_edges.
  int64_t limit(int64_t nodes) const;
  /// The error of a frame with so many world edges on `nodes` nodes, more than its batch has room for.
  ConfigError refused(int64_t nodes, int64_t edges, std::string_view frame, std::string_view fix) const;

  /// The world edges of frame t. Throws ConfigError for more than `most`.
  MeshEdges edges_at(const TrajectoryView& trajectory, int64_t t, std::span<const float> positions,
                     int64_t most) const;
  /// Appends them to the union's graph after those of `before`, writes their features to `rows`, [world
  /// edges, inputs()], and returns the sizes of all so far.
  template <class T>
  Dataset::MeshSizes append(const Graph& graph, const MeshEdges& found, const TrajectoryView& trajectory,
                            std::span<const float> positions, const Dataset::MeshSizes& before,
                            T* rows) const;
  /// The same into a batch on the host, normalised; `wide` is memory to work in.
  Dataset::MeshSizes write(const Batch& batch, const MeshEdges& found, const TrajectoryView& trajectory,
                           std::span<const float> positions, const Dataset::MeshSizes& before,
                           const Normalizers& normalizers, std::vector<float>& wide) const;

  /// Adds what a device reads to find the world edges of a batch itself; without world edges nothing.
  void add_to(BatchLayout& layout) const;
  /// Whether the device finds those of this batch.
  bool is_for_device(const Batch& batch) const;
  /// A mesh's place in the union: its number, and its first node.
  struct Place {
    int32_t mesh = 0;
    int64_t node = 0;
  };
  /// Writes what add_to has added, on the host.
  void write_search(const Batch& batch, const MeshView& mesh, std::span<const float> positions,
                    const Place& place, const Normalizers& normalizers) const;
  /// Finds the world edges of such a batch where it is; of others nothing. Returns i64 [1], on the device:
  /// how many had no room.
  Tensor find(Runtime& runtime, const Batch& batch) const;

 private:
  WorldEdgeOptions options_;
  MeshEdgeOptions edges_;
  double per_node_;
  int dim_;
  bool limited_ = true;
};

}  // namespace meshgrad
