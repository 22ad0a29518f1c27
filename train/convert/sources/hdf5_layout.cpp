// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/series_names.h>
#include <meshgrad/train/convert/sources/hdf5_layout.h>

namespace meshgrad {
namespace {

using Paths = std::vector<std::string>;

/// Groups with the same data sets.
struct Alike {
  Paths groups, members, others;
};

/// The groups of a path, "a/" and "a/b/" of "a/b/u".
template <class Visit>
void for_each_group(const std::string& path, Visit visit) {
  for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1))
    visit(path.substr(0, slash + 1), path.substr(slash + 1));
}

std::string parent_of(const std::string& group) {
  const size_t slash = group.size() < 2 ? std::string::npos : group.rfind('/', group.size() - 2);
  return slash == std::string::npos ? std::string() : group.substr(0, slash + 1);
}

/// Without the slash at the end.
Paths names_of(const Paths& groups) {
  Paths names;
  for (const std::string& group : groups) names.push_back(group.substr(0, group.size() - 1));
  return names;
}

bool is_number(const std::string& group) {
  const std::string parent = parent_of(group);
  const std::string name = group.substr(parent.size(), group.size() - parent.size() - 1);
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
}

/// A lone trajectory's group: all paths are in it, or its name is a number and no other group is beside it.
std::string only_group(const Paths& paths, const std::map<std::string, Paths>& contents) {
  std::string only;
  for (const auto& [group, members] : contents)
    if (members.size() == paths.size() && group.size() > only.size()) only = group;
  if (!only.empty()) return only;
  for (const auto& [group, members] : contents) {
    const std::string parent = parent_of(group);
    const auto beside =
        std::ranges::count_if(contents, [&](const auto& other) { return parent_of(other.first) == parent; });
    if (is_number(group) && beside == 1) return group;
  }
  return "";
}

Alike alike_groups(const Paths& paths) {
  Alike found;
  std::map<std::string, Paths> contents;  // by the path of a group, at any depth, what is in it
  for (const std::string& path : paths)
    for_each_group(
        path, [&](const std::string& group, const std::string& rest) { contents[group].push_back(rest); });
  std::map<Paths, Paths> alike;
  for (const auto& [group, members] : contents) alike[members].push_back(group);
  for (const auto& [members, groups] : alike) {
    const size_t size = groups.size() * members.size(), known = found.groups.size() * found.members.size();
    const bool outer = size == known && groups.size() < found.groups.size();  // of groups within groups
    if (groups.size() < 2 || (size <= known && !outer)) continue;
    found.groups = groups;
    found.members = members;
  }
  if (found.groups.empty()) {
    const std::string only = only_group(paths, contents);
    found.groups = {only};
    found.members = only.empty() ? paths : contents[only];
  }
  const std::set<std::string> groups(found.groups.begin(), found.groups.end());
  for (const std::string& path : paths) {
    bool inside = groups.contains("");
    for_each_group(path, [&](const std::string& group, const std::string&) {
      inside = inside || groups.contains(group);
    });
    if (!inside) found.others.push_back(path);
  }
  return found;
}

bool one_family(const Paths& names) { return families_of(names).size() == 1; }

/// Groups within groups that are steps by their names, or that a pattern may mean, are the innermost ones:
/// "run_1/step_2/".
void take_inner_groups(Alike& found, const GroupNames& names) {
  if (found.groups.size() < 2) return;
  const Alike inner = alike_groups(found.members);
  if (inner.groups.size() < 2) return;
  const std::vector<SeriesFamily> families = families_of(names_of(inner.groups));
  const bool steps =
      families.size() == 1 && std::ranges::any_of(families[0].readings, &SeriesReading::frames_named_by_step);
  if (!steps && names.series.find('/') == std::string::npos) return;
  Paths groups;
  for (const std::string& group : found.groups) {
    for (const std::string& more : inner.groups) groups.push_back(group + more);
    for (const std::string& other : inner.others) found.others.push_back(group + other);
  }
  found.groups = std::move(groups);
  found.members = inner.members;
}

DataError unlike(const std::string& file, const std::string& group, const Paths& members,
                 const std::string& other, const Paths& others) {
  return data_error(file,
                    fmt::format("the data sets {} in each group, as {} has", fmt::join(members, ", "), group),
                    fmt::format("{} with {}", other, fmt::join(others, ", ")),
                    "write all groups alike, or leave that group out");
}

Paths members_of(const Paths& paths, const std::string& group) {
  Paths members;
  for (const std::string& path : paths)
    if (path.starts_with(group)) members.push_back(path.substr(group.size()));
  return members;
}

void check_same_members(const Alike& found, const std::string& file) {
  if (found.groups.size() < 2) return;
  for (const std::string& path : found.others) {
    for_each_group(path, [&](const std::string& group, const std::string&) {
      if (parent_of(group) != parent_of(found.groups[0]) || !one_family(names_of({found.groups[0], group})))
        return;
      throw unlike(file, found.groups[0], found.members, group, members_of(found.others, group));
    });
  }
}

/// Where no groups are alike: two groups that are numbers and have a data set in common are trajectories, of
/// which one lacks another.
void check_no_numbers(const Paths& paths, const std::string& file) {
  std::map<std::string, std::string> first;  // by the parent and a member
  for (const std::string& path : paths) {
    for_each_group(path, [&](const std::string& group, const std::string& rest) {
      if (!is_number(group)) return;
      const auto [known, added] = first.try_emplace(parent_of(group) + "/" + rest, group);
      if (!added)
        throw unlike(file, known->second, members_of(paths, known->second), group, members_of(paths, group));
    });
  }
}

/// Times are t, temperature is T.
bool names_times(const std::string& path) {
  std::string leaf = path.substr(path.rfind('/') + 1);
  if (leaf.size() > 1 && leaf[0] == 'T') leaf[0] = 't';
  return leaf == "time" || leaf == "times" || leaf == "t";
}

class Frames {
 public:
  Frames(const Alike& found, const GroupFacts& facts, const std::string& file)
      : found_(found), facts_(facts), file_(file), names_(names_of(found.groups)) {}

  /// Groups for each trajectory; nothing where each group is one.
  std::optional<SeriesReading> choose(const GroupNames& given) const {
    if (given.separate) return std::nullopt;
    if (!given.series.empty()) {
      SeriesReading reading = parse_series(given.series, names_);
      if (!reading.groups.empty()) return reading;
      throw config_error("series", "a pattern that groups match", given.series,
                         fmt::format("compare it with {}", names_.front()));
    }
    const std::vector<SeriesFamily> families = families_of(names_);
    if (families.size() != 1 || have_frames()) return std::nullopt;
    std::vector<SeriesReading> timed, named;
    for (const SeriesReading& reading : families[0].readings) {
      if (have_times(reading)) timed.push_back(reading);
      if (reading.frames_named_by_step) named.push_back(reading);
    }
    if (timed.size() == 1) return timed.front();
    if (timed.size() > 1) throw two_readings(timed);
    if (!named.empty()) throw two_readings(named);
    return std::nullopt;
  }

 private:
  /// Frames within a group, which is then a trajectory.
  bool have_frames() const {
    return std::ranges::any_of(found_.members, [&](const std::string& member) {
      const std::vector<int64_t> shape = facts_.shape(found_.groups.front() + member);
      return (shape.size() > 2 && shape.front() > 1) ||
             (names_times(member) && shape.size() == 1 && shape[0] > 1);
    });
  }

  bool have_times(const SeriesReading& reading) const {
    const auto is_of_all = [&](const std::string& path) {
      const std::vector<int64_t> shape = facts_.shape(path);
      return names_times(path) && shape.size() == 1 &&
             std::ranges::all_of(reading.groups,
                                 [&](const auto& group) { return std::ssize(group) == shape[0]; });
    };
    if (std::ranges::any_of(found_.others, is_of_all)) return true;
    return std::ranges::all_of(reading.groups, [&](const std::vector<size_t>& group) {
      std::optional<double> last;
      for (const size_t i : group) {
        const std::optional<double> time = facts_.time(found_.groups[i]);
        if (!time || (last && *time <= *last)) return false;
        last = time;
      }
      return true;
    });
  }

  DataError two_readings(const std::vector<SeriesReading>& readings) const {
    std::vector<std::string> texts;
    for (const SeriesReading& reading : readings) {
      const size_t frames = reading.groups.front().size();
      texts.push_back(fmt::format(
          "--series '{}': {} of {} frames", reading.pattern,
          reading.groups.size() == 1 ? "1 trajectory" : fmt::format("{} trajectories", reading.groups.size()),
          frames));
    }
    texts.push_back(fmt::format("--separate: {} trajectories of 1 frame", names_.size()));
    return data_error(file_, "names of groups that can be read in one way",
                      fmt::format("{} groups, {} to {}, in {} ways: {}", names_.size(), names_.front(),
                                  names_.back(), texts.size(), fmt::join(texts, "; ")),
                      "give the option that is meant; an array time with the time of each step says it, too");
  }

  const Alike& found_;
  const GroupFacts& facts_;
  const std::string& file_;
  Paths names_;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> Hdf5Layout::shared_by(const Paths& groups) const {
  const std::string own = parent_of(groups.front());
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& path : shared) {
    // What lies beside the frames of another trajectory is not this one's.
    bool of_other = !own.empty() && frame_parents.contains("");
    for (size_t at = path.find('/'); at != std::string::npos && !of_other; at = path.find('/', at + 1)) {
      const std::string parent = path.substr(0, at + 1);
      of_other = parent != own && frame_parents.contains(parent);
    }
    const bool of_own = groups.size() > 1 && trajectories.size() > 1 && !own.empty() && path.starts_with(own);
    if (!of_other) found.emplace_back(path, of_own ? path.substr(own.size()) : path);
  }
  return found;
}

Hdf5Layout hdf5_layout(const Paths& paths, const GroupNames& names, const GroupFacts& facts,
                       const std::string& file) {
  Alike found = alike_groups(paths);
  if (found.groups == Paths{""}) check_no_numbers(paths, file);
  take_inner_groups(found, names);
  std::ranges::sort(found.groups, [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;  // numbers by their values
  });
  check_same_members(found, file);
  Hdf5Layout layout{{}, found.members, found.others, {}};
  const std::optional<SeriesReading> series =
      found.groups.size() > 1 ? Frames(found, facts, file).choose(names) : std::nullopt;
  std::set<std::string> taken;
  if (series) {
    for (const std::vector<size_t>& group : series->groups) {
      Paths& trajectory = layout.trajectories.emplace_back();
      for (const size_t i : group) trajectory.push_back(found.groups[i]);
      taken.insert(trajectory.begin(), trajectory.end());
    }
  }
  for (const std::string& group : found.groups)
    if (!taken.contains(group)) layout.trajectories.push_back({group});
  for (const Paths& trajectory : layout.trajectories)
    if (trajectory.size() > 1) layout.frame_parents.insert(parent_of(trajectory.front()));
  return layout;
}

}  // namespace meshgrad
