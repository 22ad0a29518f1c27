// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/file_series.h>
#include <meshgrad/train/convert/sources/joined_source.h>
#include <meshgrad/train/convert/split_names.h>
#include <meshgrad/train/convert/vtk_series.h>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

std::string number_at_end(const std::string& name) {
  const size_t last = name.find_last_not_of("0123456789");
  return last == std::string::npos ? name : name.substr(last + 1);
}

void check_times(const FoundFile& first, const FoundFile& more) {
  if (first.frames.size() != more.frames.size() || first.frames.size() < 2) return;
  for (size_t i = 0; i < first.frames.size(); ++i) {
    const std::optional<double> a = first.frames[i].time, b = more.frames[i].time;
    if (!a || !b || std::abs(*a - *b) <= 1e-6 * std::max(std::abs(*a), std::abs(*b))) continue;
    throw data_error(more.path.string(),
                     fmt::format("time {} of frame {}, as {} has", *a, i, first.path.filename().string()),
                     fmt::format("{}", *b),
                     "write all fields of a simulation at the same times, or keep simulations in folders of "
                     "their own");
  }
}

/// Lists of frames in one folder that have the same mesh and other fields are one trajectory: FEniCS writes a
/// list for each field.
std::vector<FoundFile> join_lists(std::vector<FoundFile> lists, const ConvertOptions& options,
                                  std::vector<std::string>& notes) {
  std::map<fs::path, std::vector<size_t>> folders;
  for (size_t i = 0; i < lists.size(); ++i) folders[lists[i].path.parent_path()].push_back(i);
  std::vector<FoundFile> joined;
  std::string note;
  size_t more_notes = 0;
  for (const auto& [folder, members] : folders) {
    std::vector<FieldsOnMesh> on(members.size());
    for (size_t i = 0; i < members.size() && members.size() > 1; ++i) {
      const FoundFile& list = lists[members[i]];
      on[i] = fields_on_mesh(open_vtk({list.frames.front()}, "", nullptr)->next().value());
      on[i].number = number_at_end(list.path.stem().string());
    }
    for (const std::vector<size_t>& group : fields_of_one_trajectory(on)) {
      FoundFile& first = joined.emplace_back(lists[members[group.front()]]);
      std::vector<std::string> names{first.path.filename().string()};
      for (size_t i = 1; i < group.size(); ++i) {
        const std::vector<std::string>& fields = on[group[i]].fields;
        check_times(first, lists[members[group[i]]]);
        first.more.push_back(lists[members[group[i]]]);
        names.push_back(first.more.back().path.filename().string());
        if (options.node_types.empty()) continue;
        // Only one has the array of node types.
        const bool has_types = std::ranges::find(fields, options.node_types) != fields.end();
        (has_types ? first : first.more.back()).node_types.reset();
      }
      if (group.size() > 1 && more_notes++ == 0) {
        note = fmt::format("[{}] {} were read as fields of one trajectory, since their mesh is the same",
                           folder.string(), fmt::join(names, ", "));
      }
    }
  }
  if (more_notes > 1) note += fmt::format(" (and {} more like it)", more_notes - 1);
  if (more_notes > 0) notes.push_back(note);
  return joined;
}

/// The files of a trajectory's pieces are its, too.
void add_pieces(FoundFile& file) {
  for (const VtkFrame& frame : file.frames)
    if (is_list_of_pieces(frame.path))
      std::ranges::move(pieces_of_file(frame.path), std::back_inserter(file.parts));
}

}  // namespace

std::vector<FoundFile> vtk_series(const std::vector<FoundFile>& found, const ConvertOptions& options,
                                  std::vector<std::string>& notes, const WarningCallback& warn) {
  std::vector<FoundFile> series;
  std::set<fs::path> listed, with_list, with_pieces;
  std::map<fs::path, std::string> splits;
  const auto take = [&](const fs::path& path) { listed.insert(fs::weakly_canonical(path)); };
  for (const FoundFile& file : found) {
    splits[file.path] = file.split;
    if (is_list_of_pieces(file.path)) {
      for (const fs::path& piece : pieces_of_file(file.path)) {
        take(piece);
        with_pieces.insert(fs::weakly_canonical(piece).parent_path());
      }
    }
    if (!is_frame_list(file.path)) continue;
    series.push_back({file.path, file.split, frames_of_list(file.path), {}, options.node_types});
    with_list.insert(fs::weakly_canonical(file.path).parent_path());
    for (VtkFrame& frame : series.back().frames) {
      take(frame.path);
      with_list.insert(fs::weakly_canonical(frame.path).parent_path());
      frame.path = file_with_mesh(frame.path);
    }
    add_pieces(series.back());
  }
  series = join_lists(std::move(series), options, notes);
  std::vector<fs::path> others;
  std::vector<std::string> beside_lists;
  for (const FoundFile& file : found) {
    if (is_frame_list(file.path) || listed.contains(fs::weakly_canonical(file.path))) continue;
    const fs::path folder = fs::weakly_canonical(file.path).parent_path();
    const bool stale_piece = with_pieces.contains(folder) && !is_list_of_pieces(file.path);
    if (with_list.contains(folder) || stale_piece) {
      beside_lists.push_back(name_within(options.input, file.path));
    } else {
      others.push_back(file.path);
    }
  }
  if (!beside_lists.empty()) {
    warn(fmt::format("[{}] left out {}, which no list of frames or pieces in the folder names: {}",
                     options.input.string(),
                     beside_lists.size() == 1 ? "1 file" : fmt::format("{} files", beside_lists.size()),
                     abridged(beside_lists)));
  }
  for (std::vector<VtkFrame>& frames :
       series_of_files(others, options.series, options.separate_frames,
                       [&](const std::string& text) { notes.push_back(text); })) {
    const fs::path first = frames.front().path;
    for (VtkFrame& frame : frames) frame.path = file_with_mesh(frame.path);
    series.push_back({first, splits[first], std::move(frames), {}, options.node_types});
    add_pieces(series.back());
  }
  std::sort(series.begin(), series.end(),
            [](const FoundFile& a, const FoundFile& b) { return a.path < b.path; });
  return series;
}

}  // namespace meshgrad
