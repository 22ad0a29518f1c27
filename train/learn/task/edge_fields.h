// SPDX-License-Identifier: Apache-2.0
// Fields on edges that a model reads (data.edge_inputs), after the relative positions where there are some.
// A row of such a field belongs to a directed edge, so that both directions of a connection may differ.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/learn/config/config.h>

#include <cstdint>
#include <span>
#include <vector>

namespace meshgrad {

/// Throws ConfigError for a field that is not f32 on edges, and where data.hops or data.period make edges
/// that the fields have no rows for.
std::vector<FieldInfo> edge_fields(const Dataset& dataset, const DataConfig& config);

/// Columns of all of them.
int64_t columns_of(std::span<const FieldInfo> fields);

/// Writes them side by side into each edge's row, which has `width` columns: `rows` points to the first
/// one's.
template <class T>
void write_edge_fields(std::span<const FieldInfo> fields, const TrajectoryView& trajectory, int64_t frame,
                       int64_t width, T* rows);

}  // namespace meshgrad
