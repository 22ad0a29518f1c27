// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/convert/convert_inputs.h>
#include <meshgrad/train/convert/found_files.h>
#include <meshgrad/train/convert/series_names.h>
#include <meshgrad/train/convert/sources/deepmind_source.h>
#include <meshgrad/train/convert/sources/hdf5_source.h>
#include <meshgrad/train/convert/sources/joined_source.h>
#include <meshgrad/train/convert/sources/npz_source.h>
#include <meshgrad/train/convert/sources/vtk_source.h>
#include <meshgrad/train/convert/sources/xdmf_source.h>
#include <meshgrad/train/convert/split_list.h>
#include <meshgrad/train/convert/split_names.h>
#include <meshgrad/train/convert/vtk_series.h>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

const std::array<std::string, 3> kSplitNames{"train", "valid", "test"};

struct DataFormat {
  std::string_view name;
  std::array<std::string_view, 9> extensions;  ///< later ones may be empty
  std::unique_ptr<TrajectorySource> (*open)(const FoundFile& file, const ConvertOptions& options,
                                            const WarningCallback& warn);
};

ArrayOptions array_options(const ConvertOptions& options) {
  ArrayOptions arrays{options.map, options.axes, options.first_node, options.series, options.separate_frames};
  if (!options.node_types.empty()) arrays.map["types"] = options.node_types;
  return arrays;
}

// A format is a row here.
constexpr std::array<DataFormat, 5> kDataFormats{{
    {"deepmind",
     {".tfrecord", ".tfrecords"},
     [](const FoundFile& file, const ConvertOptions&, const WarningCallback& warn) {
       return open_deepmind(file.path, warn);
     }},
    {"npz",
     {".npz"},
     [](const FoundFile& file, const ConvertOptions& options, const WarningCallback& warn) {
       return open_npz(file.path, array_options(options), warn);
     }},
    {"hdf5",
     {".h5", ".hdf5"},
     [](const FoundFile& file, const ConvertOptions& options, const WarningCallback& warn) {
       return open_hdf5(file.path, options.fields, array_options(options), warn);
     }},
    {"vtk",
     {".vtu", ".vtp", ".vtk", ".vtm", ".pvtu", ".pvtp", ".vtpd", ".pvd", ".series"},
     [](const FoundFile& file, const ConvertOptions&, const WarningCallback& warn) {
       std::vector<std::unique_ptr<TrajectorySource>> sources;
       sources.push_back(open_vtk(file.frames, file.node_types, warn));
       for (const FoundFile& more : file.more)
         sources.push_back(open_vtk(more.frames, more.node_types, warn));
       return sources.size() == 1 ? std::move(sources.front()) : join_fields(std::move(sources));
     }},
    {"xdmf",
     {".xdmf", ".xmf"},
     [](const FoundFile& file, const ConvertOptions& options, const WarningCallback& warn) {
       return open_xdmf(file.path, options.node_types, warn);
     }},
}};

/// Null when no format has this extension.
const DataFormat* format_of(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (const DataFormat& format : kDataFormats) {
    for (const std::string_view known : format.extensions) {
      if (!known.empty() && extension == known) return &format;
    }
  }
  return nullptr;
}

const DataFormat* format_named(std::string_view name) {
  const auto found = std::find_if(kDataFormats.begin(), kDataFormats.end(),
                                  [&](const DataFormat& format) { return format.name == name; });
  return found == kDataFormats.end() ? nullptr : &*found;
}

/// "A, B or C".
std::string any_of(const std::vector<std::string>& names) {
  return fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

/// "files ending in .tfrecord, .npz, ..", as many as formats have.
std::string all_extensions() {
  std::vector<std::string> extensions;
  for (const DataFormat& format : kDataFormats) {
    for (const std::string_view known : format.extensions) {
      if (!known.empty()) extensions.emplace_back(known);
    }
  }
  return any_of(extensions);
}

/// A file of a program whose files scripts/to-vtu reads, in a folder or itself; or nothing.
std::optional<fs::path> file_for_to_vtu(const fs::path& input) {
  constexpr std::array<std::string_view, 10> kExtensions{".msh", ".cgns", ".foam", ".e",   ".exo",
                                                         ".ex2", ".med",  ".su2",  ".inp", ".bdf"};
  const auto is_foreign = [&](const fs::path& path) {
    return std::ranges::find(kExtensions, path.extension().string()) != kExtensions.end();
  };
  if (is_foreign(input)) return input;
  std::error_code error;
  for (fs::directory_iterator at(input, error), end; !error && at != end; at.increment(error))
    if (is_foreign(at->path())) return at->path();
  return std::nullopt;
}

std::string to_vtu_fix(const fs::path& file) {
  return fmt::format("scripts/to-vtu {} -o vtu makes files of VTK of it, then meshgrad convert vtu",
                     file.string());
}

/// HDF5 files whose numbers an XDMF file describes are no data by themselves.
void drop_parts_of_xdmf(std::vector<FoundFile>& files) {
  std::set<fs::path> parts;
  for (FoundFile& file : files) {
    if (format_of(file.path) != format_named("xdmf")) continue;
    file.parts = files_of_xdmf(file.path);
    for (const fs::path& part : file.parts) parts.insert(fs::weakly_canonical(part));
  }
  std::erase_if(files, [&](const FoundFile& file) {
    return file.parts.empty() && parts.contains(fs::weakly_canonical(file.path));
  });
}

/// Of all lists, which come after their frames.
void add_parts(const FoundFile& file, std::vector<fs::path>& to) {
  to.insert(to.end(), file.parts.begin(), file.parts.end());
  for (const FoundFile& more : file.more) add_parts(more, to);
}

/// --format keeps the files of that format, of those that were found; a manifest's are all of it.
const DataFormat& choose_format(const ConvertOptions& options, std::vector<FoundFile>& files,
                                bool are_found) {
  const DataFormat* named = format_named(options.format);
  if (named == nullptr && options.format != "auto") {
    std::vector<std::string> names = format_names();
    names.insert(names.begin(), "auto");
    throw config_error("format", any_of(names), options.format, "choose one of them");
  }
  if (std::error_code none; named != nullptr && are_found && fs::is_directory(options.input, none)) {
    std::erase_if(files, [&](const FoundFile& file) { return format_of(file.path) != named; });
  }
  if (files.empty()) {
    const auto foreign = file_for_to_vtu(options.input);
    throw data_error(options.input.string(), fmt::format("files ending in {}", all_extensions()),
                     foreign ? foreign->filename().string() : "none",
                     foreign ? to_vtu_fix(*foreign) : "name the folder that holds the data");
  }
  if (named != nullptr) return *named;
  const DataFormat* format = format_of(files.front().path);
  for (const FoundFile& file : files) {
    const fs::path& path = file.path;
    if (format == nullptr) {
      throw data_error(path.string(), fmt::format("a name ending in {}", all_extensions()),
                       fmt::format("\"{}\"", path.extension().string()),
                       file_for_to_vtu(path) ? to_vtu_fix(path)
                       : path.extension() == ".npy"
                           ? "save mesh_pos, cells and the fields together: numpy.savez(\"run.npz\", ...)"
                           : "write the data in one of these formats, or, if only the name differs, name the "
                             "format: meshgrad convert --format NAME");
    }
    if (format_of(path) == format) continue;
    throw data_error(path.string(), "one format",
                     fmt::format("{} beside {}", format_of(path)->name, format->name), "say which: --format");
  }
  return *format;
}

void check_fractions(const std::vector<double>& fractions) {
  const double sum = std::accumulate(fractions.begin(), fractions.end(), 0.0);
  const bool good =
      std::all_of(fractions.begin(), fractions.end(), [](double f) { return f >= 0 && f <= 1; });
  if (good && fractions.size() <= kSplitNames.size() && fractions.front() > 0 && std::abs(sum - 1) < 1e-6)
    return;
  throw config_error("split", "1 to 3 fractions (train, valid, test) that add up to 1, the first above 0",
                     fmt::format("{}", fmt::join(fractions, ",")), "for example 0.8,0.1,0.1");
}

using ListedParts = std::vector<std::vector<SplitPart>>;

ListedParts listed_parts(const ConvertOptions& options, const std::vector<InputFile>& files) {
  if (options.split_list.empty()) return {};
  if (!options.split.empty() || options.split_by != SplitBy::automatic) {
    throw config_error("split-list", "one way to divide the data", "--split or --by beside --split-list",
                       "leave one of them out");
  }
  std::vector<ListableFile> listable;
  for (const InputFile& file : files)
    listable.push_back({name_within(options.input, file.path), file.source->records()});
  ListedParts parts;
  for (const std::string& split : splits_of_list(options.split_list, listable)) {
    parts.emplace_back();
    if (!split.empty()) parts.back().push_back({split, 0, -1});
  }
  return parts;
}

ListedParts listed_parts(const ConvertOptions& options, const Manifest& manifest,
                         const std::vector<InputFile>& files) {
  if (!options.split.empty() || options.split_by != SplitBy::automatic || !options.split_list.empty()) {
    throw config_error("split", "one way to divide the data",
                       "--split, --by or --split-list beside a manifest's splits",
                       "correct the splits in the manifest, or convert the files themselves");
  }
  ListedParts parts;
  for (size_t i = 0; i < files.size(); ++i) {
    const size_t first = parts.size();
    const int64_t records = files[i].source->records();
    parts.resize(first + static_cast<size_t>(records));
    for (const ListedPart& part : manifest.files[i].parts) {
      if (part.record >= records) {
        throw data_error(files[i].path.string(),
                         fmt::format("trajectory {}, as the manifest says", part.record),
                         fmt::format("{} trajectories", records), "correct the manifest, or write it again");
      }
      parts[first + static_cast<size_t>(part.record)].push_back({part.split, part.first, part.count});
    }
  }
  return parts;
}

/// Throws for options that the format has no use for.
void check_options(const ConvertOptions& options, const DataFormat& format) {
  const auto only_for = [&](const char* option, bool given, std::initializer_list<std::string_view> formats,
                            const char* needed) {
    if (!given || std::ranges::find(formats, format.name) != formats.end()) return;
    throw config_error(option, needed, std::string(format.name), fmt::format("leave --{} out", option));
  };
  only_for("fields", !options.fields.empty(), {"hdf5"}, "an HDF5 input, whose rows they name");
  only_for("map", !options.map.empty(), {"npz", "hdf5"}, "NPZ or HDF5 files, whose arrays it names");
  only_for("save-map", !options.save_map.empty(), {"npz", "hdf5"},
           "NPZ or HDF5 files, whose arrays it names");
  only_for("axes", !options.axes.empty(), {"npz", "hdf5"}, "NPZ or HDF5 files, whose arrays it describes");
  only_for("first-node", options.first_node.has_value(), {"npz", "hdf5"},
           "NPZ or HDF5 files, whose arrays it describes");
  only_for("series", !options.series.empty(), {"vtk", "hdf5"},
           "files of VTK or groups of HDF5, whose names it describes");
  only_for("separate", options.separate_frames, {"vtk", "npz", "hdf5"},
           "files or groups that can be frames of one simulation");
  if (!options.node_types.empty() && format.name == "deepmind") {
    throw config_error("node-types", "files with named arrays, one of which it names",
                       fmt::format("{} with node types {}", format.name, options.node_types),
                       "leave --node-types out: meta.json says where they are");
  }
  if (!options.node_types.empty() && options.map.contains("types")) {
    throw config_error("node-types", "one array of node types",
                       options.node_types + " and --map types=" + options.map.at("types"),
                       "leave one of them out");
  }
}

}  // namespace

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const DataFormat& format : kDataFormats) names.emplace_back(format.name);
  return names;
}

Inputs open_inputs(const ConvertOptions& options, const std::optional<Manifest>& manifest,
                   const WarningCallback& warn) {
  std::vector<FoundFile> found;
  if (manifest) {
    for (const ListedFile& listed : manifest->files) found.push_back(listed.file);
  } else {
    found = find_files(
        options.input, !options.split_list.empty(),
        [](const fs::path& path) { return format_of(path) != nullptr; }, warn);
  }
  if (options.format == "auto" || options.format == "xdmf") drop_parts_of_xdmf(found);
  const DataFormat& format = choose_format(options, found, !manifest);
  check_options(options, format);
  Inputs inputs;
  inputs.format = format.name;
  size_t named = 0;
  if (format.name == "vtk" && !manifest) found = vtk_series(found, options, inputs.notes, warn);
  for (const FoundFile& one : found) {
    InputFile file{one.path, one.split, format.open(one, options, warn), {}, {}};
    inputs.records += file.source->records();
    if (one.frames.empty()) file.files.push_back(one.path);
    const auto add_list = [&](const FoundFile& list) {
      if (!list.frames.empty()) file.lists.push_back(std::ssize(list.frames));
      for (const VtkFrame& frame : list.frames) file.files.push_back(frame.path);
    };
    add_list(one);
    for (const FoundFile& more : one.more) add_list(more);
    add_parts(one, file.files);
    for (const fs::path& path : file.files) inputs.bytes += RegularFile(path).bytes();
    named += file.split.empty() ? 0 : 1;
    inputs.files.push_back(std::move(file));
  }
  inputs.listed_parts =
      manifest ? listed_parts(options, *manifest, inputs.files) : listed_parts(options, inputs.files);
  if (!inputs.listed_parts.empty()) return inputs;
  const bool asked = !options.split.empty() || options.split_by == SplitBy::time;
  // A lone file is divided, unless its folder holds it for another split than train.
  std::error_code none;
  const bool lone =
      found.size() == 1 && (found.front().split == "train" || !fs::is_directory(options.input, none));
  const bool has_splits = named == found.size() && !lone;
  if (named > 0 && named < found.size() && !asked) {
    std::vector<std::pair<fs::path, std::string>> read;
    for (const FoundFile& file : found) read.emplace_back(file.path, file.split);
    throw data_error(
        options.input.string(), "a split in the name of every file, or of none",
        splits_as_read(options.input, read),
        "name each file or its folder train, valid or test, or divide them all: --split 0.8,0.1,0.1");
  }
  inputs.splits_from_files = has_splits && !asked;
  if (has_splits && !inputs.splits_from_files) {
    warn(fmt::format("[{}] the files' own splits were not used, since a split was asked for",
                     options.input.string()));
  }
  return inputs;
}

void check_all_packed(const std::vector<SplitPart>& listed, int64_t packed, const std::string& file) {
  int64_t frames = 0;
  for (const SplitPart& part : listed) frames += part.count;
  if (frames == packed) return;
  throw data_error(file, fmt::format("{} frames, as the manifest says", frames), fmt::format("{}", packed),
                   "correct the ranges in the manifest, or write it again");
}

void check_no_steps(const ConvertOptions& options, const Inputs& inputs, const ConvertReport& read) {
  const bool arrays = inputs.format == "npz" || inputs.format == "hdf5";
  if (!arrays || options.separate_frames || read.frames > read.trajectories || inputs.files.size() < 2)
    return;
  std::vector<std::string> names;
  for (const InputFile& file : inputs.files) names.push_back(file.path.string());
  for (const SeriesFamily& family : families_of(names)) {
    const auto steps = std::ranges::find_if(family.readings, &SeriesReading::frames_named_by_step);
    if (steps == family.readings.end()) continue;
    throw data_error(names[family.members.front()], "files of whole simulations",
                     fmt::format("{} files of one frame, {}: the steps of a simulation, or as many solutions",
                                 family.members.size(), fs::path(steps->pattern).filename().string()),
                     "--separate for a trajectory each; for one simulation save its frames in one file, as "
                     "[frames, nodes, components]");
  }
}

std::vector<int64_t> whole_shares(int64_t total, const std::vector<double>& fractions, int64_t minimum) {
  const auto wanted = std::count_if(fractions.begin(), fractions.end(), [](double f) { return f > 0; });
  const int64_t least = total >= wanted * minimum ? minimum : std::min<int64_t>(1, minimum);
  std::vector<int64_t> shares(fractions.size(), 0);
  int64_t left = total;
  // The first split takes what the later ones leave, so each later one is served first.
  for (size_t i = fractions.size(); i-- > 1;) {
    if (fractions[i] <= 0) continue;
    const int64_t ideal = std::llround(static_cast<double>(total) * fractions[i]);
    const int64_t most = std::max<int64_t>(left - least, 0);
    shares[i] = std::clamp(ideal, std::min(least, most), most);
    left -= shares[i];
  }
  shares.front() = left;
  return shares;
}

SplitPlan::SplitPlan(const ConvertOptions& options, const Inputs& inputs, const WarningCallback& warn)
    : listed_parts_(inputs.listed_parts), from_files_(inputs.splits_from_files) {
  fractions_ = options.split.empty() ? std::vector<double>{0.8, 0.1, 0.1} : options.split;
  check_fractions(fractions_);
  for (size_t i = 0; i < kSplitNames.size(); ++i) {
    const bool in_files = std::any_of(inputs.files.begin(), inputs.files.end(),
                                      [&](const InputFile& file) { return file.split == kSplitNames[i]; });
    const bool in_list = std::ranges::any_of(listed_parts_, [&](const std::vector<SplitPart>& parts) {
      return std::ranges::find(parts, kSplitNames[i], &SplitPart::split) != parts.end();
    });
    const bool by_fraction = i < fractions_.size() && fractions_[i] > 0;
    if (!listed_parts_.empty() ? in_list : (from_files_ ? in_files : by_fraction))
      names_.push_back(kSplitNames[i]);
  }
  statistics_split_ = names_.front();
  if (statistics_split_ != "train") {
    warn(fmt::format("[{}] there is no train split: statistics were taken from {}", options.input.string(),
                     statistics_split_));
  }
  if (from_files_ || !listed_parts_.empty()) return;
  enough_ = inputs.records >= static_cast<int64_t>(names_.size());
  by_time_ = options.split_by == SplitBy::time || (options.split_by == SplitBy::automatic && !enough_);
  record_counts_ = whole_shares(inputs.records, fractions_, 1);
}

std::string SplitPlan::doubt(const ConvertOptions& options, const Inputs& inputs,
                             const ConvertReport& read) const {
  if (enough_ || options.split_by == SplitBy::time) return "";
  const bool frames = read.frames > inputs.records;
  const bool nodes = std::ranges::any_of(read.fields, &FieldInfo::node_split);
  if (!frames && nodes) return "";  // the graph is divided by its nodes
  return fmt::format("[{}] fewer trajectories ({}) than splits ({}): {}", options.input.string(),
                     inputs.records, names_.size(),
                     by_time_ && frames ? "each was split by time" : "some splits are missing");
}

std::string SplitPlan::note(const ConvertOptions& options, const Inputs& inputs) const {
  if (from_files_ || by_time_ || !options.split.empty() || !listed_parts_.empty()) return "";
  std::map<std::string, std::vector<std::string>> members;
  int64_t record = 0;
  for (const InputFile& file : inputs.files) {
    const int64_t end = record + file.source->records();
    const std::string name = name_within(options.input, file.path);
    for (int64_t first = record; record < end;) {
      const std::string split = parts(file, record, 1, 0).front().split;
      ++record;
      if (record < end && parts(file, record, 1, 0).front().split == split) continue;
      members[split].push_back(file.source->records() == 1
                                   ? name
                                   : fmt::format("{} records {} to {}", name,
                                                 first - end + file.source->records(),
                                                 record - 1 - end + file.source->records()));
      first = record;
    }
  }
  std::string text;
  for (const std::string& split : names_) {
    if (members.contains(split)) text += fmt::format("; {}: {}", split, abridged(members[split]));
  }
  return fmt::format(
      "[{}] no file names say the splits, so trajectories were divided in order{}; --split changes it",
      options.input.string(), text);
}

std::vector<SplitPart> SplitPlan::parts(const InputFile& file, int64_t record, int64_t frames,
                                        int64_t first_frame) const {
  if (!listed_parts_.empty()) {
    std::vector<SplitPart> found;
    for (const SplitPart& part : listed_parts_[static_cast<size_t>(record)]) {
      const int64_t begin = std::max<int64_t>(part.first - first_frame, 0);
      const int64_t end = part.count < 0 ? frames : std::min(part.first + part.count - first_frame, frames);
      if (begin < end) found.push_back({part.split, begin, end - begin});
    }
    return found;
  }
  if (from_files_) return {{file.split, 0, frames}};
  std::vector<SplitPart> parts;
  if (by_time_) {
    // Two frames are the least that has a change.
    const std::vector<int64_t> shares = whole_shares(frames, fractions_, 2);
    int64_t first = 0;
    for (size_t i = 0; i < shares.size(); ++i) {
      if (shares[i] > 0) parts.push_back({kSplitNames[i], first, shares[i]});
      first += shares[i];
    }
    return parts;
  }
  size_t i = 0;
  for (int64_t end = record_counts_[0]; i + 1 < record_counts_.size() && record >= end;)
    end += record_counts_[++i];
  return {{kSplitNames[i], 0, frames}};
}

}  // namespace meshgrad
