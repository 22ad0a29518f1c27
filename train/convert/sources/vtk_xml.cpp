// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <zlib.h>
#include <pugixml.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/offsets.h>
#include <meshgrad/train/convert/sources/vtk_cells.h>
#include <meshgrad/train/convert/sources/vtk_grid.h>
#include <meshgrad/train/convert/sources/vtk_numbers.h>

namespace meshgrad {
namespace {

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

// The first `bytes` bytes of base64 texts that follow each other: VTK encodes the header of compressed data
// on its own, with its own padding. Nothing when there are fewer, or another character.
std::optional<std::vector<std::byte>> decode_base64(std::string_view text, size_t bytes) {
  std::vector<std::byte> decoded;
  decoded.reserve(std::min(bytes, text.size()) + 3);
  uint32_t group = 0;
  int digits = 0, padding = 0;
  for (size_t i = 0; i < text.size() && decoded.size() < bytes; ++i) {
    const char c = text[i];
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r') continue;
    const int digit = c == '=' ? 0 : base64_digit(c);
    if (digit < 0 || (c != '=' && padding > 0)) return std::nullopt;
    padding += c == '=' ? 1 : 0;
    group = (group << 6U) | static_cast<uint32_t>(digit);
    if (++digits < 4) continue;
    if (padding > 2) return std::nullopt;
    for (int k = 0; k < 3 - padding; ++k)
      decoded.push_back(static_cast<std::byte>((group >> static_cast<unsigned>(16 - 8 * k)) & 0xffU));
    group = 0;
    digits = padding = 0;
  }
  if (decoded.size() < bytes) return std::nullopt;
  decoded.resize(bytes);
  return decoded;
}

// The stored form of one array.
struct Encoded {
  std::string_view text;
  bool base64 = false;

  std::optional<std::vector<std::byte>> first(size_t bytes) const {
    if (bytes > text.size()) return std::nullopt;
    if (base64) return decode_base64(text, bytes);
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    return std::vector<std::byte>(begin, begin + bytes);
  }
  /// Why first() gives nothing.
  std::string fault() const {
    for (size_t i = 0; base64 && i < text.size(); ++i) {
      const char c = text[i];
      if (c != ' ' && c != '\n' && c != '\t' && c != '\r' && c != '=' && base64_digit(c) < 0)
        return fmt::format("character 0x{:02x} at {}", static_cast<unsigned char>(c), i);
    }
    return fmt::format("{} characters", text.size());
  }
};

struct PieceRows {
  size_t points = 0, cells = 0;
};

constexpr size_t kMostCopies = 16;  // of a face

class XmlReader {
 public:
  XmlReader(std::span<const std::byte> file, std::string name) : name_(std::move(name)) {
    const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
    std::string head(text);
    if (const size_t at = text.find("<AppendedData"); at != std::string_view::npos) {
      head = std::string(text.substr(0, at)) + "</VTKFile>";
      find_appended(text.substr(at));
    }
    const pugi::xml_parse_result result =
        document_.load_buffer(head.data(), head.size(), pugi::parse_default, pugi::encoding_utf8);
    root_ = document_.child("VTKFile");
    if (!result) {
      const auto offset = static_cast<size_t>(std::max<std::ptrdiff_t>(result.offset, 0));
      const auto lines = std::count(
          head.begin(), head.begin() + static_cast<std::ptrdiff_t>(std::min(offset, head.size())), '\n');
      throw broken("XML of VTK", fmt::format("{} at line {}", result.description(), lines + 1));
    }
    if (!root_) throw broken("an element VTKFile", "none");
  }

  VtkGrid read() {
    const pugi::xml_node grid = read_header();
    const bool surface = std::string_view(grid.name()) == "PolyData";
    for (const pugi::xml_node& piece : grid.children("Piece"))
      surface ? read_surface(piece) : read_cells(piece);
    for (const pugi::xml_node& array : grid.child("FieldData").children("DataArray")) read_field_array(array);
    return std::move(grid_);
  }

  std::vector<VtkArray> read_field_data() {
    const pugi::xml_node grid = read_header();
    for (const pugi::xml_node& array : grid.child("FieldData").children("DataArray")) read_field_array(array);
    return std::move(grid_.field_arrays);
  }

 private:
  /// How numbers are stored; returns the element of the grid.
  pugi::xml_node read_header() {
    const std::string type = root_.attribute("type").value();
    big_endian_ = std::string_view(root_.attribute("byte_order").value()) == "BigEndian";
    header_bytes_ = std::string_view(root_.attribute("header_type").value()) == "UInt64" ? 8 : 4;
    const std::string_view compressor = root_.attribute("compressor").value();
    compressed_ = !compressor.empty();
    if (compressed_ && compressor != "vtkZLibDataCompressor") {
      throw data_error(name_, "data without compression or compressed by zlib", compressor,
                       "save it with the compressor None or ZLib");
    }
    if (type != "UnstructuredGrid" && type != "PolyData") {
      throw data_error(name_, "a VTK file of type UnstructuredGrid or PolyData",
                       type.empty() ? "no type" : type,
                       type.starts_with("P") || type.find("Block") != std::string::npos
                           ? "merge the parts: in ParaView, Merge Blocks, then save as .vtu"
                           : "in ParaView, apply Append Datasets, then save as .vtu");
    }
    return root_.child(type.c_str());
  }

  DataError broken(std::string_view needed, std::string_view got) const {
    return data_error(name_, needed, got, "copy the file again, or write it with VTK or meshio");
  }
  std::string where(const pugi::xml_node& array) const {
    return fmt::format("{}: array {}", name_, array.attribute("Name").value());
  }
  DataError broken_array(const pugi::xml_node& array, std::string_view needed, std::string_view got) const {
    return data_error(where(array), needed, got, "copy the file again, or write it with VTK or meshio");
  }

  void find_appended(std::string_view element) {
    const size_t tag = element.find('>');
    const std::string_view attributes = element.substr(0, tag);
    appended_.base64 = attributes.find("base64") != std::string_view::npos;
    if (tag == std::string_view::npos) throw broken("appended data", "none");
    const size_t mark = element.find('_', tag);
    if (mark == std::string_view::npos) throw broken("appended data that begin with \"_\"", "none");
    appended_.text = element.substr(mark + 1);
    has_appended_ = true;
  }

  size_t count_of(const pugi::xml_node& piece, const char* attribute) const {
    const unsigned long long count = piece.attribute(attribute).as_ullong();
    // Far beyond what any array of a file can hold; products with it do not overflow.
    constexpr unsigned long long kMost = 1ULL << 40;
    if (count > kMost) throw broken(fmt::format("fewer {}", attribute), fmt::format("{}", count));
    return count;
  }

  // Words of the header of an array.
  std::vector<uint64_t> words(const pugi::xml_node& array, const Encoded& data, size_t count) const {
    const auto bytes = data.first(count * header_bytes_);
    if (!bytes)
      throw broken_array(array, fmt::format("a header of {} bytes", count * header_bytes_), data.fault());
    const VtkValues numbers = vtk_values(*bytes, {'u', header_bytes_}, big_endian_);
    std::vector<uint64_t> found;
    for (const int64_t number : std::get<std::vector<int64_t>>(numbers))
      found.push_back(static_cast<uint64_t>(number));
    return found;
  }

  std::vector<std::byte> stored_bytes(const pugi::xml_node& array, const Encoded& data, size_t bytes) const {
    const uint64_t stored = words(array, data, 1)[0];
    if (stored != bytes) throw broken_array(array, fmt::format("{} bytes", bytes), fmt::format("{}", stored));
    auto all = data.first(header_bytes_ + bytes);
    if (!all) throw broken_array(array, fmt::format("{} bytes", bytes), data.fault());
    all->erase(all->begin(), all->begin() + static_cast<std::ptrdiff_t>(header_bytes_));
    return std::move(*all);
  }

  // [blocks, bytes of a block, bytes of the last one, compressed bytes of each], then the blocks.
  std::vector<std::byte> inflated_bytes(const pugi::xml_node& array, const Encoded& data,
                                        size_t bytes) const {
    const uint64_t blocks = words(array, data, 1)[0];
    if (blocks == 0 && bytes == 0) return {};
    if (blocks == 0 || blocks > data.text.size())
      throw broken_array(array, "compressed blocks", fmt::format("{}", blocks));
    const std::vector<uint64_t> header = words(array, data, 3 + blocks);
    const uint64_t block = header[1], last = header[2];
    uint64_t stored = 0;
    for (size_t i = 3; i < header.size(); ++i) stored += std::min<uint64_t>(header[i], data.text.size() + 1);
    constexpr uint64_t kMostRatio = 1032;  // of deflate
    // All but the last block are of `block` bytes; VTK gives 0 for a last one of that size, too.
    const uint64_t end = last == 0 ? block : last;
    const bool too_large = end > bytes || (block > 0 && blocks - 1 > bytes / block);
    if (too_large || stored > data.text.size() || bytes / kMostRatio > stored + 1 ||
        (blocks - 1) * block + end != bytes) {
      throw broken_array(
          array, fmt::format("blocks of {} bytes together", bytes),
          fmt::format("{} of {} bytes, the last of {}, in {} bytes", blocks, block, end, data.text.size()));
    }
    const size_t header_bytes = header.size() * header_bytes_;
    const auto all = data.first(header_bytes + stored);
    if (!all) throw broken_array(array, fmt::format("blocks of {} bytes", stored), data.fault());
    std::vector<std::byte> inflated(bytes);
    size_t from = header_bytes, to = 0;
    for (size_t i = 3; i < header.size(); ++i) {
      const size_t wanted = i + 1 == header.size() && last != 0 ? last : block;
      auto got = static_cast<uLongf>(wanted);
      const int status = uncompress(reinterpret_cast<Bytef*>(inflated.data() + to), &got,
                                    reinterpret_cast<const Bytef*>(all->data() + from), header[i]);
      if (status != Z_OK || got != wanted)
        throw broken_array(array, "blocks of zlib", fmt::format("status {} in block {}", status, i - 3));
      from += header[i];
      to += wanted;
    }
    return inflated;
  }

  VtkValues read_values(const pugi::xml_node& array, VtkType type, size_t count) const {
    const std::string_view format = array.attribute("format").as_string("ascii");
    if (format == "ascii") {
      VtkText text(array.child_value());
      auto values = text.values(count, type);
      if (!values || !text.word().empty())
        throw broken_array(array, fmt::format("{} numbers", count),
                           VtkText(array.child_value()).fault(count, type));
      return std::move(*values);
    }
    Encoded data{array.child_value(), true};
    if (format == "appended") {
      const unsigned long long offset = array.attribute("offset").as_ullong();
      if (!has_appended_ || offset > appended_.text.size())
        throw broken_array(array, "an offset in the appended data", fmt::format("{}", offset));
      data = {appended_.text.substr(offset), appended_.base64};
    } else if (format != "binary") {
      throw broken_array(array, "format ascii, binary or appended", format);
    }
    const size_t bytes = count * type.bytes;
    return vtk_values(compressed_ ? inflated_bytes(array, data, bytes) : stored_bytes(array, data, bytes),
                      type, big_endian_);
  }

  int components_of(const pugi::xml_node& array) const {
    const int components = array.attribute("NumberOfComponents").as_int(1);
    if (components >= 1 && components <= 65535) return components;
    throw broken_array(array, "1 to 65535 components", fmt::format("{}", components));
  }

  // Nothing for an array that holds no numbers.
  std::optional<VtkArray> read_array(const pugi::xml_node& array, size_t rows) const {
    const auto type = vtk_type(array.attribute("type").value());
    if (!type) return std::nullopt;
    const int components = components_of(array);
    return VtkArray{array.attribute("Name").value(), components,
                    read_values(array, *type, rows * static_cast<size_t>(components))};
  }

  // The array of this name, as integers.
  std::vector<int64_t> indices(const pugi::xml_node& section, const char* name, size_t count) const {
    const pugi::xml_node array = section.find_child_by_attribute("DataArray", "Name", name);
    const auto type = vtk_type(array.attribute("type").value());
    if (!array || !type || type->kind == 'f') {
      throw broken(fmt::format("{} with an array {} of integers", section.name(), name),
                   array ? array.attribute("type").value() : "none");
    }
    return std::get<std::vector<int64_t>>(read_values(array, *type, count));
  }

  // A count that a file gives, before an array of as many numbers is read.
  size_t bounded(size_t count) const {
    if (count > (size_t{1} << 40U)) throw broken("fewer faces", fmt::format("{}", count));
    return count;
  }

  // Returns how many cells it has.
  size_t append_cells(const pugi::xml_node& section, size_t cells, size_t first_point) {
    if (cells == 0) return 0;
    const std::vector<int64_t> ends = indices(section, "offsets", cells);
    const std::string fault = find_descent(std::span<const int64_t>(ends), int64_t{1} << 40);
    if (!fault.empty()) throw broken("offsets of cells that ascend", fault);
    const auto begin = static_cast<int64_t>(grid_.connectivity.size());
    for (const int64_t end : ends) grid_.ends.push_back(begin + end);
    for (const int64_t point : indices(section, "connectivity", static_cast<size_t>(ends.back())))
      grid_.connectivity.push_back(std::min(point, int64_t{1} << 41) + static_cast<int64_t>(first_point));
    return cells;
  }

  void read_cells(const pugi::xml_node& piece) {
    const PieceRows rows{count_of(piece, "NumberOfPoints"), count_of(piece, "NumberOfCells")};
    if (rows.points == 0) return;
    const auto first_point = static_cast<size_t>(grid_.point_count());
    const pugi::xml_node cells = piece.child("Cells");
    append_cells(cells, rows.cells, first_point);
    if (rows.cells > 0) {
      for (const int64_t type : indices(cells, "types", rows.cells))
        grid_.types.push_back(static_cast<uint8_t>(std::clamp<int64_t>(type, 0, 255)));
      append_faces(cells, rows.cells, static_cast<int64_t>(first_point));
    }
    append_arrays(piece, rows);
  }

  // The faces of the last `cells` cells, of which some may be polyhedra: until VTK 9.3 the stream "faces"
  // with the end of each cell's in "faceoffsets" (-1: none), then faces of their own, which cells list.
  void append_faces(const pugi::xml_node& section, size_t cells, int64_t first_point) {
    const size_t first = grid_.types.size() - cells;
    const auto is_polyhedron = [&](size_t cell) {
      return grid_.types[first + cell] == static_cast<uint8_t>(VtkCell::polyhedron);
    };
    size_t found = 0;
    while (found < cells && !is_polyhedron(found)) ++found;
    if (found == cells) return;
    const bool listed =
        static_cast<bool>(section.find_child_by_attribute("DataArray", "Name", "face_offsets"));
    const CellFaces faces = listed ? listed_faces(section, cells) : stream_of_faces(section, cells);
    for (size_t cell = 0, begin = 0; cell < cells; ++cell) {
      if (faces.ends[cell] < 0) continue;  // another kind of cell
      const auto end = static_cast<size_t>(faces.ends[cell]);
      if (end < begin || end > faces.stream.size()) {
        throw broken(fmt::format("offsets of faces that ascend, to {} at most", faces.stream.size()),
                     fmt::format("{} after {} at cell {}", end, begin, cell));
      }
      const auto stream = std::span(faces.stream).subspan(begin, end - begin);
      if (is_polyhedron(cell) && !add_polyhedron(grid_, first + cell, stream, first_point))
        throw broken("faces of at least 3 points", fmt::format("the faces of cell {}", cell));
      begin = end;
    }
  }

  // As add_polyhedron takes them, and where each cell's end.
  struct CellFaces {
    std::vector<int64_t> stream, ends;
  };

  static size_t largest(const std::vector<int64_t>& numbers) {
    const auto most = std::max_element(numbers.begin(), numbers.end());
    return most == numbers.end() || *most < 0 ? 0 : static_cast<size_t>(*most);
  }

  CellFaces stream_of_faces(const pugi::xml_node& section, size_t cells) const {
    CellFaces faces;
    faces.ends = indices(section, "faceoffsets", cells);
    faces.stream = indices(section, "faces", bounded(largest(faces.ends)));
    return faces;
  }

  CellFaces listed_faces(const pugi::xml_node& section, size_t cells) const {
    const std::vector<int64_t> cell_ends = indices(section, "polyhedron_offsets", cells);
    const std::vector<int64_t> list = indices(section, "polyhedron_to_faces", bounded(largest(cell_ends)));
    const std::vector<int64_t> face_ends =
        indices(section, "face_offsets", list.empty() ? 0 : bounded(largest(list)) + 1);
    const std::vector<int64_t> points = indices(section, "face_connectivity", bounded(largest(face_ends)));
    CellFaces faces;
    size_t at = 0;
    for (const int64_t cell_end : cell_ends) {
      if (cell_end < static_cast<int64_t>(at)) {
        throw broken("offsets of faces that ascend",
                     fmt::format("{} after {} at cell {}", cell_end, at, faces.ends.size()));
      }
      faces.stream.push_back(cell_end - static_cast<int64_t>(at));
      for (; at < static_cast<size_t>(cell_end); ++at) {
        const int64_t face = list[at];
        const int64_t begin = face <= 0 ? 0 : face_ends[static_cast<size_t>(face) - 1];
        const int64_t end = face < 0 ? -1 : face_ends[static_cast<size_t>(face)];
        if (begin < 0 || end < begin)
          throw broken("offsets of faces that ascend",
                       fmt::format("{} after {} at face {}", end, begin, face));
        // A face that several cells list is here once for each: by a damaged file many times its size.
        if (faces.stream.size() > kMostCopies * (points.size() + list.size()) + kMostCopies)
          throw broken("faces of at most two cells", fmt::format("face {} in many cells", face));
        faces.stream.push_back(end - begin);
        faces.stream.insert(faces.stream.end(), points.begin() + begin, points.begin() + end);
      }
      faces.ends.push_back(static_cast<int64_t>(faces.stream.size()));
    }
    return faces;
  }

  void read_surface(const pugi::xml_node& piece) {
    PieceRows rows{count_of(piece, "NumberOfPoints"), 0};
    if (rows.points == 0) return;
    const auto first_point = static_cast<size_t>(grid_.point_count());
    constexpr std::array<std::pair<const char*, VtkCell>, 4> kSections{{{"Verts", VtkCell::poly_vertex},
                                                                        {"Lines", VtkCell::poly_line},
                                                                        {"Polys", VtkCell::polygon},
                                                                        {"Strips", VtkCell::triangle_strip}}};
    for (const auto& [section, type] : kSections) {
      const std::string count = fmt::format("NumberOf{}", section);
      const size_t cells = append_cells(piece.child(section), count_of(piece, count.c_str()), first_point);
      grid_.types.insert(grid_.types.end(), cells, static_cast<uint8_t>(type));
      rows.cells += cells;
    }
    append_arrays(piece, rows);
  }

  void append_arrays(const pugi::xml_node& piece, const PieceRows& rows) {
    const bool first = grid_.points.size() == 0;
    const pugi::xml_node points = piece.child("Points").child("DataArray");
    auto array = read_array(points, rows.points);
    if (!array || array->components != 3)
      throw broken("points with 3 coordinates", array ? fmt::format("{}", array->components) : "no numbers");
    append(grid_.points, std::move(*array), first);
    append_section(piece.child("PointData"), rows.points, grid_.point_arrays, first);
    append_section(piece.child("CellData"), rows.cells, grid_.cell_arrays, first);
  }

  void append_section(const pugi::xml_node& section, size_t rows, std::vector<VtkArray>& arrays, bool first) {
    size_t position = 0;
    for (const pugi::xml_node& array : section.children("DataArray")) {
      auto read = read_array(array, rows);
      if (!read) {
        if (first) grid_.left_out.emplace_back(array.attribute("Name").value());
        continue;
      }
      if (first) arrays.emplace_back();
      if (position >= arrays.size())
        throw broken_array(array, fmt::format("{} arrays, as in the first piece", arrays.size()),
                           fmt::format("array {}", position + 1));
      append(arrays[position++], std::move(*read), first);
    }
    if (position != arrays.size())
      throw broken("the same arrays in all pieces",
                   fmt::format("{} of {} in one piece", position, arrays.size()));
  }

  void append(VtkArray& all, VtkArray&& piece, bool first) const {
    if (first) {
      all = std::move(piece);
      return;
    }
    if (all.name != piece.name || all.components != piece.components ||
        all.values.index() != piece.values.index()) {
      throw data_error(fmt::format("{}: array {}", name_, piece.name),
                       fmt::format("\"{}\", {}, as in the first piece", all.name, describe_array(all)),
                       describe_array(piece), "save the file in one piece");
    }
    std::visit(
        [&](auto& values) {
          const auto& more = std::get<std::remove_reference_t<decltype(values)>>(piece.values);
          values.insert(values.end(), more.begin(), more.end());
        },
        all.values);
  }

  void read_field_array(const pugi::xml_node& array) {
    const unsigned long long tuples = array.attribute("NumberOfTuples").as_ullong();
    if (tuples == 0 || tuples > (1ULL << 40)) return;
    if (auto read = read_array(array, tuples)) grid_.field_arrays.push_back(std::move(*read));
  }

  std::string name_;
  pugi::xml_document document_;
  pugi::xml_node root_;
  Encoded appended_;
  bool has_appended_ = false;
  bool big_endian_ = false, compressed_ = false;
  size_t header_bytes_ = 4;
  VtkGrid grid_;
};

}  // namespace

VtkGrid parse_vtk_xml(std::span<const std::byte> file, const std::string& name) {
  return linear_grid(XmlReader(file, name).read(), name);
}

VtkGrid read_vtk_piece(std::span<const std::byte> file, const std::string& name) {
  return XmlReader(file, name).read();
}

std::vector<VtkArray> field_data_of_vtk(std::span<const std::byte> file, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  return text.starts_with("# vtk") ? parse_vtk_legacy(file, name).field_arrays
                                   : XmlReader(file, name).read_field_data();
}

}  // namespace meshgrad
