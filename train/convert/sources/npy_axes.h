// SPDX-License-Identifier: Apache-2.0
// The order of an array's axes, where the user says it, arrays that repeat for every frame, and numbers of
// nodes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/array_map.h>

namespace meshgrad {

/// The array as [frames, rows, components]. `axes` names the axes that it has, as "components,nodes": each of
/// frames, components, and one of nodes, edges and cells, at most once. Throws ConfigError for other words,
/// and DataError with `where` for an array with another number of axes.
void put_axes_in_order(NamedArray& array, const std::string& axes, const std::string& where);

/// Where along its first axis an array first differs from its beginning; 0: it repeats.
int64_t first_change(const NpyArray& array);

/// The first of an array's first axis alone.
void keep_first(NamedArray& array);

/// Numbers of nodes from 0 on, of those that begin with `first`; negative ones stay. Throws DataError with
/// `where` for numbers that do not fit, and, where it is not given, for those that use node 1 and never node
/// 0.
void count_from_zero(std::vector<int32_t>& numbers, std::optional<int> first, int64_t nodes,
                     const std::string& where);

}  // namespace meshgrad
