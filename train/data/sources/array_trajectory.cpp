// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/sources/array_trajectory.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/sources/moving_positions.h>
#include <meshgrad/train/data/value_offset.h>

namespace meshgrad {
namespace {

bool is_mesh(std::string_view name) {
  return name == "mesh_pos" || name == "node_type" || name == "cells" || name == "mesh_edge";
}

std::string shape_text(const NpyArray& array) { return fmt::format("[{}]", fmt::join(array.shape, ", ")); }

// [rows, columns] of an array whose leading ones are dropped.
std::optional<std::pair<int64_t, int64_t>> as_matrix(const NpyArray& array) {
  std::vector<int64_t> shape = array.shape;
  while (shape.size() > 2 && shape.front() == 1) shape.erase(shape.begin());
  if (shape.size() == 1) return std::pair{shape[0], int64_t{1}};
  if (shape.size() != 2) return std::nullopt;
  return std::pair{shape[0], shape[1]};
}

class ArrayReader {
 public:
  ArrayReader(std::vector<NamedArray> arrays, const std::string& name, const WarningCallback& warn)
      : entries_(std::move(arrays)), name_(name), warn_(warn) {}

  RawTrajectory read() {
    RawTrajectory t;
    t.name = name_;
    read_positions(t);
    if (const NamedArray* types = find("node_type")) {
      const std::vector<int64_t>& shape = types->array.shape;
      if (shape.size() > 1 && shape[0] > 1 && shape[1] == t.nodes) {
        throw over_frames(*types, "[nodes]: types that do not change over time");
      }
      const auto [rows, columns] = matrix(*types, "[nodes, 1]");
      if (rows * columns != t.nodes) throw wrong_shape(*types, fmt::format("{} node types", t.nodes));
      t.node_type = to_indices(types->array, where(*types));
    }
    if (const NamedArray* cells = find("cells")) {
      t.nodes_per_cell =
          static_cast<int>(std::min<int64_t>(matrix(*cells, "[cells, nodes of a cell]").second, 65535));
      t.cells = to_indices(cells->array, where(*cells));
    }
    // Beside cells, only edge fields need to know which edges are meant.
    const NamedArray* edges = find("mesh_edge");
    if (edges != nullptr && !t.cells.empty() && !has_edge_fields()) {
      warn(fmt::format("[{}] mesh_edge was not used: the sides of the cells are the edges", name_));
      edges = nullptr;
    }
    if (edges != nullptr) {
      if (matrix(*edges, "[2, edges]").first != 2) throw wrong_shape(*edges, "[2, edges]");
      t.edges = to_indices(edges->array, where(*edges));
    }
    for (const NamedArray& entry : entries_) {
      if (!entry.numbers) {
        left_out_.push_back(entry.name + " (no numbers)");
      } else if (is_times(entry, t)) {
        continue;
      } else if (entry.name == "dt" && entry.array.size() == 1) {
        t.dt = checked_dt(to_doubles(entry.array).front(), where(entry));
      } else if (!is_mesh(entry.name)) {
        read_field(entry, t);
      }
    }
    if (!moving_.empty()) add_world_position(t, t.dim, std::move(moving_), std::move(wide_moving_));
    read_times(t);
    check_order_of_axes(t);
    if (!left_out_.empty()) {
      warn(fmt::format("[{}] left out, since they are no fields on {} nodes: {}", name_, t.nodes,
                       fmt::join(left_out_, ", ")));
    }
    // Arrays come in the order of the zip; sorted names make files of one data set agree.
    std::sort(t.fields.begin(), t.fields.end(),
              [](const RawField& a, const RawField& b) { return a.name < b.name; });
    return t;
  }

 private:
  void warn(const std::string& text) const {
    if (warn_) warn_(text);
  }

  bool has_edge_fields() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const NamedArray& entry) { return named_field(entry.name).on == FieldOn::edge; });
  }

  const NamedArray* find(std::string_view name) const {
    const auto found =
        std::find_if(entries_.begin(), entries_.end(), [&](const NamedArray& e) { return e.name == name; });
    return found == entries_.end() ? nullptr : &*found;
  }

  std::string where(const NamedArray& entry) const { return fmt::format("{}: array {}", name_, entry.name); }

  DataError wrong_shape(const NamedArray& entry, std::string_view needed) const {
    return data_error(where(entry), needed, shape_text(entry.array), "save the array in that shape");
  }

  DataError over_frames(const NamedArray& entry, std::string_view needed) const {
    return data_error(
        where(entry), needed, shape_text(entry.array),
        "node types stay the same: save the first frame, and what changes as a field of another name");
  }

  static bool is_times(const NamedArray& entry, const RawTrajectory& t) {
    const bool named = entry.name == "times" || entry.name == "time" || entry.name == "t";
    return named && entry.array.shape.size() == 1 && entry.array.shape[0] != t.nodes;
  }

  // Times with one distance give dt.
  void read_times(RawTrajectory& t) {
    for (const NamedArray& entry : entries_) {
      if (!entry.numbers || !is_times(entry, t)) continue;
      const std::vector<double> times = to_doubles(entry.array);
      if (static_cast<int64_t>(times.size()) != t.frames || t.frames < 2) {
        left_out_.push_back(entry.name + " " + shape_text(entry.array));
        continue;
      }
      const auto dt = even_spacing(times);
      constexpr double kSame = 1e-3;
      if (!dt) {
        warn(fmt::format("[{}] {} are not evenly spaced and were left out", name_, entry.name));
      } else if (t.dt != 0 && std::abs(t.dt - *dt) > kSame * *dt) {
        throw data_error(where(entry), fmt::format("times {} apart, as dt says", t.dt),
                         fmt::format("{} apart", *dt), "correct one of the two arrays, or leave it out");
      } else if (t.dt == 0) {
        t.dt = *dt;
      }
    }
  }

  // [nodes, frames] reads as a static field of as many components as there are frames.
  void check_order_of_axes(const RawTrajectory& t) const {
    constexpr int64_t kMostColumns = 16;
    int64_t frames = t.frames;
    for (const NamedArray& entry : entries_) {
      if (entry.numbers && frames == 1 && is_times(entry, t)) frames = entry.array.shape[0];
    }
    for (const NamedArray& entry : entries_) {
      const std::vector<int64_t>& shape = entry.array.shape;
      const bool mesh = is_mesh(entry.name) || named_field(entry.name).on != FieldOn::node;
      if (mesh || shape.size() != 2 || shape[0] != t.nodes || shape[1] < 4) continue;
      if (shape[1] == frames) {
        throw data_error(where(entry), "[frames, nodes], frames first",
                         fmt::format("{} and {} frames", shape_text(entry.array), frames),
                         fmt::format("transpose it; save a static field as [1, nodes, {}]", shape[1]));
      }
      if (shape[1] <= kMostColumns) continue;
      warn(fmt::format(
          "[{}] {} {} was read as {} components in one frame; frames come first, as [frames, nodes]", name_,
          entry.name, shape_text(entry.array), shape[1]));
    }
  }

  std::pair<int64_t, int64_t> matrix(const NamedArray& entry, std::string_view needed) const {
    const auto shape = as_matrix(entry.array);
    if (!shape || shape->first < 1 || shape->second < 1) throw wrong_shape(entry, needed);
    return *shape;
  }

  void read_positions(RawTrajectory& t) {
    const NamedArray* positions = find("mesh_pos");
    if (positions == nullptr) {
      std::string names;
      for (const NamedArray& entry : entries_) names += (names.empty() ? "" : ", ") + entry.name;
      throw data_error(
          name_, "an array \"mesh_pos\"", names.empty() ? "no arrays" : names,
          "name the arrays: --map positions=ARRAY --map cells=ARRAY; or save them under DeepMind's names: "
          "mesh_pos, node_type, cells, and the fields");
    }
    std::vector<int64_t> shape = positions->array.shape;
    while (shape.size() > 2 && shape.front() == 1) shape.erase(shape.begin());
    const bool over_frames = shape.size() == 3;
    if (over_frames) shape.erase(shape.begin());
    if (shape.size() != 2 || (shape[1] != 2 && shape[1] != 3) || positions->array.size() == 0)
      throw wrong_shape(*positions, "[nodes, 2 or 3], or over frames [frames, nodes, 2 or 3]");
    t.nodes = shape[0];
    t.dim = static_cast<int>(shape[1]);
    t.positions = to_floats(positions->array);
    if (is_f64(positions->array)) t.wide_positions = to_doubles(positions->array);
    if (over_frames) {
      t.frames = positions->array.size() / (t.nodes * t.dim);
      moving_ = t.positions;
      wide_moving_ = t.wide_positions;
      t.positions.resize(static_cast<size_t>(t.nodes * t.dim));
      t.wide_positions.resize(t.wide_positions.empty() ? 0 : t.positions.size());
    }
    if (!are_coarse_positions(t.wide_positions, t.dim)) t.wide_positions.clear();
  }

  // "edge:length" is a field "length" on edges; a name without a prefix is one on nodes.
  static RawField named_field(const std::string& array) {
    RawField field;
    field.name = array;
    for (size_t i = 0; i < kFieldOnNames.size(); ++i) {
      const std::string prefix = std::string(kFieldOnNames[i]) + ":";
      if (!array.starts_with(prefix)) continue;
      field.name = array.substr(prefix.size());
      field.on = static_cast<FieldOn>(i);
    }
    return field;
  }

  struct FieldShape {
    int64_t frames, components;
    bool dynamic;
  };

  static bool is_f64(const NpyArray& array) { return array.kind == 'f' && array.bytes == 8; }

  static std::optional<FieldShape> shape_of_field(const std::vector<int64_t>& shape, int64_t rows) {
    if (shape.size() == 3 && shape[1] == rows) return FieldShape{shape[0], shape[2], shape[0] > 1};
    if (!shape.empty() && shape.size() <= 2 && shape[0] == rows) {
      return FieldShape{1, shape.size() == 2 ? shape[1] : 1, false};
    }
    if (shape.size() == 2 && shape[1] == rows) return FieldShape{shape[0], 1, shape[0] > 1};
    return std::nullopt;
  }

  // A graph has one row, which may be left out: a number, [components] or [frames, components].
  static std::optional<FieldShape> shape_of_graph_field(const std::vector<int64_t>& shape) {
    if (shape.empty()) return FieldShape{1, 1, false};
    if (shape.size() == 1) return FieldShape{1, shape[0], false};
    if (shape.size() == 2) return FieldShape{shape[0], shape[1], shape[0] > 1};
    return shape_of_field(shape, 1);
  }

  void read_field(const NamedArray& entry, RawTrajectory& t) {
    RawField field = named_field(entry.name);
    const bool graph = field.on == FieldOn::graph;
    if (field.on == FieldOn::node && field.name == entry.name && entry.array.shape.size() < 2 &&
        entry.array.size() != t.nodes) {
      left_out_.push_back(entry.name + " " + shape_text(entry.array));
      return;
    }
    const int64_t rows = t.rows(field.on);
    if (rows == 0) {
      throw data_error(where(entry),
                       field.on == FieldOn::cell ? "the array cells beside it"
                                                 : "the array mesh_edge [2, edges] beside it",
                       "none", "save what its rows belong to, in the order of the rows");
    }
    const std::string needed = graph ? "[components] or [frames, components]"
                                     : fmt::format("[frames, {}s, components]", name_of(field.on));
    const auto shape =
        graph ? shape_of_graph_field(entry.array.shape) : shape_of_field(entry.array.shape, rows);
    if (!shape && entry.array.shape.size() > 1 && entry.array.shape[0] == rows) {
      throw data_error(where(entry), fmt::format("{} with {} {}s", needed, rows, name_of(field.on)),
                       shape_text(entry.array), "move the axis of frames to the front");
    }
    if (!shape) throw wrong_shape(entry, fmt::format("{} with {} {}s", needed, rows, name_of(field.on)));
    if (shape->frames < 1 || shape->components < 1 || shape->components > 65535) {
      throw wrong_shape(entry, needed);
    }
    field.dynamic = shape->dynamic;
    if (field.dynamic && shape->frames != t.frames) {
      if (t.frames != 1)
        throw wrong_shape(entry, fmt::format("{} frames, as the arrays before it", t.frames));
      t.frames = shape->frames;
    }
    field.components = static_cast<int>(shape->components);
    field.values = to_field_values(entry.array, where(entry));
    if (is_f64(entry.array)) {
      field.wide = to_doubles(entry.array);
      if (!is_coarse_in_f32(field.wide, field.components)) field.wide.clear();
    }
    t.fields.push_back(std::move(field));
  }

  std::vector<NamedArray> entries_;
  std::string name_;
  const WarningCallback& warn_;
  std::vector<std::string> left_out_;  // names with shapes
  std::vector<float> moving_;          // positions over frames, if there are
  std::vector<double> wide_moving_;
};

// What an array of the mesh is called: its role in --map, its name here, and names that other files have.
struct Role {
  std::string_view role, name;
  std::array<std::string_view, 9> synonyms;
};

constexpr std::array<Role, 4> kRoles{{
    {"positions",
     "mesh_pos",
     {"positions", "pos", "points", "coords", "coordinates", "xyz", "vertices", "nodes", "geometry"}},
    {"cells", "cells", {"elements", "triangles", "tris", "faces", "simplices", "connectivity", "topology"}},
    {"edges", "mesh_edge", {"edges", "edge_index"}},
    {"types", "node_type", {"node_types", "types"}},
}};

// "xyz" of "mesh/xyz", in lower case.
std::string last_part(std::string_view name) {
  std::string part(name.substr(name.rfind('/') == std::string_view::npos ? 0 : name.rfind('/') + 1));
  for (char& c : part) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return part;
}

bool may_be(const Role& role, const NamedArray& array) {
  const std::vector<int64_t>& shape = array.array.shape;
  if (!array.numbers || shape.empty()) return false;
  if (role.role == "positions") return shape.size() > 1 && (shape.back() == 2 || shape.back() == 3);
  if (array.array.kind == 'f') return false;
  return role.role == "types" || shape.size() > 1;
}

// The index of the array that has one of a role's names; -1 when none has.
int64_t guess(const Role& role, const std::vector<NamedArray>& arrays) {
  for (const std::string_view synonym : role.synonyms) {
    for (size_t i = 0; i < arrays.size(); ++i)
      if (!synonym.empty() && last_part(arrays[i].name) == synonym && may_be(role, arrays[i]))
        return static_cast<int64_t>(i);
  }
  return -1;
}

bool has(const std::vector<NamedArray>& arrays, std::string_view name) {
  return std::any_of(arrays.begin(), arrays.end(),
                     [&](const NamedArray& array) { return array.name == name; });
}

// Without --map, arrays of other names than DeepMind's.
void apply_guess(std::vector<NamedArray>& arrays, const std::string& where, const WarningCallback& warn) {
  std::vector<std::string> guessed;
  for (const Role& role : kRoles) {
    if (has(arrays, role.name)) continue;
    const int64_t found = guess(role, arrays);
    if (found < 0) continue;
    NamedArray& array = arrays[static_cast<size_t>(found)];
    guessed.push_back(fmt::format("--map {}={}", role.role, array.name));
    array.name = role.name;
  }
  if (!guessed.empty() && warn) warn(fmt::format("[{}] read as by {}", where, fmt::join(guessed, " ")));
}

std::string array_name(const std::string& name) {
  const auto* role =
      std::find_if(kRoles.begin(), kRoles.end(), [&](const Role& known) { return known.role == name; });
  return role == kRoles.end() ? name : std::string(role->name);
}

// No field.
bool is_known(const std::string& name) { return is_mesh(name) || name == "dt" || name == "times"; }

std::vector<NamedArray> mapped(std::vector<NamedArray> arrays, const std::string& where, const ArrayMap& map,
                               const WarningCallback& warn) {
  std::vector<NamedArray> chosen;
  for (const auto& entry : map) {
    const std::string& name = entry.first;
    const std::string& source = entry.second;
    const auto found = std::find_if(arrays.begin(), arrays.end(),
                                    [&](const NamedArray& array) { return array.name == source; });
    if (found == arrays.end()) {
      std::vector<std::string> names;
      for (const NamedArray& array : arrays) names.push_back(array.name + " " + shape_text(array.array));
      throw data_error(where, fmt::format("the array {}, as --map {}={} says", source, name, source),
                       names.empty() ? "no arrays" : fmt::format("{}", fmt::join(names, ", ")),
                       "name one of its arrays");
    }
    chosen.push_back(std::move(*found));  // its view stays valid
    chosen.back().name = array_name(name);
    arrays.erase(found);
  }
  const bool names_fields =
      std::ranges::any_of(chosen, [](const NamedArray& array) { return !is_known(array.name); });
  std::vector<std::string> unused;
  for (NamedArray& array : arrays) {
    const bool needed = !names_fields || is_known(array.name);
    if (needed && !has(chosen, array.name)) {
      chosen.push_back(std::move(array));
    } else {
      unused.push_back(array.name);
    }
  }
  if (!unused.empty() && warn)
    warn(fmt::format("[{}] not used, since --map names others: {}", where, fmt::join(unused, ", ")));
  return chosen;
}

}  // namespace

RawTrajectory trajectory_of_arrays(std::vector<NamedArray> arrays, const std::string& name,
                                   const ArrayMap& map, const WarningCallback& warn) {
  if (!map.empty()) {
    arrays = mapped(std::move(arrays), name, map, warn);
  } else {
    apply_guess(arrays, name, warn);
  }
  for (const NamedArray& array : arrays) {
    if (array.numbers || !is_mesh(array.name)) continue;
    throw data_error(fmt::format("{}: array {}", name, array.name), "numbers", "text, dates or objects",
                     "save it as an array of numbers");
  }
  return ArrayReader(std::move(arrays), name, warn).read();
}

}  // namespace meshgrad
