// SPDX-License-Identifier: Apache-2.0
// Small VTU files for tests.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace meshgrad::test {

/// A strip of triangles between two rows of points, and a field "u" on its points: `first` at the first, one
/// more at each further one.
struct VtuFile {
  int columns = 2;          ///< points in a row
  double left = 0;          ///< x of the first column; they are 1 apart
  double first = 0;         ///< of the field
  std::string time = {};    ///< TimeValue; empty: none
  std::string more = {};    ///< further XML of PointData
  std::string cells = {};   ///< XML of CellData
  bool reverse = false;     ///< cells in the other order
  std::string fields = {};  ///< further XML of FieldData

  std::string text() const {
    std::vector<std::string> points, triangles;
    for (int row = 0; row < 2; ++row)
      for (int i = 0; i < columns; ++i) points.push_back(fmt::format("{} {} 0", left + i, row));
    for (int i = 0; i + 1 < columns; ++i) {
      triangles.push_back(fmt::format("{} {} {}", i, i + 1, columns + i));
      triangles.push_back(fmt::format("{} {} {}", i + 1, columns + i + 1, columns + i));
    }
    if (reverse) triangles = std::vector(triangles.rbegin(), triangles.rend());
    std::vector<size_t> ends(triangles.size());
    for (size_t i = 0; i < ends.size(); ++i) ends[i] = 3 * (i + 1);
    std::vector<double> values(points.size());
    std::iota(values.begin(), values.end(), first);
    std::string all = fields;
    if (!time.empty())
      all += fmt::format("<DataArray type=\"Float64\" Name=\"TimeValue\" NumberOfTuples=\"1\">{}</DataArray>",
                         time);
    return fmt::format(
        "<VTKFile type=\"UnstructuredGrid\"><UnstructuredGrid><FieldData>{}</FieldData><Piece "
        "NumberOfPoints=\"{}\" NumberOfCells=\"{}\"><Points><DataArray type=\"Float64\" "
        "NumberOfComponents=\"3\">{}</DataArray></Points><Cells><DataArray type=\"Int32\" "
        "Name=\"connectivity\">{}</DataArray><DataArray type=\"Int32\" "
        "Name=\"offsets\">{}</DataArray><DataArray "
        "type=\"UInt8\" Name=\"types\">{}</DataArray></Cells><PointData><DataArray type=\"Float64\" "
        "Name=\"u\">{}</DataArray>{}</PointData><CellData>{}</CellData></Piece></UnstructuredGrid></VTKFile>",
        all, points.size(), triangles.size(), fmt::join(points, " "), fmt::join(triangles, " "),
        fmt::join(ends, " "), fmt::join(std::vector<int>(ends.size(), 5), " "), fmt::join(values, " "), more,
        cells);
  }
};

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

inline void write_vtu(const std::filesystem::path& path, const VtuFile& file) {
  write_text(path, file.text());
}

/// A .pvd list of these files, 0.1 s apart.
inline void write_pvd(const std::filesystem::path& path, const std::vector<std::string>& files) {
  std::string entries;
  for (size_t i = 0; i < files.size(); ++i)
    entries += fmt::format("<DataSet timestep=\"{}\" file=\"{}\"/>", 0.1 * static_cast<double>(i), files[i]);
  write_text(path, "<VTKFile type=\"Collection\"><Collection>" + entries + "</Collection></VTKFile>");
}

}  // namespace meshgrad::test
