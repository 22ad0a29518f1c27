// SPDX-License-Identifier: Apache-2.0
// The order of an array's axes, where the user says it, and arrays that repeat for every frame.
#pragma once
#include <string>

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

}  // namespace meshgrad
