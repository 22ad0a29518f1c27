// SPDX-License-Identifier: Apache-2.0
// How a mesh and its fields become a model's inputs. Nodes: see FieldSelection. Edges: relative position
// (sender minus receiver) and its length; of a mesh that moves, first those of the current positions, then
// those at rest; then the fields data.edge_inputs. Meshes of a batch are one graph, their disjoint union.
// Source: Pfaff et al. (2021), appendix A.1.
#pragma once
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/learn/task/batch_layout.h>
#include <meshgrad/train/learn/task/field_selection.h>
#include <meshgrad/train/learn/task/sample.h>

#include <string_view>
#include <tuple>
#include <vector>

namespace meshgrad {

/// Where samples and predictions are computed before they are stored. Reused between samples to avoid
/// allocation.
struct SampleScratch {
  FieldState state;
  std::vector<float> noise;      ///< in state.current, whole; in state.previous its walk: [nodes, outputs]
  std::vector<float> next;       ///< the target fields one frame later
  std::vector<float> positions;  ///< current ones: [nodes, dimensions]
  std::vector<float> wide_nodes, wide_edges, wide_world;          ///< rows of a batch that stores 16 bits
  std::tuple<std::vector<float>, std::vector<double>> predicted;  ///< rows of a prediction, one is used
};

/// Columns that edges of a mesh in `dim` dimensions read.
int64_t edge_inputs(const FieldSelection& fields, int dim);

/// [nodes, node_inputs]: inputs that are targets too come from `state`, others from frame t.
template <class T>
void write_nodes(const FieldSelection& fields, const TrajectoryView& trajectory, int64_t t,
                 const FieldState& state, T* rows);
/// [edges, edge_inputs]: current positions come from `state` if they are a target, else from frame t.
template <class T>
void write_edges(const FieldSelection& fields, const TrajectoryView& trajectory, int64_t t,
                 const FieldState& state, SampleScratch& scratch, T* rows);

/// The same into a batch on the host, normalised, for one mesh of a union, whose rows begin after those of
/// `before`.
void write_node_features(const FieldSelection& fields, const Batch& batch, const TrajectoryView& trajectory,
                         int64_t t, const FieldState& state, const Dataset::MeshSizes& before,
                         const Normalizers& normalizers, SampleScratch& scratch);
void write_edge_features(const FieldSelection& fields, const Batch& batch, const TrajectoryView& trajectory,
                         int64_t t, const FieldState& state, const Dataset::MeshSizes& before,
                         const Normalizers& normalizers, SampleScratch& scratch);

/// The disjoint union of meshes as one graph, mesh by mesh: writes one with its indices moved past those of
/// the meshes before it, and returns the sizes of them all. The graph's tensors lie on the host and are large
/// enough; `counts`, if it has them, are written too.
Dataset::MeshSizes append_to_union(const Graph& graph, const MeshView& mesh,
                                   const Dataset::MeshSizes& before);

}  // namespace meshgrad
