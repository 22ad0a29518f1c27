// SPDX-License-Identifier: Apache-2.0
// A mesh and values on it as data that a page draws (page/fields.js).
#pragma once
#include <meshgrad/train/tools/program/drawn_mesh.h>
#include <meshgrad/train/tools/program/field_raster.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

namespace meshgrad {

/// The triangles of a mesh as a picture shows them (draw_comparison): in the plane of its two longest axes,
/// volumes as their section, the nearest last.
class FlatMesh {
 public:
  explicit FlatMesh(const MeshView& mesh);

  /// Vertices that a page can number with 16 bits.
  static constexpr size_t kMostVertices = 65535;
  size_t vertices() const { return vertices_.size(); }
  /// {"aspect": height / width, "x", "y": 0 to 65535 across the picture, from the top left, "triangles":
  /// three numbers each, none for a mesh of dots, "cut": "z = 0.5" or ""}; arrays are little-endian u16 in
  /// base64.
  nlohmann::ordered_json json() const;
  /// Of a value at each node of the mesh: {"low", "high", "values": 0 to 65534 between them, 65535 where it
  /// is not finite}.
  nlohmann::ordered_json values(std::span<const float> of_nodes) const;

 private:
  /// Between two nodes of the drawn mesh, or at one.
  struct Vertex {
    double x = 0, y = 0;  ///< 0 to 1
    int32_t from = 0, to = 0;
    double share = 0;  ///< of `to` in the value
  };
  void add_triangles(const MeshView& view);
  void add_sections(const MeshView& view);

  DrawnMesh drawn_;
  Projection projection_;
  std::vector<Vertex> vertices_;
  std::vector<uint32_t> triangles_;
};

}  // namespace meshgrad
