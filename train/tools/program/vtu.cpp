// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/cell_list.h>
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/tools/program/markup.h>
#include <meshgrad/train/tools/program/vtu.h>

#include <algorithm>
#include <set>
#include <vector>

namespace meshgrad {
namespace {

/// The XML text, and the arrays that are appended to it in reverse: the last element names the first bytes.
/// VTK reads any order; meshio 5.3.5 looks elements up by offsets that it rewrites on the way, which cannot
/// collide in this order, and otherwise takes one array for another.
class VtuDocument {
 public:
  std::string xml;

  template <class T>
  void array(std::string_view type, std::string_view attributes, std::span<const T> values) {
    xml += fmt::format("        <DataArray type=\"{}\" {} format=\"appended\" offset=\"", type, attributes);
    const auto bytes = std::as_bytes(values);
    arrays_.push_back({xml.size(), {bytes.begin(), bytes.end()}});
    xml += "\"/>\n";
  }

  /// Writes the offsets into `xml` and returns the appended bytes. Once, at the end.
  std::vector<std::byte> finish() {
    std::vector<std::byte> appended;
    for (auto array = arrays_.rbegin(); array != arrays_.rend(); ++array) {
      xml.insert(array->at, std::to_string(appended.size()));
      const std::uint64_t size = array->bytes.size();
      const auto header = std::as_bytes(std::span(&size, 1));
      appended.insert(appended.end(), header.begin(), header.end());
      appended.insert(appended.end(), array->bytes.begin(), array->bytes.end());
    }
    return appended;
  }

 private:
  struct Array {
    std::size_t at;  // where its offset belongs in `xml`
    std::vector<std::byte> bytes;
  };
  std::vector<Array> arrays_;
};

template <class T>
std::vector<T> padded_to_three(std::span<const T> values) {
  std::vector<T> result;
  result.reserve(values.size() / 2 * 3);
  for (std::size_t i = 0; i + 1 < values.size(); i += 2)
    result.insert(result.end(), {values[i], values[i + 1], T{0}});
  return result;
}

template <class T>
void add_numbers(VtuDocument& document, std::string_view type, std::string_view name, int components,
                 std::span<const T> values) {
  const std::string attributes = fmt::format("Name=\"{}\" NumberOfComponents=\"{}\"", escape_markup(name),
                                             components == 2 ? 3 : components);
  if (components == 2) {
    document.array<T>(type, attributes, padded_to_three(values));
  } else {
    document.array<T>(type, attributes, values);
  }
}

/// An offset needs more digits than float32 has.
void add_vectors(VtuDocument& document, std::string_view name, int components, std::span<const float> values,
                 std::span<const double> offset) {
  if (std::all_of(offset.begin(), offset.end(), [](double o) { return o == 0; })) {
    add_numbers(document, "Float32", name, components, values);
    return;
  }
  std::vector<double> sums(values.begin(), values.end());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += offset[i % static_cast<std::size_t>(components)];
  add_numbers<double>(document, "Float64", name, components, sums);
}

/// What is drawn: cells, and the points that they refer to.
struct DrawnCells {
  std::span<const int32_t> corners, ends;
  std::span<const uint8_t> types;
  bool nodes_are_cells = false;
  CellList made;  // what the spans refer to, where the mesh has no such list
};

CellList list_of(const MeshView& mesh) {
  if (!mesh.cells.empty()) return cells_of(mesh.cells, mesh.cell_kind);
  CellList list;
  const std::vector<std::int32_t> lines = drawn_edges(mesh);
  for (std::size_t i = 0; i < lines.size(); i += 2) list.add(VtkCell::line, std::span(lines).subspan(i, 2));
  for (std::int32_t node = 0; lines.empty() && node < mesh.nodes; ++node)
    list.add(VtkCell::vertex, std::span(&node, 1));
  return list;
}

/// A mesh that moves has positions of its nodes, not of the source's points.
DrawnCells drawn_cells(const MeshView& mesh, bool moved) {
  const SourceMesh* source = mesh.source;
  if (source != nullptr && !(moved && source->nodes_are_cells()))
    return {source->corners, source->ends, source->types, source->nodes_are_cells(), {}};
  DrawnCells drawn;
  drawn.made = list_of(mesh);
  drawn.corners = drawn.made.corners;
  drawn.ends = drawn.made.ends;
  drawn.types = drawn.made.types;
  return drawn;
}

void add_cells(VtuDocument& document, const DrawnCells& cells) {
  const std::vector<std::int64_t> ends(cells.ends.begin(), cells.ends.end());
  document.xml += "      <Cells>\n";
  document.array<std::int32_t>("Int32", "Name=\"connectivity\"", cells.corners);
  document.array<std::int64_t>("Int64", "Name=\"offsets\"", ends);
  document.array<std::uint8_t>("UInt8", "Name=\"types\"", cells.types);
  document.xml += "      </Cells>\n";
}

}  // namespace

void write_vtu(const std::filesystem::path& path, const MeshView& mesh, std::span<const PointField> fields,
               double time, const PointField* positions) {
  check_mesh("write_vtu", mesh);
  if (positions != nullptr) {
    check_field("write_vtu", mesh, *positions);
    if (positions->components != 2 && positions->components != 3)
      throw invalid_argument("write_vtu", "positions of 2 or 3 components", positions->name);
  }
  std::set<std::string> names;
  if (!mesh.node_type.empty()) {
    names.insert("node_type");
    if (std::ssize(mesh.node_type) != mesh.nodes) {
      throw invalid_argument("write_vtu", fmt::format("node types of {} nodes, or none", mesh.nodes),
                             fmt::format("{}", mesh.node_type.size()));
    }
  }
  for (const PointField& field : fields) {
    check_field("write_vtu", mesh, field);
    if (field.name.empty() || !names.insert(field.name).second) {
      throw invalid_argument("write_vtu", "field names that are not empty and occur once",
                             fmt::format("\"{}\"", field.name));
    }
  }
  const DrawnCells cells = drawn_cells(mesh, positions != nullptr);
  const std::string_view data = cells.nodes_are_cells ? "CellData" : "PointData";
  const std::int64_t points = cells.nodes_are_cells ? std::ssize(mesh.source->points) / mesh.dim : mesh.nodes;
  VtuDocument document;
  document.xml = fmt::format(
      "<?xml version=\"1.0\"?>\n{}"
      "<VTKFile type=\"UnstructuredGrid\" version=\"1.0\" byte_order=\"LittleEndian\" "
      "header_type=\"UInt64\">\n"
      "  <UnstructuredGrid>\n"
      "    <FieldData>\n"
      "      <DataArray type=\"Float64\" Name=\"TimeValue\" NumberOfTuples=\"1\" "
      "format=\"ascii\">{}</DataArray>\n"
      "    </FieldData>\n"
      "    <Piece NumberOfPoints=\"{}\" NumberOfCells=\"{}\">\n"
      "      <{}>\n",
      kMark, time, points, cells.ends.size(), data);
  if (!mesh.node_type.empty()) document.array<std::int32_t>("Int32", "Name=\"node_type\"", mesh.node_type);
  for (const PointField& field : fields) {
    add_vectors(document, field.name, field.components, field.values, field.offset);
  }
  document.xml += fmt::format("      </{}>\n      <Points>\n", data);
  if (positions != nullptr) {
    add_vectors(document, "Points", positions->components, positions->values, positions->offset);
  } else {
    add_vectors(document, "Points", mesh.dim, cells.nodes_are_cells ? mesh.source->points : mesh.positions,
                mesh.origin);
  }
  document.xml += "      </Points>\n";
  add_cells(document, cells);
  document.xml += "    </Piece>\n  </UnstructuredGrid>\n  <AppendedData encoding=\"raw\">\n_";
  const std::vector<std::byte> appended = document.finish();

  AtomicFile file(path);
  file.write(document.xml);
  file.write(appended);
  file.write("\n  </AppendedData>\n</VTKFile>\n");
  file.commit();
}

void write_pvd(const std::filesystem::path& path, std::span<const PvdEntry> entries) {
  std::string xml = fmt::format(
      "<?xml version=\"1.0\"?>\n{}<VTKFile type=\"Collection\" version=\"1.0\" byte_order=\"LittleEndian\" "
      "header_type=\"UInt64\">\n  <Collection>\n",
      kMark);
  for (const PvdEntry& entry : entries) {
    xml += fmt::format("    <DataSet timestep=\"{}\" part=\"0\" file=\"{}\"/>\n", entry.time,
                       escape_markup(entry.file));
  }
  xml += "  </Collection>\n</VTKFile>\n";
  write_file_atomically(path, xml);
}

}  // namespace meshgrad
