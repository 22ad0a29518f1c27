// SPDX-License-Identifier: Apache-2.0
// Offsets that let float32 hold float64 numbers far from zero: coordinates of a map, an absolute pressure.
#pragma once
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// Whether float32 rounds a component of `values` [rows, components] to steps above 1e-5 of its range. A
/// component of one value has no range: it is coarse unless it is 0.
bool is_coarse_in_f32(std::span<const double> values, int components);
/// Likewise for positions [nodes, dim], compared with a typical edge (the extent over the dim-th root of
/// nodes), where they are also more than four extents from 0.
bool are_coarse_positions(std::span<const double> positions, int dim);

/// What to subtract from each component of coarse numbers, [rows, components]: a round number near the middle
/// of its range, 0 where that does not help. Empty: nothing to subtract.
std::vector<double> offset_for(std::span<const double> wide, int components);
/// Likewise for positions [nodes, dim].
std::array<double, 3> origin_for(std::span<const double> wide_positions, int dim);

/// Sets f32 values to their numbers (`wide`, or the values where that is empty) less an offset of each
/// component, in f64 before they are rounded.
void subtract_offset(std::vector<float>& values, std::span<const double> wide,
                     std::span<const double> offset);

/// What float32 loses of numbers (`wide`, or `values` where that is empty) less an offset, which may be
/// empty: "steps of 1 in a range of 3", for a warning. Nothing where steps are small: below 1e-5 of the range
/// for `wide`, and 1e-3 for `values`, which have no further digits to save.
std::optional<std::string> coarse_steps(std::span<const float> values, std::span<const double> wide,
                                        std::span<const double> offset, int components);

}  // namespace meshgrad
