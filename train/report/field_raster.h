// SPDX-License-Identifier: Apache-2.0
// From a mesh to samples on a pixel grid.
#pragma once
#include <meshgrad/train/report/image.h>
#include <meshgrad/train/report/point_field.h>

#include <array>
#include <span>
#include <vector>

namespace meshgrad {

/// Where the mesh's axes go: the two that are drawn (right and up) and the one that is looked along.
struct Projection {
  std::array<int, 3> axes{0, 1, -1};  ///< the last is -1 in two dimensions
  double left = 0, bottom = 0;        ///< lower corner of the mesh in the drawn axes
  double spread_x = 1, spread_y = 1;  ///< extents, positive
};

/// Two dimensions: x right, y up. Three: the longest axis right, the next up.
Projection project(const MeshView& mesh);

/// Draws `values` [nodes] into the rectangle of the image, several samples a pixel; nothing where there is no
/// mesh. Values are coloured by `map` over [low, high].
void raster_field(Image& image, int x, int y, int width, int height, const MeshView& mesh,
                  const Projection& projection, std::span<const float> values, ColourMap map, double low,
                  double high);

}  // namespace meshgrad
