// SPDX-License-Identifier: Apache-2.0
// What one file of VTK contains: points, cells and arrays of numbers. Sources: "VTK File Formats" (VTK User's
// Guide) and docs.vtk.org/en/latest/vtk_file_formats.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <meshgrad/train/data/vtk_cell.h>

namespace meshgrad {

struct VtkArray {
  std::string name;
  int components = 1;
  std::variant<std::vector<float>, std::vector<double>, std::vector<int64_t>> values;  ///< [rows, components]

  size_t size() const {
    return std::visit([](const auto& numbers) { return numbers.size(); }, values);
  }
};

struct VtkGrid {
  VtkArray points;                    ///< [points, 3], float or double
  std::vector<int64_t> connectivity;  ///< points of all cells, one cell after another
  std::vector<int64_t> ends;          ///< [cells]: where a cell's points end
  std::vector<uint8_t> types;         ///< [cells]: a VtkCell, or another number
  std::vector<int64_t> faces;      ///< of polyhedra: how many points a face has, then these, face after face
  std::vector<int64_t> face_ends;  ///< [cells] into `faces`; empty without polyhedra
  std::vector<VtkArray> point_arrays, cell_arrays;
  std::vector<VtkArray> field_arrays;  ///< of the whole grid, such as TimeValue
  std::vector<std::string> left_out;   ///< names of arrays that hold no numbers

  int64_t point_count() const { return static_cast<int64_t>(points.size() / 3); }
  int64_t cell_count() const { return static_cast<int64_t>(ends.size()); }
};

/// The grid of an XML file of type UnstructuredGrid or PolyData (.vtu, .vtp): ascii, base64 and appended data
/// (raw or base64), uncompressed or by zlib, in either byte order; its pieces one after another. Defined for
/// any bytes; throws DataError that names file and array. Its cells are linear (linear_grid in vtk_cells.h).
VtkGrid parse_vtk_xml(std::span<const std::byte> file, const std::string& name);
/// The same before linear_grid, for join_pieces (vtk_pieces.h).
VtkGrid read_vtk_piece(std::span<const std::byte> file, const std::string& name);
/// Only the arrays of the whole grid, of an XML file or a legacy one.
std::vector<VtkArray> field_data_of_vtk(std::span<const std::byte> file, const std::string& name);

/// The grid of a legacy file (.vtk, versions 1 to 5.1) of type UNSTRUCTURED_GRID or POLYDATA, ASCII or
/// BINARY. Likewise.
VtkGrid parse_vtk_legacy(std::span<const std::byte> file, const std::string& name);

}  // namespace meshgrad
