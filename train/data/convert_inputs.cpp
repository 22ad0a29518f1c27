// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/convert_inputs.h>
#include <meshgrad/train/data/sources/deepmind_source.h>
#include <meshgrad/train/data/sources/hdf5_source.h>
#include <meshgrad/train/data/sources/npz_source.h>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

const std::array<std::string, 3> kSplitNames{"train", "valid", "test"};

std::string format_of(const fs::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".tfrecord" || extension == ".tfrecords") return "deepmind";
  if (extension == ".npz") return "npz";
  if (extension == ".h5" || extension == ".hdf5") return "hdf5";
  return {};
}

std::string split_of(const fs::path& path) {
  const std::string stem = path.stem().string();
  const auto is = [&](std::string_view name) {
    return stem == name || stem.ends_with("_" + std::string(name)) || stem.ends_with("-" + std::string(name));
  };
  if (is("train")) return "train";
  if (is("valid") || is("val") || is("validation")) return "valid";
  return is("test") ? "test" : "";
}

std::vector<fs::path> files_of(const ConvertOptions& options) {
  std::error_code error;
  if (!fs::exists(options.input, error)) {
    throw data_error(options.input.string(), "a folder or a file", error ? error.message() : "nothing there",
                     "check the path");
  }
  if (!fs::is_directory(options.input)) return {options.input};
  std::vector<fs::path> paths;
  for (auto entry = fs::directory_iterator(options.input, error); entry != fs::end(entry);
       entry.increment(error)) {
    if (entry->is_regular_file(error) && !format_of(entry->path()).empty()) paths.push_back(entry->path());
  }
  if (error)
    throw data_error(options.input.string(), "a readable folder", error.message(), "check its permissions");
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string choose_format(const ConvertOptions& options, std::vector<fs::path>& paths) {
  if (options.format != "auto" && options.format != "deepmind" && options.format != "npz" &&
      options.format != "hdf5") {
    throw config_error("format", "auto, deepmind, npz or hdf5", options.format, "choose one of them");
  }
  const bool named = options.format != "auto";
  if (named && fs::is_directory(options.input)) {
    std::erase_if(paths, [&](const fs::path& path) { return format_of(path) != options.format; });
  }
  if (paths.empty()) {
    throw data_error(options.input.string(), "files ending in .tfrecord, .npz, .h5 or .hdf5", "none",
                     "name the folder that holds the data");
  }
  const std::string format = named ? options.format : format_of(paths.front());
  for (const fs::path& path : paths) {
    if (named || (format_of(path) == format && !format.empty())) continue;
    throw data_error(
        path.string(), format.empty() ? "a name ending in .tfrecord, .npz, .h5 or .hdf5" : "one format",
        format.empty() ? "another" : format_of(path) + " beside " + format, "say which: --format");
  }
  return format;
}

std::unique_ptr<TrajectorySource> open_source(const std::string& format, const fs::path& path,
                                              const ConvertOptions& options, const WarningCallback& warn) {
  if (format == "deepmind") return open_deepmind(path, warn);
  if (format == "npz") return open_npz(path);
  return open_hdf5(path, options.fields, warn);
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

}  // namespace

Inputs open_inputs(const ConvertOptions& options, const WarningCallback& warn) {
  std::vector<fs::path> paths = files_of(options);
  Inputs inputs;
  inputs.format = choose_format(options, paths);
  size_t named = 0;
  for (const fs::path& path : paths) {
    InputFile file{path, split_of(path), open_source(inputs.format, path, options, warn)};
    inputs.records += file.source->records();
    inputs.bytes += fs::file_size(path);
    named += file.split.empty() ? 0 : 1;
    inputs.files.push_back(std::move(file));
  }
  const bool has_splits = named == paths.size() && paths.size() > 1;
  inputs.splits_from_files = has_splits && options.split.empty() && options.split_by != SplitBy::time;
  if (has_splits && !inputs.splits_from_files) {
    warn(fmt::format("[{}] the files' own splits were not used, since a split was asked for",
                     options.input.string()));
  }
  return inputs;
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
    : from_files_(inputs.splits_from_files) {
  fractions_ = options.split.empty() ? std::vector<double>{0.8, 0.1, 0.1} : options.split;
  check_fractions(fractions_);
  for (size_t i = 0; i < kSplitNames.size(); ++i) {
    const bool in_files = std::any_of(inputs.files.begin(), inputs.files.end(),
                                      [&](const InputFile& file) { return file.split == kSplitNames[i]; });
    if (from_files_ ? in_files : i < fractions_.size() && fractions_[i] > 0) names_.push_back(kSplitNames[i]);
  }
  statistics_split_ = names_.front();
  if (statistics_split_ != "train") {
    warn(fmt::format("[{}] there is no train split: statistics were taken from {}", options.input.string(),
                     statistics_split_));
  }
  if (from_files_) return;
  const bool enough = inputs.records >= static_cast<int64_t>(names_.size());
  by_time_ = options.split_by == SplitBy::time || (options.split_by == SplitBy::automatic && !enough);
  if (by_time_ && options.split_by == SplitBy::automatic) {
    warn(fmt::format("[{}] fewer trajectories ({}) than splits ({}): each was split by time",
                     options.input.string(), inputs.records, names_.size()));
  } else if (!by_time_ && !enough) {
    warn(fmt::format("[{}] fewer trajectories ({}) than splits ({}): some splits are missing",
                     options.input.string(), inputs.records, names_.size()));
  }
  record_counts_ = whole_shares(inputs.records, fractions_, 1);
}

std::vector<SplitPart> SplitPlan::parts(const InputFile& file, int64_t record, int64_t frames) const {
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
