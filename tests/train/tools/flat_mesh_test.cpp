// SPDX-License-Identifier: Apache-2.0
// Meshes as a page draws them.
#include <doctest/doctest.h>
#include <meshgrad/train/tools/extras/flat_mesh.h>

#include <cmath>
#include <limits>
#include <vector>

namespace meshgrad {
namespace {

MeshView flat_case(int dim, const std::vector<float>& positions, CellKind kind,
                   const std::vector<int32_t>& cells) {
  MeshView mesh;
  mesh.nodes = static_cast<int64_t>(positions.size()) / dim;
  mesh.dim = dim;
  mesh.positions = positions;
  mesh.cell_kind = kind;
  mesh.nodes_per_cell = nodes_per_cell(kind);
  mesh.cells = cells;
  return mesh;
}

TEST_CASE("a surface is two triangles for each quad") {
  const std::vector<float> positions{0, 0, 2, 0, 2, 1, 0, 1};
  const std::vector<int32_t> cells{0, 1, 2, 3};
  const FlatMesh flat(flat_case(2, positions, CellKind::quad, cells));
  CHECK(flat.vertices() == 4);
  const auto json = flat.json();
  CHECK(json.at("aspect") == 0.5);
  CHECK(json.at("x") == "AAD/////AAA=");  // 0, 1, 1, 0 of 65535
  CHECK(json.at("y") == "/////wAAAAA=");
  CHECK(json.at("triangles") == "AAABAAIAAAACAAMA");
  CHECK(json.at("cut") == "");
  const std::vector<float> values{1.0f, 2.0f, std::numeric_limits<float>::quiet_NaN(), 3.0f};
  const auto numbers = flat.values(values);
  CHECK(numbers.at("low") == 1.0);
  CHECK(numbers.at("high") == 3.0);
  CHECK(numbers.at("values") == "AAD/f////v8=");  // 0, 32767, not finite, 65534
}

TEST_CASE("a solid is cut in the middle of its shortest axis") {
  // A tetrahedron over the plane z = 0, and its image below.
  const std::vector<float> positions{0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, -1};
  const std::vector<int32_t> cells{0, 1, 2, 3, 0, 1, 2, 4};
  const FlatMesh flat(flat_case(3, positions, CellKind::tetrahedron, cells));
  CHECK(flat.json().at("cut") == "z = 0");
  // The corners on the plane count as above: the section of the lower one is the triangle itself.
  CHECK(flat.vertices() == 3);
  const std::vector<float> values{5.0f, 6.0f, 7.0f, 100.0f, 200.0f};
  const auto numbers = flat.values(values);
  CHECK(numbers.at("low") == doctest::Approx(5.0));
  CHECK(numbers.at("high") == doctest::Approx(7.0));

  const std::vector<float> raised{0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2};
  const std::vector<int32_t> one{0, 1, 2, 3};
  const FlatMesh half(flat_case(3, raised, CellKind::tetrahedron, one));
  CHECK(half.vertices() == 3);
  const std::vector<float> heights{0.0f, 0.0f, 0.0f, 2.0f};
  CHECK(half.values(heights).at("low") == doctest::Approx(1.0));
  CHECK(half.values(heights).at("high") == doctest::Approx(1.0));
}

TEST_CASE("a surface in space has its nearest triangles last") {
  const std::vector<float> positions{0, 0, 1, 4, 0, 1, 0, 3, 1, 0, 0, 0, 4, 0, 0, 0, 3, 0};
  const std::vector<int32_t> cells{0, 1, 2, 3, 4, 5};
  const FlatMesh flat(flat_case(3, positions, CellKind::triangle, cells));
  CHECK(flat.json().at("triangles") == "AwAEAAUAAAABAAIA");
}

TEST_CASE("a mesh without cells has no triangles") {
  const std::vector<float> positions{0, 0, 1, 0, 1, 1};
  const FlatMesh flat(flat_case(2, positions, CellKind::none, {}));
  CHECK(flat.vertices() == 3);
  CHECK(flat.json().at("triangles") == "");
}

}  // namespace
}  // namespace meshgrad
