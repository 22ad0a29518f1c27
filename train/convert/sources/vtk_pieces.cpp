// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/vtk_cells.h>
#include <meshgrad/train/convert/sources/vtk_pieces.h>

namespace meshgrad {
namespace {

constexpr int64_t kDuplicate = 1, kRefined = 8, kHiddenCell = 32, kHiddenPoint = 2;
constexpr const char* kGhosts = "vtkGhostType";

using Place = std::array<double, 3>;

std::vector<Place> places_of(const VtkArray& points) {
  return std::visit(
      [](const auto& values) {
        std::vector<Place> places;
        places.reserve(values.size() / 3);
        for (size_t i = 0; i + 2 < values.size(); i += 3)
          places.push_back({static_cast<double>(values[i]), static_cast<double>(values[i + 1]),
                            static_cast<double>(values[i + 2])});
        return places;
      },
      points.values);
}

/// The flags of an array of ghosts, which goes; empty where there is none.
std::vector<int64_t> take_flags(std::vector<VtkArray>& arrays) {
  std::vector<int64_t> flags;
  std::erase_if(arrays, [&](const VtkArray& array) {
    const bool levels = array.name == "vtkGhostLevels";
    const auto* numbers = std::get_if<std::vector<int64_t>>(&array.values);
    if ((!levels && array.name != kGhosts) || numbers == nullptr || array.components != 1) return false;
    flags.resize(numbers->size());
    for (size_t i = 0; i < flags.size(); ++i)
      flags[i] |= levels ? ((*numbers)[i] > 0 ? kDuplicate : 0) : (*numbers)[i];
    return true;
  });
  return flags;
}

void keep_rows(std::vector<VtkArray>& arrays, const std::vector<int64_t>& rows) {
  for (VtkArray& array : arrays) array = rows_of_array(array, rows);
}

/// The grid's cells `cells`, in this order.
void keep_cells(VtkGrid& grid, const std::vector<int64_t>& cells) {
  VtkGrid kept;
  for (const int64_t cell : cells) {
    const auto points = points_of(grid, cell);
    const auto faces = faces_of(grid, cell);
    kept.connectivity.insert(kept.connectivity.end(), points.begin(), points.end());
    kept.ends.push_back(static_cast<int64_t>(kept.connectivity.size()));
    kept.types.push_back(grid.types[static_cast<size_t>(cell)]);
    kept.faces.insert(kept.faces.end(), faces.begin(), faces.end());
    if (!grid.face_ends.empty()) kept.face_ends.push_back(static_cast<int64_t>(kept.faces.size()));
  }
  keep_rows(grid.cell_arrays, cells);
  grid.connectivity = std::move(kept.connectivity);
  grid.ends = std::move(kept.ends);
  grid.types = std::move(kept.types);
  grid.faces = std::move(kept.faces);
  grid.face_ends = std::move(kept.face_ends);
}

std::vector<bool> used_points(const VtkGrid& grid) {
  std::vector<bool> used(static_cast<size_t>(grid.point_count()));
  for (const int64_t point : grid.connectivity) used[static_cast<size_t>(point)] = true;
  return used;
}

/// Point i becomes point to[i], which becomes itself; those of -1 go.
void replace_points(VtkGrid& grid, const std::vector<int64_t>& to) {
  std::vector<int64_t> number(to.size(), -1), rows;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] != static_cast<int64_t>(i)) continue;
    number[i] = static_cast<int64_t>(rows.size());
    rows.push_back(to[i]);
  }
  const auto renumber = [&](int64_t& point) {
    point = number[static_cast<size_t>(to[static_cast<size_t>(point)])];
  };
  for (int64_t& point : grid.connectivity) renumber(point);
  for (size_t at = 0; at < grid.faces.size(); at += static_cast<size_t>(grid.faces[at]) + 1)
    for (size_t i = 1; i <= static_cast<size_t>(grid.faces[at]); ++i) renumber(grid.faces[at + i]);
  keep_rows(grid.point_arrays, rows);
  grid.points = rows_of_array(grid.points, rows);
}

/// Points that are one, by number.
class SamePoints {
 public:
  explicit SamePoints(size_t points) : first_(points) { std::iota(first_.begin(), first_.end(), int64_t{0}); }
  void join(int64_t a, int64_t b) {
    a = first(a);
    b = first(b);
    first_[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
  }
  int64_t first(int64_t point) {
    int64_t at = point;
    while (first_[static_cast<size_t>(at)] != at) at = first_[static_cast<size_t>(at)];
    return first_[static_cast<size_t>(point)] = at;
  }

 private:
  std::vector<int64_t> first_;
};

/// A ghost cell is at the place of a cell that is none: their points are the same.
void join_by_cells(const VtkGrid& grid, const std::vector<Place>& places, const std::vector<int64_t>& flags,
                   SamePoints& same) {
  using Corner = std::pair<Place, int64_t>;
  const auto corners_of = [&](int64_t cell) {
    std::vector<Corner> corners;
    for (const int64_t point : points_of(grid, cell))
      corners.emplace_back(places[static_cast<size_t>(point)], point);
    std::ranges::sort(corners);
    return corners;
  };
  const auto key_of = [](const std::vector<Corner>& corners) {
    std::vector<Place> key;
    for (const Corner& corner : corners) key.push_back(corner.first);
    return key;
  };
  std::map<std::vector<Place>, std::vector<Corner>> owned;
  for (const bool ghosts : {false, true}) {
    for (int64_t cell = 0; cell < grid.cell_count(); ++cell) {
      if (((flags[static_cast<size_t>(cell)] & kDuplicate) != 0) != ghosts) continue;
      const std::vector<Corner> corners = corners_of(cell);
      if (!ghosts) {
        owned.try_emplace(key_of(corners), corners);
        continue;
      }
      const auto owner = owned.find(key_of(corners));
      if (owner == owned.end()) continue;
      for (size_t i = 0; i < corners.size(); ++i) same.join(corners[i].second, owner->second[i].second);
    }
  }
}

/// For each point the one that stands for it: of those that are the same the first that is no duplicate.
std::vector<int64_t> owners_of(const VtkGrid& grid, const std::vector<int64_t>& point_flags,
                               const std::vector<int64_t>& cell_flags) {
  const std::vector<Place> places = places_of(grid.points);
  const auto is_duplicate = [&](size_t point) {
    return !point_flags.empty() && (point_flags[point] & kDuplicate) != 0;
  };
  SamePoints same(places.size());
  if (!cell_flags.empty()) join_by_cells(grid, places, cell_flags, same);
  std::map<Place, int64_t> first;
  for (const bool duplicates : {false, true}) {
    for (size_t i = 0; i < places.size() && !point_flags.empty(); ++i) {
      if (is_duplicate(i) != duplicates) continue;
      const auto [known, added] = first.try_emplace(places[i], static_cast<int64_t>(i));
      if (duplicates && !added) same.join(known->second, static_cast<int64_t>(i));
    }
  }
  std::vector<int64_t> owner(places.size(), -1), to(places.size());
  for (const bool duplicates : {false, true}) {
    for (size_t i = 0; i < places.size(); ++i) {
      int64_t& of_all = owner[static_cast<size_t>(same.first(static_cast<int64_t>(i)))];
      if (of_all < 0 && is_duplicate(i) == duplicates) of_all = static_cast<int64_t>(i);
    }
  }
  for (size_t i = 0; i < to.size(); ++i)
    to[i] = owner[static_cast<size_t>(same.first(static_cast<int64_t>(i)))];
  return to;
}

/// Throws where two of `cells` have the same points, of which `owner` stands for each.
void check_no_copies(const VtkGrid& grid, const std::vector<int64_t>& cells,
                     const std::vector<int64_t>& owner, const std::string& name) {
  const auto key_of = [&](int64_t cell) {
    std::vector<int64_t> key;
    for (const int64_t point : points_of(grid, cell)) key.push_back(owner[static_cast<size_t>(point)]);
    std::ranges::sort(key);
    return key;
  };
  std::map<std::vector<int64_t>, int64_t> copies;  // surfaces and solids whose points are all those of others
  for (const int64_t cell : cells) {
    if (points_of(grid, cell).size() < 3) continue;  // lines and points around the mesh may lie in two pieces
    const bool copy = std::ranges::all_of(
        points_of(grid, cell), [&](int64_t point) { return owner[static_cast<size_t>(point)] != point; });
    if (copy) copies.try_emplace(key_of(cell), cell);
  }
  if (copies.empty()) return;
  for (const int64_t cell : cells) {
    const auto copy = copies.find(key_of(cell));
    if (copy == copies.end() || copy->second == cell) continue;
    throw data_error(name, "each cell in one piece, or an array vtkGhostType that says which are copies",
                     fmt::format("cells {} and {}, counted over the pieces, with the same points",
                                 std::min(cell, copy->second), std::max(cell, copy->second)),
                     "write the pieces without their layers of ghosts");
  }
}

void append(VtkArray& all, const VtkArray& piece) {
  std::visit(
      [&](auto& values) {
        const auto& more = std::get<std::remove_reference_t<decltype(values)>>(piece.values);
        values.insert(values.end(), more.begin(), more.end());
      },
      all.values);
}

/// Arrays in the order of the first piece's.
void append_arrays(std::vector<VtkArray>& all, std::vector<VtkArray>& more, const std::string& name) {
  for (VtkArray& array : all) {
    const auto piece = std::ranges::find(more, array.name, &VtkArray::name);
    if (piece == more.end() || piece->components != array.components ||
        piece->values.index() != array.values.index() || more.size() != all.size()) {
      throw data_error(fmt::format("{}: array {}", name, array.name), "the same arrays in all pieces",
                       piece == more.end() ? "a piece without " + array.name : describe_array(*piece),
                       "write all pieces with the same arrays");
    }
    append(array, *piece);
  }
}

void append_grid(VtkGrid& all, VtkGrid& piece, const std::string& name) {
  const int64_t first = all.point_count();
  const auto corners = static_cast<int64_t>(all.connectivity.size());
  const auto faces = static_cast<int64_t>(all.faces.size());
  const bool polyhedra = !all.face_ends.empty() || !piece.face_ends.empty();
  if (polyhedra) all.face_ends.resize(all.ends.size(), faces);
  if (polyhedra) piece.face_ends.resize(piece.ends.size(), static_cast<int64_t>(piece.faces.size()));
  if (all.points.values.index() != piece.points.values.index()) {
    throw data_error(name, "points of one type in all pieces", "float and double",
                     "write all pieces with the same type");
  }
  append(all.points, piece.points);
  for (const int64_t point : piece.connectivity) all.connectivity.push_back(point + first);
  for (const int64_t end : piece.ends) all.ends.push_back(end + corners);
  for (const int64_t end : piece.face_ends) all.face_ends.push_back(end + faces);
  all.types.insert(all.types.end(), piece.types.begin(), piece.types.end());
  for (size_t at = 0; at < piece.faces.size(); at += static_cast<size_t>(piece.faces[at]) + 1) {
    all.faces.push_back(piece.faces[at]);
    for (size_t i = 1; i <= static_cast<size_t>(piece.faces[at]) && at + i < piece.faces.size(); ++i)
      all.faces.push_back(piece.faces[at + i] + first);
  }
  append_arrays(all.point_arrays, piece.point_arrays, name);
  append_arrays(all.cell_arrays, piece.cell_arrays, name);
}

/// Throws where two points of a pair have other floats.
void check_shared(const VtkGrid& grid, const std::vector<std::pair<int64_t, int64_t>>& pairs,
                  const std::string& name) {
  const auto check = [&](const VtkArray& array, const auto& values) {
    using T = std::remove_cvref_t<decltype(values[0])>;
    if constexpr (std::is_floating_point_v<T>) {
      T largest = 0;
      for (const T value : values) largest = std::max(largest, std::abs(value));
      const auto width = static_cast<size_t>(array.components);
      for (const auto& [a, b] : pairs) {
        for (size_t c = 0; c < width; ++c) {
          const T x = values[static_cast<size_t>(a) * width + c],
                  y = values[static_cast<size_t>(b) * width + c];
          if (x == y || std::abs(x - y) <= static_cast<T>(1e-6) * largest) continue;
          throw data_error(
              fmt::format("{}: array {}", name, array.name), "the same values where two pieces share a point",
              fmt::format("{:g} at point {} and {:g} at point {}, counted over the pieces", x, a, y, b),
              "they may be two points: in ParaView, Merge Blocks joins or keeps them; save that as .vtu");
        }
      }
    }
  };
  for (const VtkArray& array : grid.point_arrays)
    std::visit([&](const auto& values) { check(array, values); }, array.values);
}

/// What tells points of pieces apart: their global numbers where an array has them, else their places.
std::vector<Place> identities_of(const VtkGrid& grid) {
  for (const VtkArray& array : grid.point_arrays) {
    const auto* numbers = std::get_if<std::vector<int64_t>>(&array.values);
    const bool global = array.name.starts_with("Global") || array.name.starts_with("vtkGlobal");
    if (numbers == nullptr || array.components != 1 || !global) continue;
    std::vector<Place> identities;
    for (const int64_t number : *numbers) identities.push_back({static_cast<double>(number), 0, 0});
    return identities;
  }
  return places_of(grid.points);
}

/// Flags what a later piece has as well as an earlier one that owns it.
std::vector<int64_t> flag_shared(const VtkGrid& grid, std::vector<int64_t> flags,
                                 const std::vector<int64_t>& piece_ends, const std::string& name) {
  const std::vector<Place> places = identities_of(grid);
  flags.resize(places.size(), 0);
  std::map<Place, int64_t> first;
  std::vector<std::pair<int64_t, int64_t>> pairs;
  int64_t at = 0;
  for (const int64_t end : piece_ends) {
    const int64_t begin = at;
    std::map<int64_t, int64_t> joined;  // points of earlier pieces, and this one's
    for (; at < end; ++at) {
      if ((flags[static_cast<size_t>(at)] & kDuplicate) != 0) continue;
      const auto known = first.find(places[static_cast<size_t>(at)]);
      if (known == first.end() || known->second >= begin) continue;
      if (const auto [other, added] = joined.try_emplace(known->second, at); !added) {
        throw data_error(name, "one point of a piece at a place that pieces share",
                         fmt::format("points {} and {}, counted over the pieces", other->second, at),
                         "save an array GlobalPointIds of integers, equal for what is one point");
      }
      flags[static_cast<size_t>(at)] |= kDuplicate;
      pairs.emplace_back(known->second, at);
    }
    for (int64_t own = begin; own < end; ++own)
      if ((flags[static_cast<size_t>(own)] & kDuplicate) == 0)
        first.try_emplace(places[static_cast<size_t>(own)], own);
  }
  check_shared(grid, pairs, name);
  return flags;
}

}  // namespace

VtkArray rows_of_array(const VtkArray& array, const std::vector<int64_t>& rows) {
  VtkArray kept{array.name, array.components, {}};
  const auto width = static_cast<std::ptrdiff_t>(array.components);
  std::visit(
      [&](const auto& values) {
        std::remove_cvref_t<decltype(values)> some;
        some.reserve(rows.size() * static_cast<size_t>(width));
        for (const int64_t row : rows)
          some.insert(some.end(), values.begin() + row * width, values.begin() + (row + 1) * width);
        kept.values = std::move(some);
      },
      array.values);
  return kept;
}

VtkGrid without_ghosts(VtkGrid grid, const std::string& name) {
  const std::vector<int64_t> cell_flags = take_flags(grid.cell_arrays);
  const std::vector<int64_t> point_flags = take_flags(grid.point_arrays);
  if (cell_flags.empty() && point_flags.empty()) return grid;
  const auto hidden = [&](int64_t point) {
    return !point_flags.empty() && (point_flags[static_cast<size_t>(point)] & kHiddenPoint) != 0;
  };
  const std::vector<bool> before = used_points(grid);
  const std::vector<int64_t> owner = owners_of(grid, point_flags, cell_flags);
  std::vector<int64_t> cells;
  for (int64_t cell = 0; cell < grid.cell_count(); ++cell) {
    const int64_t flags = cell_flags.empty() ? 0 : cell_flags[static_cast<size_t>(cell)];
    if ((flags & (kDuplicate | kRefined | kHiddenCell)) == 0 &&
        std::ranges::none_of(points_of(grid, cell), hidden))
      cells.push_back(cell);
  }
  check_no_copies(grid, cells, owner, name);
  if (cells.size() < grid.ends.size()) keep_cells(grid, cells);
  std::vector<bool> used(owner.size());
  for (const int64_t point : grid.connectivity)
    used[static_cast<size_t>(owner[static_cast<size_t>(point)])] = true;
  std::vector<int64_t> to = owner;
  for (size_t i = 0; i < to.size(); ++i) {
    // Points that no cell had stay, as they do without ghosts.
    const bool gone = !used[i] && (before[i] || hidden(static_cast<int64_t>(i)));
    if (to[i] == static_cast<int64_t>(i) && gone) to[i] = -1;
  }
  replace_points(grid, to);
  return grid;
}

VtkGrid join_pieces(std::vector<VtkGrid> pieces, const std::string& name) {
  std::erase_if(pieces, [](const VtkGrid& piece) { return piece.point_count() == 0; });
  if (pieces.empty()) throw data_error(name, "pieces with points", "none", "check the files that it names");
  VtkGrid all = std::move(pieces.front());
  std::vector<int64_t> ends{all.point_count()};
  for (size_t i = 1; i < pieces.size(); ++i) {
    append_grid(all, pieces[i], name);
    ends.push_back(all.point_count());
  }
  std::vector<int64_t> flags = flag_shared(all, take_flags(all.point_arrays), ends, name);
  all.point_arrays.push_back({kGhosts, 1, std::move(flags)});
  return all;
}

std::optional<std::vector<int64_t>> find_cells(const VtkGrid& mesh, const VtkGrid& grid) {
  if (mesh.point_count() != grid.point_count() || mesh.cell_count() != grid.cell_count()) return std::nullopt;
  std::vector<int64_t> same(static_cast<size_t>(mesh.cell_count()));
  std::iota(same.begin(), same.end(), int64_t{0});
  if (mesh.types == grid.types && mesh.ends == grid.ends && mesh.connectivity == grid.connectivity &&
      mesh.faces == grid.faces)
    return same;
  if (!mesh.faces.empty() || !grid.faces.empty()) return std::nullopt;
  using Key = std::vector<int64_t>;  // of a cell: its points by number, and its type
  const auto sorted_cells = [](const VtkGrid& of) {
    std::vector<std::pair<Key, int64_t>> cells;
    for (int64_t cell = 0; cell < of.cell_count(); ++cell) {
      const auto points = points_of(of, cell);
      Key key(points.begin(), points.end());
      std::ranges::sort(key);
      key.push_back(of.types[static_cast<size_t>(cell)]);
      cells.emplace_back(std::move(key), cell);
    }
    std::ranges::sort(cells);
    return cells;
  };
  const auto ours = sorted_cells(mesh), theirs = sorted_cells(grid);
  for (size_t i = 0; i < ours.size(); ++i) {
    if (ours[i].first != theirs[i].first) return std::nullopt;
    same[static_cast<size_t>(ours[i].second)] = theirs[i].second;
  }
  return same;
}

}  // namespace meshgrad
