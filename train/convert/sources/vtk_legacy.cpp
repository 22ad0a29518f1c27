// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/vtk_cells.h>
#include <meshgrad/train/convert/sources/vtk_grid.h>
#include <meshgrad/train/convert/sources/vtk_numbers.h>

namespace meshgrad {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Names of arrays have %20 for a space.
std::string decoded_name(std::string_view name) {
  std::string text;
  for (size_t i = 0; i < name.size(); ++i) {
    const int high = name[i] == '%' && i + 2 < name.size() ? hex_digit(name[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(name[i + 2]) : -1;
    if (low >= 0) {
      text += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      text += name[i];
    }
  }
  return text;
}

class LegacyReader {
 public:
  LegacyReader(std::span<const std::byte> file, std::string name)
      : name_(std::move(name)),
        text_(std::string_view(reinterpret_cast<const char*>(file.data()), file.size())) {}

  VtkGrid read() {
    const std::string_view first = text_.line();
    if (!first.starts_with("# vtk DataFile Version"))
      throw unexpected("a first line \"# vtk DataFile Version\"", first);
    text_.line();  // the title
    const std::string_view form = text_.word();
    binary_ = form == "BINARY";
    if (!binary_ && form != "ASCII") throw unexpected("ASCII or BINARY in line 3", form);
    for (std::string_view word = text_.word(); !word.empty(); word = text_.word()) read_section(word);
    if (grid_.points.size() == 0) throw broken("POINTS", "none");
    read_polyhedra();
    return std::move(grid_);
  }

 private:
  DataError broken(std::string_view needed, std::string_view got) const {
    return data_error(name_, needed, got, "copy the file again, or write it with VTK or meshio");
  }
  DataError unexpected(std::string_view needed, std::string_view word) const {
    return broken(needed, word.empty() ? "the end" : fmt::format("\"{}\"", word.substr(0, 40)));
  }

  void read_section(std::string_view word) {
    if (word == "DATASET") {
      read_kind();
    } else if (word == "POINTS") {
      const size_t points = count();
      grid_.points.components = 3;
      grid_.points.values = numbers(points * 3, type());
      if (std::holds_alternative<std::vector<int64_t>>(grid_.points.values))
        throw broken("POINTS of type float or double", "integers");
    } else if (word == "CELLS") {
      read_cells(std::nullopt);
    } else if (word == "CELL_TYPES") {
      read_cell_types();
    } else if (word == "VERTICES") {
      read_cells(VtkCell::poly_vertex);
    } else if (word == "LINES") {
      read_cells(VtkCell::poly_line);
    } else if (word == "POLYGONS") {
      read_cells(VtkCell::polygon);
    } else if (word == "TRIANGLE_STRIPS") {
      read_cells(VtkCell::triangle_strip);
    } else if (word == "POINT_DATA" || word == "CELL_DATA") {
      arrays_ = word == "POINT_DATA" ? &grid_.point_arrays : &grid_.cell_arrays;
      rows_ = count();
      const auto wanted =
          static_cast<size_t>(arrays_ == &grid_.point_arrays ? grid_.point_count() : grid_.cell_count());
      if (rows_ != wanted) throw broken(fmt::format("{} {}", word, wanted), fmt::format("{}", rows_));
    } else if (word == "METADATA") {
      skip_metadata();
    } else {
      read_attribute(word);
    }
  }

  // An empty line ends it.
  void skip_metadata() {
    text_.line();  // the rest of the first line
    while (!text_.rest().empty() && !text_.line().empty()) continue;
  }

  void read_kind() {
    const std::string_view kind = text_.word();
    if (kind == "UNSTRUCTURED_GRID" || kind == "POLYDATA") return;
    throw data_error(name_, "DATASET UNSTRUCTURED_GRID or POLYDATA",
                     fmt::format("\"{}\"", kind.substr(0, 40)),
                     "in ParaView, apply Append Datasets, then save as .vtu");
  }

  void read_attribute(std::string_view word) {
    if (word == "FIELD") {
      read_fields();
      return;
    }
    if (arrays_ == nullptr) throw unexpected("POINT_DATA or CELL_DATA before it", word);
    const std::string name = decoded_name(text_.word());
    reading_ = name;
    if (word == "SCALARS") {
      const VtkType of = type_after(name);
      // Then, on the same line, how many components, or nothing for one. A line LOOKUP_TABLE may follow.
      VtkText rest = text_;
      VtkText line(rest.line());
      const int wide = line.word().empty() ? 1 : small_number(text_.word());
      rest = text_;
      if (rest.word() == "LOOKUP_TABLE") {
        rest.word();
        text_ = rest;
      }
      add(name, wide, of);
    } else if (word == "VECTORS" || word == "NORMALS") {
      add(name, 3, type_after(name));
    } else if (word == "TENSORS") {
      add(name, 9, type_after(name));
    } else if (word == "TENSORS6") {
      add(name, 6, type_after(name));
    } else if (word == "TEXTURE_COORDINATES") {
      const int wide = small_number(text_.word());
      add(name, wide, type());
    } else if (word == "GLOBAL_IDS" || word == "PEDIGREE_IDS") {
      numbers(rows_, type());
    } else if (word == "COLOR_SCALARS") {
      const auto wide = static_cast<size_t>(small_number(text_.word()));
      numbers(rows_ * wide, binary_ ? VtkType{'u', 1} : VtkType{'f', 4});
    } else if (word == "LOOKUP_TABLE") {
      numbers(count() * 4, binary_ ? VtkType{'u', 1} : VtkType{'f', 4});
    } else {
      throw unexpected("a section that VTK's format has", word);
    }
  }

  // FIELD name n, then n times: name components tuples type, numbers.
  void read_fields() {
    text_.word();
    for (size_t left = count(); left > 0; --left) {
      std::string name = decoded_name(text_.word());
      if (name == "METADATA") {  // of the array before
        skip_metadata();
        name = decoded_name(text_.word());
      }
      reading_ = name;
      check_one_word(name);
      const size_t components = count(), tuples = count();
      const std::string_view type_name = text_.word();
      if (components > 65535) throw broken("at most 65535 components", fmt::format("{}", components));
      const auto of = vtk_type(type_name);
      if (!of) {
        if (type_name != "string") throw unexpected("a type of numbers", type_name);
        skip_strings(components * tuples);
        grid_.left_out.push_back(name);
        continue;
      }
      VtkArray array{name, static_cast<int>(components), numbers(components * tuples, *of)};
      if (arrays_ == nullptr) {
        grid_.field_arrays.push_back(std::move(array));
      } else if (tuples == rows_ && components > 0) {
        arrays_->push_back(std::move(array));
      } else {
        grid_.left_out.push_back(name);
      }
    }
  }

  void skip_strings(size_t texts) {
    if (binary_) throw broken("arrays of numbers", "text in a binary file");
    text_.line();
    for (size_t i = 0; i < texts && !text_.rest().empty(); ++i) text_.line();
  }

  void add(const std::string& name, int components, VtkType type) {
    arrays_->push_back({name, components, numbers(rows_ * static_cast<size_t>(components), type)});
  }

  size_t count() {
    auto found = text_.values(1, {'i', 8});
    const int64_t number = found ? std::get<std::vector<int64_t>>(*found)[0] : -1;
    constexpr int64_t kMost = int64_t{1} << 40;
    if (number < 0 || number > kMost)
      throw broken("a count", found ? fmt::format("{}", number) : "no number");
    return static_cast<size_t>(number);
  }
  int small_number(std::string_view word) const {
    if (word.size() == 1 && word[0] >= '1' && word[0] <= '9') return word[0] - '0';
    throw unexpected("1 to 9 components", word);
  }
  VtkType type() {
    const std::string_view word = text_.word();
    if (const auto found = vtk_type(word)) return *found;
    throw unexpected("a type of numbers", word);
  }

  DataError spaces(const std::string& words) const {
    return data_error(name_, "names of arrays without spaces, as %20",
                      fmt::format("\"{}\"", words.substr(0, 80)),
                      "rename the array, or write the file with VTK or meshio");
  }

  /// A number follows the name of an array of a field.
  void check_one_word(const std::string& name) const {
    VtkText line(VtkText(text_).line());
    std::string words = name;
    std::string_view word = line.word();
    while (!word.empty() && (word.front() < '0' || word.front() > '9')) {
      words += fmt::format(" {}", word);
      word = line.word();
    }
    if (words != name && !word.empty()) throw spaces(words);
  }

  /// Of an array whose name should be one word.
  VtkType type_after(const std::string& name) {
    VtkText rest = text_;
    if (const auto found = vtk_type(text_.word())) return *found;
    VtkText line(VtkText(rest).line());
    std::string words = name;
    for (std::string_view word = line.word(); !word.empty(); word = line.word()) {
      if (vtk_type(word)) throw spaces(words);
      words += fmt::format(" {}", word);
    }
    throw unexpected("a type of numbers", rest.word());
  }

  VtkValues numbers(size_t count, VtkType type) {
    if (!binary_) {
      const VtkText before = text_;
      auto values = text_.values(count, type);
      if (!values) {
        throw data_error(reading_.empty() ? name_ : fmt::format("{}: array {}", name_, reading_),
                         fmt::format("{} numbers", count), before.fault(count, type),
                         "correct the text, or write the file with VTK or meshio");
      }
      return std::move(*values);
    }
    text_.line();  // the rest of the line before
    const size_t bytes = count * type.bytes;
    const std::string_view rest = text_.rest();
    if (bytes > rest.size()) throw broken(fmt::format("{} bytes", bytes), fmt::format("{}", rest.size()));
    const auto* begin = reinterpret_cast<const std::byte*>(rest.data());
    VtkValues values = vtk_values({begin, bytes}, type, true);
    text_.skip(bytes);
    return values;
  }
  std::vector<int64_t> integers(size_t count, VtkType type) {
    VtkValues values = numbers(count, type);
    if (auto* found = std::get_if<std::vector<int64_t>>(&values)) return std::move(*found);
    throw broken("integers", "floats");
  }

  // Versions before 5: cells, then all numbers: points of a cell, then these. From 5 on: offsets,
  // connectivity.
  void read_cells(std::optional<VtkCell> kind) {
    const size_t first = count(), second = count();
    const VtkText before = text_;
    const auto begin = static_cast<int64_t>(grid_.connectivity.size());
    size_t cells = first;
    if (text_.word() == "OFFSETS") {
      cells = first == 0 ? 0 : first - 1;
      std::vector<int64_t> offsets = integers(first, type());
      if (const std::string_view word = text_.word(); word != "CONNECTIVITY")
        throw unexpected("CONNECTIVITY", word);
      const std::vector<int64_t> points = integers(second, type());
      if (!offsets.empty() && (offsets.front() != 0 || offsets.back() != static_cast<int64_t>(second)))
        throw broken(fmt::format("offsets from 0 to {}, the number of points", second),
                     fmt::format("{} to {}", offsets.front(), offsets.back()));
      for (size_t i = 1; i < offsets.size(); ++i) grid_.ends.push_back(begin + offsets[i]);
      grid_.connectivity.insert(grid_.connectivity.end(), points.begin(), points.end());
    } else {
      text_ = before;
      append_counted(integers(second, {'i', 4}), first);
    }
    if (kind) grid_.types.insert(grid_.types.end(), cells, static_cast<uint8_t>(*kind));
  }

  void append_counted(const std::vector<int64_t>& numbers, size_t cells) {
    size_t at = 0;
    for (size_t cell = 0; cell < cells; ++cell) {
      const int64_t points = at < numbers.size() ? numbers[at] : -1;
      if (points < 0 || static_cast<size_t>(points) > numbers.size() - at - 1)
        throw broken("cells within the numbers of CELLS", fmt::format("cell {}", cell));
      const auto begin = numbers.begin() + static_cast<std::ptrdiff_t>(at) + 1;
      grid_.connectivity.insert(grid_.connectivity.end(), begin, begin + points);
      grid_.ends.push_back(static_cast<int64_t>(grid_.connectivity.size()));
      at += static_cast<size_t>(points) + 1;
    }
  }

  // A polyhedron's points in CELLS are its faces: their number, then of each its number of points and these.
  void read_polyhedra() {
    if (grid_.types.size() != grid_.ends.size()) return;  // linear_grid refuses it
    for (size_t cell = 0; cell < grid_.types.size(); ++cell) {
      if (grid_.types[cell] != static_cast<uint8_t>(VtkCell::polyhedron)) continue;
      const int64_t begin = cell == 0 ? 0 : grid_.ends[cell - 1], end = grid_.ends[cell];
      if (begin < 0 || end < begin || end > static_cast<int64_t>(grid_.connectivity.size()))
        throw broken("offsets of cells that ascend", fmt::format("{} after {} at cell {}", end, begin, cell));
      const auto stream =
          std::span(grid_.connectivity).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      if (!add_polyhedron(grid_, cell, stream, 0))
        throw broken("faces of at least 3 points", fmt::format("the faces of cell {}", cell));
      // `connectivity` has only points: what is left of the counts repeats one of them.
      const std::span<const int64_t> faces = std::span(grid_.faces).last(stream.size() - 1);
      std::fill(stream.begin(), stream.end(), faces[1]);
      auto to = stream.begin();
      for_each_vtk_face(faces,
                        [&](std::span<const int64_t> face) { to = std::copy(face.begin(), face.end(), to); });
    }
  }

  void read_cell_types() {
    for (const int64_t type : integers(count(), {'i', 4}))
      grid_.types.push_back(static_cast<uint8_t>(std::clamp<int64_t>(type, 0, 255)));
  }

  std::string name_;
  VtkText text_;
  bool binary_ = false;
  std::vector<VtkArray>* arrays_ = nullptr;
  std::string reading_;  // the array whose numbers come next; empty before the first
  size_t rows_ = 0;
  VtkGrid grid_;
};

}  // namespace

VtkGrid parse_vtk_legacy(std::span<const std::byte> file, const std::string& name) {
  return linear_grid(LegacyReader(file, name).read(), name);
}

}  // namespace meshgrad
