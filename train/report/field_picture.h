// SPDX-License-Identifier: Apache-2.0
// Pictures of fields on a mesh: panels above each other, each with a title and a colour bar.
#pragma once
#include <meshgrad/train/report/image.h>
#include <meshgrad/train/report/point_field.h>

#include <filesystem>
#include <span>
#include <string>

namespace meshgrad {

struct FieldPanel {
  std::string title;
  std::span<const float> values;  ///< [nodes]; a value that is not finite is drawn grey
  ColourMap map = ColourMap::viridis;
  double low = 0, high = 1;  ///< the ends of the colour bar; values outside take the colour of the end
  std::string unit;          ///< above the colour bar; may be empty
};

/// Draws the panels with the mesh's true proportions, values interpolated linearly over triangles (quads as
/// two, the faces of tetrahedra and hexahedra likewise, the nearest on top); a mesh without cells is drawn as
/// dots. Meshes of three dimensions are seen along their shortest axis. `width` is the width of the picture
/// in pixels, at least 400. InvalidArgument when sizes do not fit.
Image draw_fields(const MeshView& mesh, std::span<const FieldPanel> panels, const std::string& caption,
                  int width);

struct ComparisonText {
  std::string caption;  ///< above the picture, for example "velocity, 50 steps ahead"
  std::string unit;     ///< "m/s"; may be empty
};

/// Three panels: prediction, truth (both on the truth's range, so that their colours can be compared) and the
/// absolute error from zero, with its root mean square over all nodes and components, and its maximum. Of a
/// field with several components the magnitude is shown, and as error the magnitude of the difference.
/// `truth` and `prediction` are [nodes, components].
Image draw_comparison(const MeshView& mesh, const PointField& prediction, const PointField& truth,
                      const ComparisonText& text, int width = 1200);

}  // namespace meshgrad
