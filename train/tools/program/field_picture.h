// SPDX-License-Identifier: Apache-2.0
// Pictures of fields on a mesh as SVG: panels above each other, each with a title and a colour bar. The field
// is an embedded PNG; text, ticks and colour bars are drawn by the viewer.
#pragma once
#include <meshgrad/train/tools/program/point_field.h>

#include <string>
#include <vector>

namespace meshgrad {

struct ComparisonText {
  std::string caption;  ///< above the picture, for example "velocity, 50 steps ahead"
  std::string unit;     ///< "m/s"; may be empty
  /// [nodes]: the error's RMSE and maximum are over nodes where it is not 0. Empty: over all nodes.
  std::span<const std::uint8_t> predicted;
};

/// What pictures compare, at each node: magnitudes of fields of several components, and the absolute error,
/// by the magnitude of the difference.
struct FieldComparison {
  std::vector<float> prediction, truth, error;  ///< [nodes]
  double low = 0, high = 0;                     ///< of the truth, where it is finite
  double rmse = 0;                              ///< over all components
  double largest = 0;                           ///< of the error
};
/// RMSE and largest error as ComparisonText::predicted says. InvalidArgument when sizes do not fit.
FieldComparison compare_fields(const MeshView& mesh, const PointField& prediction, const PointField& truth,
                               std::span<const std::uint8_t> predicted);

/// An SVG in one file, of three panels: prediction, truth (both on the truth's range, so that their colours
/// can be compared) and the absolute error from zero, with its root mean square over predicted nodes and all
/// components, and its maximum there. A field with several components is drawn by its magnitude, the error by
/// the magnitude of the difference. `truth` and `prediction` are [nodes, components]; a value that is not
/// finite is drawn grey.
///
/// The mesh has its true proportions, and values are interpolated linearly over triangles (quads as two, the
/// nearest on top); a mesh without cells is drawn as dots, a graph on cells as the cells of its source, each
/// of one colour. Meshes of three dimensions are seen along their shortest axis; tetrahedra and hexahedra are
/// cut by the plane in the middle of it, which the caption names. `width` is the width of the picture in
/// pixels, at least 400. InvalidArgument when sizes do not fit.
std::string draw_comparison(const MeshView& mesh, const PointField& prediction, const PointField& truth,
                            const ComparisonText& text, int width = 1200);

}  // namespace meshgrad
