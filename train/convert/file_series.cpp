// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/file_series.h>
#include <meshgrad/train/convert/series_names.h>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

using Groups = std::vector<std::vector<size_t>>;

std::string counts_text(const SeriesReading& reading) {
  const auto [least, most] = std::ranges::minmax_element(reading.groups, {}, &std::vector<size_t>::size);
  const std::string frames = least->size() == most->size()
                                 ? fmt::format("{}", least->size())
                                 : fmt::format("{} to {}", least->size(), most->size());
  return fmt::format(
      "{} of {} frame{}",
      reading.groups.size() == 1 ? "1 trajectory" : fmt::format("{} trajectories", reading.groups.size()),
      frames, most->size() == 1 ? "" : "s");
}

/// Files of one folder.
class FolderSeries {
 public:
  FolderSeries(const std::vector<fs::path>& files, const WarningCallback& say)
      : files_(files), say_(say), done_(files.size()) {
    for (const fs::path& file : files) names_.push_back(file.filename().string());
  }

  /// The groups of a pattern; returns how many there are.
  size_t add_by_pattern(const std::string& pattern) {
    for (const std::vector<size_t>& group : parse_series(pattern, names_).groups) {
      for (const size_t i : group) done_[i] = true;
      add(group);
    }
    return groups.size();
  }

  /// All others.
  void add_by_names(bool separate) {
    for (const SeriesFamily& family : families_of(names_)) {
      if (std::ranges::any_of(family.members, [&](size_t i) { return done_[i]; })) {
        for (const size_t i : family.members)
          if (!done_[i]) add({i});
        continue;
      }
      const std::optional<SeriesReading> reading = separate ? std::nullopt : choose(family);
      if (!reading)
        for (const size_t i : family.members) add({i});
      if (reading)
        for (const std::vector<size_t>& group : reading->groups) add(group);
    }
  }

  std::vector<std::vector<VtkFrame>> groups;
  size_t series = 0;  ///< of these, those of several frames that were found by their names
  std::string note;   ///< on the first

 private:
  void add(const std::vector<size_t>& group) {
    groups.emplace_back();
    for (const size_t i : group) groups.back().push_back({files_[i], std::nullopt});
  }

  MeshesOf compare(size_t a, size_t b) {
    const auto [known, added] = compared_.try_emplace({a, b}, MeshesOf::one);
    if (added) known->second = compare_meshes(files_[a], files_[b]);
    return known->second;
  }

  /// Whether the first two frames of every group have one mesh. Keeps a group that has not where another has.
  bool on_one_mesh(const SeriesReading& reading) {
    const std::vector<size_t>* other = nullptr;
    bool any = false;
    for (const std::vector<size_t>& group : reading.groups) {
      if (group.size() < 2) continue;
      const MeshesOf meshes = compare(group[0], group[1]);
      any = any || meshes == MeshesOf::one;
      if (meshes == MeshesOf::one || other != nullptr) continue;
      other = &group;
      if (meshes == MeshesOf::other_points) moved_ = group;
    }
    if (other != nullptr && any && !mixed_) mixed_ = {reading, *other};
    return other == nullptr;
  }

  std::optional<SeriesReading> choose(const SeriesFamily& family) {
    moved_.clear();
    mixed_.reset();
    std::vector<SeriesReading> possible;
    for (const SeriesReading& reading : family.readings)
      if (on_one_mesh(reading)) possible.push_back(reading);
    if (possible.empty()) {
      check_no_parts(family);
      if (mixed_) throw several_meshes(family);
      say_moved(family);
      return std::nullopt;
    }
    const bool by_time = sort_by_times(possible, family);
    if (possible.size() > 1) throw two_readings(family, possible);
    check_no_parts(family, possible.front());
    describe(possible.front(), by_time);
    return possible.front();
  }

  /// Where all files say their time, only what has no two frames of one time is possible; where nothing is,
  /// the times say nothing.
  bool sort_by_times(std::vector<SeriesReading>& possible, const SeriesFamily& family) {
    std::map<size_t, double> times;
    for (const size_t i : family.members) {
      const auto time = time_of_file(files_[i]);
      if (!time) return false;
      times[i] = *time;
    }
    const auto time = [&](size_t i) { return times[i]; };
    std::vector<SeriesReading> kept = possible;
    std::erase_if(kept, [&](const SeriesReading& reading) {
      return std::ranges::any_of(reading.groups, [&](std::vector<size_t> group) {
        std::ranges::sort(group, {}, time);
        return std::ranges::adjacent_find(group, {}, time) != group.end();
      });
    });
    if (kept.empty()) return false;
    Groups known;
    std::erase_if(kept, [&](SeriesReading& reading) {
      for (std::vector<size_t>& group : reading.groups) std::ranges::sort(group, {}, time);
      const bool again = reading.groups == known;  // two orders of names are one by times
      known = reading.groups;
      return again;
    });
    possible = std::move(kept);
    return true;
  }

  std::string place(const SeriesFamily& family, const std::string& pattern = "") const {
    const fs::path& first = files_[family.members.front()];
    return (pattern.empty() ? first : first.parent_path() / pattern).string();
  }

  DataError two_readings(const SeriesFamily& family, const std::vector<SeriesReading>& possible) const {
    std::vector<std::string> texts;
    for (const SeriesReading& reading : possible) {
      const std::vector<size_t>& group = reading.groups.front();
      texts.push_back(fmt::format("--series '{}': {}, {}, {}, ..", reading.pattern, counts_text(reading),
                                  names_[group[0]], names_[group[std::min<size_t>(1, group.size() - 1)]]));
    }
    return data_error(
        place(family), "names that can be read in one way",
        fmt::format("{} files in {} ways: {}", family.members.size(), texts.size(), fmt::join(texts, "; ")),
        "give the --series that is meant, or --separate for a trajectory each; a .pvd list with "
        "times says it, too");
  }

  /// Frames of simulations on one mesh each, but for some.
  DataError several_meshes(const SeriesFamily& family) const {
    const auto& [reading, group] = *mixed_;
    return data_error(
        place(family), "frames of one mesh in every simulation, or in none",
        fmt::format("--series '{}': {}, of which {} and {} are on other meshes", reading.pattern,
                    counts_text(reading), names_[group[0]], names_[group[1]]),
        "that --series begins a new trajectory where the mesh changes; --separate makes each file one");
  }

  /// Parts of one mesh are named by their process: before the frame, or after it ("flow_12_0" and
  /// "flow_12_1").
  void check_no_parts(const SeriesFamily& family, const SeriesReading& reading) {
    const bool several =
        reading.groups.size() > 1 && compare(reading.groups[0][0], reading.groups[1][0]) != MeshesOf::one;
    if (!several || (!reading.frame_before_case && !reading.cases_named_by_rank)) return;
    throw data_error(
        place(family), "names that can be read in one way",
        fmt::format("{} files in 2 ways: --series '{}': {}; or the frames of one mesh in {} parts",
                    family.members.size(), reading.pattern, counts_text(reading), reading.groups.size()),
        "give that --series for simulations on meshes of their own; parts are read by a .pvtu "
        "file that names them, or merge them: in ParaView, Merge Blocks, then save as .vtu");
  }
  void check_no_parts(const SeriesFamily& family) {
    const bool by_rank = std::ranges::any_of(
        family.readings, [](const SeriesReading& reading) { return reading.frames_named_by_rank; });
    if (!by_rank) return;
    throw data_error(place(family), "files of whole meshes",
                     fmt::format("{} files whose names say the part of a mesh", family.members.size()),
                     "--separate for a trajectory each; parts are read by a .pvtu file that names them, or "
                     "merge them: in ParaView, Merge Blocks, then save as .vtu");
  }

  void say_moved(const SeriesFamily& family) const {
    if (moved_.empty() || !say_) return;
    say_(fmt::format(
        "[{}] has the cells of {} and other points: each of these {} files is a mesh of its own; for the "
        "frames of one mesh that moves, list them in a .pvd or .series file and convert that",
        files_[moved_[1]].string(), names_[moved_[0]], family.members.size()));
  }

  void describe(const SeriesReading& reading, bool by_time) {
    for (const std::vector<size_t>& group : reading.groups) {
      if (group.size() < 2 || series++ > 0) continue;
      note = fmt::format(
          "[{}] and {} more files were read as frames of one trajectory, {}, since their names differ in a "
          "number{} and the mesh is the same; --separate changes it",
          files_[group[0]].string(), group.size() - 1, reading.pattern,
          by_time ? ", their times order them" : "");
    }
  }

  const std::vector<fs::path>& files_;
  const WarningCallback& say_;
  std::vector<std::string> names_;
  std::vector<bool> done_;
  std::map<std::pair<size_t, size_t>, MeshesOf> compared_;
  std::vector<size_t> moved_;  // a group whose first two have the same cells and other points
  std::optional<std::pair<SeriesReading, std::vector<size_t>>> mixed_;  // see on_one_mesh
};

}  // namespace

std::vector<std::vector<VtkFrame>> series_of_files(const std::vector<fs::path>& files,
                                                   const std::string& pattern, bool separate,
                                                   const WarningCallback& say) {
  std::map<fs::path, std::vector<fs::path>> folders;
  for (const fs::path& file : files) folders[file.parent_path()].push_back(file);
  std::vector<FolderSeries> parts;
  size_t matched = 0, series = 0;
  for (const auto& [folder, members] : folders) {
    parts.emplace_back(members, say);
    if (!pattern.empty()) matched += parts.back().add_by_pattern(pattern);
  }
  if (!pattern.empty() && matched == 0) {
    throw config_error(
        "series", "a pattern that names of files match", pattern,
        fmt::format("compare it with {}", files.empty() ? "the folder, which has no such files"
                                                        : std::ranges::min(files).filename().string()));
  }
  std::vector<std::vector<VtkFrame>> all;
  std::string note;
  for (FolderSeries& part : parts) {
    part.add_by_names(separate);
    if (note.empty()) note = part.note;
    series += part.series;
    std::ranges::move(part.groups, std::back_inserter(all));
  }
  if (series > 1) note += fmt::format(" (and {} more series)", series - 1);
  if (series > 0 && say) say(note);
  return all;
}

}  // namespace meshgrad
