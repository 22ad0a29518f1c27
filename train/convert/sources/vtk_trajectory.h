// SPDX-License-Identifier: Apache-2.0
// From the grids of VTK files, frame after frame, to one trajectory.
#pragma once
#include <meshgrad/train/convert/sources/trajectory_source.h>
#include <meshgrad/train/convert/sources/vtk_grid.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace meshgrad {

/// Frames on one mesh. Cells of the largest dimension make the mesh: lines, triangles, quads, polygons,
/// tetrahedra, hexahedra, polyhedra. Mixed surfaces become quads ([a, b, c, c]) or polygons, mixed solids,
/// wedges and pyramids hexahedra that repeat nodes, with the same edges; with polyhedra among them all are
/// given by their faces. The plane z = constant is 2-D.
///
/// Point arrays are fields on nodes, cell arrays on cells, or on the edges of a mesh of lines; arrays of at
/// most 64 floats of the whole grid are on the graph, but for its time. Arrays that VTK itself adds
/// (vtkGhostType and others), and a cell array with the name of a point array, are left out.
///
/// Node types come from the array `node_types`: of points; or of cells, where a node has the largest number
/// of the cells around it, of those of lower dimension (boundary faces) where there are any. Empty:
/// "node_type", if there is one; another name: an array node_type is left out; nothing: so it is, and no
/// array has types.
class VtkTrajectory {
 public:
  /// Throws DataError for a grid without cells, and node types that are no integers from 0 to 65535.
  VtkTrajectory(const VtkGrid& grid, std::string name, std::optional<std::string> node_types,
                WarningCallback warn);

  /// Of a grid with the nodes of the first frame in a different order, the first that differs. Nothing for a
  /// mesh that moved before.
  std::optional<size_t> first_permuted_node(const VtkGrid& grid) const;
  /// Whether a further frame has these cells, in any order; `grid` then has its arrays of cells in the order
  /// of the first frame. Its points may have moved.
  bool take_cell_order(VtkGrid& grid) const;
  /// A further frame of the same cells. Points that move become the field "world_pos" (moving_positions.h).
  /// Throws DataError where an array of the first frame is missing or of another kind.
  void append(const VtkGrid& grid, const std::string& name);
  /// `series`: of frames over time, also where this part has only one.
  RawTrajectory finish(bool series);

 private:
  struct Source {
    FieldOn on = FieldOn::node;  ///< or cell, or graph
    VtkArray values;             ///< of all frames so far
    bool changes = false;        ///< of a graph: over the frames so far
    std::string without = {};    ///< of a graph: the first frame that has none; the one before holds for it
  };

  void choose_cells(const VtkGrid& grid);
  void build_lines(const VtkGrid& grid);
  void build_surface(const VtkGrid& grid);
  void build_solid(const VtkGrid& grid);
  void build_polyhedra(const VtkGrid& grid);
  void choose_arrays(const VtkGrid& grid);
  void read_node_types(const VtkGrid& grid);
  void check_types(const VtkGrid& grid, const std::string& name) const;
  VtkArray rows_of(const VtkArray& array, FieldOn on) const;
  void choose_graph_arrays(const VtkGrid& grid, std::vector<std::string>& left_out);
  RawField field_of(Source& source, bool series) const;
  void keep_condition(Source& source, const std::string& name);
  void keep_points(const VtkArray& points);

  RawTrajectory trajectory_;
  std::optional<std::string> wanted_types_;
  WarningCallback warn_;
  int cell_dim_ = 0;
  std::vector<int64_t> cells_;  ///< those of the mesh, by their number in the grid
  std::vector<Source> sources_;
  std::set<std::string> names_;    ///< of all arrays so far
  VtkGrid mesh_;                   ///< of the first frame, without arrays
  std::optional<VtkArray> types_;  ///< of its points, where they are named
  std::vector<double> moving_;     ///< of all frames, [frames, points, 3], if some frame has others
};

/// The time of a frame where the file says it: the array TimeValue (or TIME) of one number.
std::optional<double> time_of(const VtkGrid& grid);

}  // namespace meshgrad
