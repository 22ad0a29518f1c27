// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/xdmf_document.h>

#include <fmt/format.h>
#include <pugixml.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/grid_frames.h>
#include <meshgrad/train/convert/sources/vtk_numbers.h>
#include <meshgrad/train/convert/sources/xml_entities.h>

namespace meshgrad {
namespace {

using pugi::xml_node;

constexpr int64_t kMostNumbers = int64_t{1} << 40;

std::string lower(std::string_view text) {
  std::string small(text);
  for (char& c : small) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return small;
}

/// The first of these attributes that is there.
std::string_view attribute_of(const xml_node& node, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const pugi::xml_attribute found = node.attribute(name)) return found.value();
  return {};
}

std::string without_spaces(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string_view::npos
             ? std::string()
             : std::string(text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin));
}

std::optional<std::vector<double>> doubles_of(std::string_view text, size_t count) {
  VtkText words(text);
  auto values = words.values(count, {'f', 8});
  if (!values || !words.word().empty()) return std::nullopt;
  return std::get<std::vector<double>>(std::move(*values));
}

/// Whether an XPath takes a time linear in the document: a few steps by name, "//" at the begin alone, and
/// predicates that compare attributes with texts, the element's name, or its number.
bool is_plain_path(std::string_view path) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  if (path.starts_with("//")) path.remove_prefix(1);
  constexpr int kMostSteps = 8;
  int steps = 0;
  bool inside = false;
  while (!path.empty()) {
    const bool attribute = path.starts_with('@'), own = path.starts_with("self::");
    if (inside && (attribute || own)) path.remove_prefix(attribute ? 1 : 6);
    const size_t word = std::min(path.find_first_not_of(kLetters), path.size());
    if (word > 0) {
      const std::string_view name = path.substr(0, word);
      const bool number = name.find_first_not_of("0123456789") == std::string_view::npos;
      if (inside && !attribute && !own && !number && name != "or" && name != "and") return false;
      path.remove_prefix(word);
    } else if (attribute || own) {
      return false;
    } else if (inside && (path.front() == '"' || path.front() == '\'')) {
      const size_t end = path.find(path.front(), 1);
      if (end == std::string_view::npos) return false;
      path.remove_prefix(end + 1);
    } else {
      const char c = path.front();
      if (inside ? c != '=' && c != ' ' && c != ']' : c != '/' && c != '*' && c != '[') return false;
      if (c == '/' && (++steps > kMostSteps || path.starts_with("//"))) return false;
      inside = c == '[' || (inside && c != ']');
      path.remove_prefix(1);
    }
  }
  return !inside;
}

class Document {
 public:
  Document(std::span<const std::byte> file, std::string name) : name_(std::move(name)) {
    const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
    const auto expanded = with_entities(text, name_);
    const std::string_view whole = expanded ? std::string_view(*expanded) : text;
    const pugi::xml_parse_result result = document_.load_buffer(whole.data(), whole.size());
    if (!result) {
      throw broken("XML", fmt::format("{} at byte {}", result.description(), result.offset));
    }
    domain_ = document_.child("Xdmf").child("Domain");
    if (!domain_) throw broken("an element Xdmf with a Domain", "none");
  }

  XdmfSeries read() {
    std::vector<xml_node> grids, series;
    for (const xml_node& grid : domain_.children("Grid")) (is_series(grid) ? series : grids).push_back(grid);
    for (const xml_node& collection : series) add_series(collection);
    if (series.empty() && grids.empty()) throw broken("a Grid", "none");
    for (const xml_node& grid : grids) {
      XdmfFrame frame = frame_of(grid, std::nullopt);
      if (series_.frames.empty() && (!frame.arrays.empty() || grids.size() == 1)) {
        series_.frames.push_back(std::move(frame));
      } else if (!series_.frames.empty()) {
        add_arrays(std::move(frame), grid, series_.frames.front(), series_.still);
      }
    }
    if (series_.frames.empty()) throw broken("a Grid with an Attribute", "meshes without fields");
    sort_by_time(series_.frames);
    std::sort(series_.left_out.begin(), series_.left_out.end());
    series_.left_out.erase(std::unique(series_.left_out.begin(), series_.left_out.end()),
                           series_.left_out.end());
    return std::move(series_);
  }

 private:
  DataError broken(std::string_view needed, std::string_view got) const {
    return data_error(name_, needed, got, "copy the file again, or write it with FEniCS, ParaView or meshio");
  }
  std::string where(const xml_node& node) const {
    const std::string_view own = attribute_of(node, {"Name"});
    return fmt::format("{}: {}{}{}", name_, node.name(), own.empty() ? "" : " ", own);
  }

  static bool is_series(const xml_node& grid) {
    return lower(attribute_of(grid, {"GridType", "Type"})) == "collection" &&
           lower(attribute_of(grid, {"CollectionType"})) == "temporal";
  }

  /// The grid itself: of a collection or tree of one grid, that one.
  xml_node uniform(const xml_node& grid) const {
    const std::string type = lower(attribute_of(grid, {"GridType", "Type"}));
    if (type.empty() || type == "uniform") return grid;
    const auto parts = grid.children("Grid");
    if (std::distance(parts.begin(), parts.end()) == 1) {
      const xml_node only = *parts.begin();
      const std::string inner = lower(attribute_of(only, {"GridType", "Type"}));
      if (inner.empty() || inner == "uniform") return only;
    }
    throw data_error(where(grid), "one grid for each time", fmt::format("a grid of type {}", type),
                     "merge the parts: in ParaView, Merge Blocks, then save as .vtu");
  }

  /// Topology and Geometry that stand in the grid, or that it includes.
  std::vector<xml_node> included(const xml_node& grid) {
    std::vector<xml_node> found;
    for (const xml_node& include : grid.children()) {
      const std::string_view element = include.name();  // with any prefix
      if (element != "include" && !element.ends_with(":include")) continue;
      std::string_view pointer = attribute_of(include, {"xpointer"});
      const size_t begin = pointer.find('('), end = pointer.rfind(')');
      constexpr size_t kMost = 300;
      if (begin == std::string_view::npos || end <= begin || end - begin > kMost) {
        throw data_error(where(grid), "xi:include with an xpointer to a grid of this file",
                         fmt::format("\"{}\"", pointer.substr(0, kMost)),
                         "write the file with FEniCS, ParaView or meshio");
      }
      const std::string path(pointer.substr(begin + 1, end - begin - 1));
      const std::vector<xml_node>& parts = included_by(path, grid);
      found.insert(found.end(), parts.begin(), parts.end());
    }
    return found;
  }

  /// The first Topology and the first Geometry of an XPath, which `grid` includes.
  const std::vector<xml_node>& included_by(const std::string& path, const xml_node& grid) {
    auto [known, fresh] = includes_.try_emplace(path);
    if (!fresh) return known->second;
    constexpr size_t kMostPaths = 256;
    if (!is_plain_path(path) || includes_.size() > kMostPaths) {
      throw data_error(where(grid),
                       fmt::format("an XPath of names, attributes and numbers, and at most {}", kMostPaths),
                       fmt::format("\"{}\"", path), "write the file with FEniCS, ParaView or meshio");
    }
    try {
      xml_node topology, geometry;
      for (const pugi::xpath_node& one : document_.select_nodes(path.c_str())) {
        const std::string_view name = one.node().name();
        if (name == "Topology" && !topology) topology = one.node();
        if (name == "Geometry" && !geometry) geometry = one.node();
      }
      for (const xml_node& part : {topology, geometry})
        if (part) known->second.push_back(part);
    } catch (const pugi::xpath_exception& error) {
      throw data_error(where(grid), "an XPath", fmt::format("\"{}\": {}", path, error.what()),
                       "write the file with FEniCS, ParaView or meshio");
    }
    return known->second;
  }

  xml_node part_of(const xml_node& grid, const std::vector<xml_node>& includes, const char* part) const {
    if (const xml_node own = grid.child(part)) return own;
    for (const xml_node& node : includes)
      if (std::string_view(node.name()) == part) return node;
    throw data_error(where(grid), fmt::format("an element {}", part), "none",
                     "write the mesh into the file, too");
  }

  std::shared_ptr<const XdmfMesh> mesh_of(const xml_node& grid) {
    const std::vector<xml_node> includes = included(grid);
    const xml_node topology = part_of(grid, includes, "Topology");
    const xml_node geometry = part_of(grid, includes, "Geometry");
    std::shared_ptr<const XdmfMesh>& mesh = meshes_[{topology.hash_value(), geometry.hash_value()}];
    if (mesh) return mesh;
    XdmfMesh made;
    made.type = lower(attribute_of(topology, {"TopologyType", "Type"}));
    made.nodes_per_cell = topology.attribute("NodesPerElement").as_llong();
    made.first_node = topology.attribute("BaseOffset").as_llong();
    made.cells = item_of(topology, {'i', 8});
    const std::string axes = lower(attribute_of(geometry, {"GeometryType", "Type"}));
    if (!axes.empty() && axes != "xy" && axes != "xyz") {
      throw data_error(where(geometry), "GeometryType XY or XYZ", axes,
                       "save an unstructured grid with one array of points");
    }
    made.dim = axes == "xy" ? 2 : 3;
    made.points = item_of(geometry, {'f', 4});
    mesh = std::make_shared<const XdmfMesh>(std::move(made));
    return mesh;
  }

  XdmfItem item_of(const xml_node& parent, VtkType type) const {
    const auto items = parent.children("DataItem");
    const xml_node item = parent.child("DataItem");
    const auto refuse = [&](std::string_view got) {
      return data_error(where(parent), "one DataItem with numbers", got,
                        "save plain arrays; FEniCS: XDMFFile.write, not write_checkpoint");
    };
    if (const auto count = std::distance(items.begin(), items.end()); count != 1)
      throw refuse(item ? fmt::format("{}", count) : "none");
    const std::string kind = lower(attribute_of(item, {"ItemType"}));
    if (!kind.empty() && kind != "uniform") throw refuse(fmt::format("ItemType {}", kind));
    if (item.attribute("Reference")) throw refuse("a Reference");
    XdmfItem made;
    const std::string format = lower(attribute_of(item, {"Format"}));
    if (format == "hdf") made.format = XdmfItem::Format::hdf5;
    if (format == "binary") made.format = XdmfItem::Format::binary;
    if (made.format == XdmfItem::Format::text && !format.empty() && format != "xml")
      throw refuse(fmt::format("Format {}", format));
    if (const std::string packed = lower(attribute_of(item, {"Compression"}));
        made.format == XdmfItem::Format::binary && !packed.empty() && packed != "raw") {
      throw refuse(fmt::format("Compression {}", packed));
    }
    made.shape = shape_of(item, parent);
    made.type = type_of(item, type);
    made.big_endian = lower(attribute_of(item, {"Endian"})) == "big";
    made.seek = item.attribute("Seek").as_ullong();
    made.text = without_spaces(item.text().as_string());
    if (made.text.empty() && made.size() > 0) throw refuse("a DataItem without text");
    if (made.text.starts_with('&') && made.text.find(';') != std::string::npos) {
      throw data_error(where(parent), "entities that the document type defines",
                       made.text.substr(0, std::min<size_t>(made.text.find(';') + 1, 80)),
                       "write the text in place of the entity");
    }
    return made;
  }

  std::vector<int64_t> shape_of(const xml_node& item, const xml_node& parent) const {
    std::vector<int64_t> shape;
    int64_t size = 1;
    VtkText words(attribute_of(item, {"Dimensions"}));
    while (!std::string_view(words.rest()).empty() && shape.size() < 8) {
      const auto value = words.values(1, {'i', 8});
      if (!value) break;
      const int64_t extent = std::get<std::vector<int64_t>>(*value).front();
      if (extent < 0 || (extent > 0 && size > kMostNumbers / extent)) size = -1;
      if (size < 0) break;
      size *= extent;
      shape.push_back(extent);
    }
    if (shape.empty() || size < 0) {
      throw data_error(where(parent), "Dimensions of its DataItem, such as \"120 3\"",
                       fmt::format("\"{}\"", attribute_of(item, {"Dimensions"})),
                       "write the file again with FEniCS, ParaView or meshio");
    }
    return shape;
  }

  VtkType type_of(const xml_node& item, VtkType type) const {
    const std::string name = lower(attribute_of(item, {"NumberType", "DataType"}));
    const auto precision = item.attribute("Precision").as_uint(name == "char" || name == "uchar" ? 1 : 4);
    if (name == "float") type = {'f', 4};
    if (name == "int" || name == "char") type = {'i', 4};
    if (name == "uint" || name == "uchar") type = {'u', 4};
    if (!name.empty() && name != "float" && name != "int" && name != "char" && name != "uint" &&
        name != "uchar") {
      throw data_error(where(item.parent()), "NumberType Float, Int, UInt, Char or UChar", name,
                       "write it with FEniCS, ParaView or meshio");
    }
    if (precision == 1 || precision == 2 || precision == 4 || precision == 8) type.bytes = precision;
    if (type.kind == 'f' && type.bytes < 4) type.bytes = 4;
    return type;
  }

  /// The attributes of a grid; `time` where the collection gives it.
  XdmfFrame frame_of(const xml_node& outer, std::optional<double> time) {
    const xml_node grid = uniform(outer);
    XdmfFrame frame{.time = time, .mesh = mesh_of(grid)};
    for (const xml_node& holder : {outer, grid}) {  // of a collection of one grid, either may say it
      if (const auto value = holder.child("Time").attribute("Value"))
        frame.time = time_in_text(value.value(), name_);
    }
    for (const xml_node& attribute : grid.children("Attribute")) {
      const std::string center = lower(attribute_of(attribute, {"Center"}));
      const std::string array(attribute_of(attribute, {"Name"}));
      if (!center.empty() && center != "node" && center != "cell" &&
          std::string_view(attribute.attribute("ItemType").value()).empty()) {
        series_.left_out.push_back(fmt::format("{}: on {}, not on nodes or cells", array, center));
        continue;
      }
      frame.arrays.push_back({array, center != "cell", item_of(attribute, {'f', 4})});
    }
    return frame;
  }

  std::vector<double> times_of(const xml_node& collection, size_t count) const {
    const xml_node time = collection.child("Time");
    const std::string kind = lower(attribute_of(time, {"TimeType", "Type"}));
    const std::string_view text = time.child("DataItem").text().as_string();
    const std::string format = lower(attribute_of(time.child("DataItem"), {"Format"}));
    const bool elsewhere = !format.empty() && format != "xml";  // then each grid has its own, or none does
    if ((kind != "list" && kind != "hyperslab") || elsewhere) return {};
    std::optional<std::vector<double>> times = doubles_of(text, kind == "list" ? count : 3);
    if (times && kind == "hyperslab" && (*times)[2] != static_cast<double>(count)) times.reset();
    if (times && kind == "hyperslab") {
      const double first = (*times)[0], distance = (*times)[1];
      times->clear();
      for (size_t i = 0; i < count; ++i) times->push_back(first + static_cast<double>(i) * distance);
    }
    if (!times || !std::ranges::all_of(*times, [](double t) { return std::isfinite(t); })) {
      throw data_error(where(collection), fmt::format("a finite time for each of {} grids", count),
                       fmt::format("{} \"{}\"", kind, text.substr(0, 80)),
                       "correct the times, or leave the element Time out");
    }
    return *times;
  }

  void add_series(const xml_node& collection) {
    const auto children = collection.children("Grid");
    const auto count = static_cast<size_t>(std::distance(children.begin(), children.end()));
    const std::vector<double> times = times_of(collection, count);
    const bool first = series_.frames.empty();
    std::map<size_t, XdmfFrame> more;  // by the number of the frame that it belongs to
    size_t number = 0;
    for (const xml_node& grid : children) {
      const size_t at = number++;
      XdmfFrame frame = frame_of(grid, times.empty() ? std::nullopt : std::optional(times[at]));
      if (first) {
        series_.frames.push_back(std::move(frame));
        continue;
      }
      const auto same = frame.time ? by_time_.find(*frame.time) : by_time_.end();
      if (same != by_time_.end()) more.try_emplace(same->second, std::move(frame));
    }
    if (first) {
      for (size_t i = 0; i < series_.frames.size(); ++i)
        if (series_.frames[i].time) by_time_.emplace(*series_.frames[i].time, i);
      return;
    }
    const auto leave_out = [&](const std::string& reason) {
      series_.left_out.push_back(fmt::format("{}: {}", attribute_of(collection, {"Name"}), reason));
    };
    if (more.size() == series_.frames.size()) {
      if (more.size() < count)
        leave_out(fmt::format("{} of its times, which the first series has not", count - more.size()));
      for (auto& [at, frame] : more)
        add_arrays(std::move(frame), collection, series_.frames[at], series_.frames[at].arrays);
    } else if (more.empty()) {
      leave_out("at other times than the first series");
    } else {
      leave_out(fmt::format("at {} of the {} times of the first series", more.size(), series_.frames.size()));
    }
  }

  void add_arrays(XdmfFrame&& from, const xml_node& grid, const XdmfFrame& to,
                  std::vector<XdmfArray>& arrays) {
    if (from.arrays.empty()) return;
    if (from.mesh != to.mesh && !(*from.mesh == *to.mesh)) {
      series_.left_out.push_back(fmt::format("{}: on another mesh", attribute_of(grid, {"Name"})));
      return;
    }
    std::move(from.arrays.begin(), from.arrays.end(), std::back_inserter(arrays));
  }

  std::string name_;
  pugi::xml_document document_;
  xml_node domain_;
  XdmfSeries series_;
  std::map<double, size_t> by_time_;                       // frames of the first series
  std::map<std::string, std::vector<xml_node>> includes_;  // by XPath
  std::map<std::pair<size_t, size_t>, std::shared_ptr<const XdmfMesh>> meshes_;
};

}  // namespace

int64_t XdmfItem::size() const {
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  return size;
}

bool XdmfItem::operator==(const XdmfItem& other) const {
  return format == other.format && shape == other.shape && seek == other.seek && text == other.text;
}

XdmfSeries parse_xdmf(std::span<const std::byte> file, const std::string& name) {
  return Document(file, name).read();
}

}  // namespace meshgrad
