// SPDX-License-Identifier: Apache-2.0
// What named arrays say of a graph: its edges in either layout, how many nodes it has where there are no
// positions, and masks that split its nodes.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/array_map.h>
#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

/// Edges of an array [2, edges] or [edges, 2], as [2, edges]. Throws DataError with `where` for other shapes,
/// and for [2, 2] that means different edges both ways, unless the array is called edge_index or mesh_edge
/// (which are [2, edges]).
std::vector<int32_t> edges_of_array(const NamedArray& array, const std::string& where);

/// How many nodes a graph of `edges` listed edges has, of which no positions say it: what node types, masks
/// and arrays `node:NAME` have, or else all arrays without a prefix. Their rows are the first axis of
/// [nodes] and [nodes, components], and the second of [frames, nodes, components]. Throws DataError with
/// `where` when two of them differ or none is there, and for an array without a prefix whose rows may as well
/// be edges.
int64_t nodes_of_graph(const std::vector<NamedArray>& arrays, int64_t edges, const std::string& where);

/// Names of the arrays that node_splits reads.
std::set<std::string> node_masks(const std::vector<NamedArray>& arrays);

/// A field "maskSUFFIX" for arrays of booleans train_maskSUFFIX, valid_maskSUFFIX (or val_maskSUFFIX) and
/// test_maskSUFFIX [nodes], of which the first and another are there; of masks [nodes, splits] a field
/// "maskSUFFIX.I" for each column of several. Throws DataError with `where` for other shapes, for numbers
/// that are neither 0 nor 1, and for a node in two splits.
std::vector<RawField> node_splits(const std::vector<NamedArray>& arrays, int64_t nodes,
                                  const std::string& where);

}  // namespace meshgrad
