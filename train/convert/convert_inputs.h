// SPDX-License-Identifier: Apache-2.0
// Which files a conversion reads, in which format, and which split each trajectory or frame belongs to.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/manifest.h>
#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

struct InputFile {
  std::filesystem::path path;
  std::string
      split;  ///< "train", "valid", "test" from its folder's or its own name; empty when they say none
  std::unique_ptr<TrajectorySource> source;
  std::vector<std::filesystem::path> files;  ///< all that are read
  std::vector<int64_t> lists;                ///< of VTK: how many of these are the frames of each list
};

/// One range of frames of a trajectory and the split it goes to.
struct SplitPart {
  std::string split;
  int64_t first = 0;
  int64_t count = 0;
};

struct Inputs {
  std::string format;  ///< one of format_names()
  std::vector<InputFile> files;
  std::vector<std::string> notes;  ///< what was decided where nothing said it
  bool splits_from_files = false;
  /// Of each record, as a list of splits or a manifest says; empty without one. A count of -1 is all frames.
  std::vector<std::vector<SplitPart>> listed_parts;
  int64_t records = 0;
  uint64_t bytes = 0;
};

/// Finds and opens the files: one, or those of a folder and of its folders of splits (split_names.h), sorted
/// by path; with a list of splits, those of all folders in it. Throws ConfigError or DataError when there is
/// nothing to read, when only some names say a split, and for options that the format has no use for.
///
/// With a manifest, the files are those that it lists.
Inputs open_inputs(const ConvertOptions& options, const std::optional<Manifest>& manifest,
                   const WarningCallback& warn);

/// Throws DataError where a manifest names frames that a record does not have: `packed` were packed.
void check_all_packed(const std::vector<SplitPart>& listed, int64_t packed, const std::string& file);

/// Throws DataError where files of arrays have one frame each and names that say that they are steps: one
/// simulation, or as many solutions.
void check_no_steps(const ConvertOptions& options, const Inputs& inputs, const ConvertReport& read);

/// Where each record goes, once the number of records is known.
class SplitPlan {
 public:
  /// Throws ConfigError when the fractions are not 1 to 3 numbers that add up to 1.
  SplitPlan(const ConvertOptions& options, const Inputs& inputs, const WarningCallback& warn);

  /// The parts of record `record` (counted over all files) of a file, for a trajectory of so many frames, the
  /// first of which is that of the record; none for one that a list leaves out.
  std::vector<SplitPart> parts(const InputFile& file, int64_t record, int64_t frames,
                               int64_t first_frame) const;
  /// Which trajectories go where, when neither names nor options said it; else empty.
  std::string note(const ConvertOptions& options, const Inputs& inputs) const;
  /// What is doubtful about the division of what was read; empty: nothing.
  std::string doubt(const ConvertOptions& options, const Inputs& inputs, const ConvertReport& read) const;
  /// Names in the order in which they go into the file.
  const std::vector<std::string>& names() const { return names_; }
  /// "train", or the first split when there is no "train".
  const std::string& statistics_split() const { return statistics_split_; }

 private:
  std::vector<std::string> names_;
  std::vector<double> fractions_;
  std::vector<int64_t> record_counts_;
  std::vector<std::vector<SplitPart>> listed_parts_;
  bool from_files_ = false;
  bool by_time_ = false;
  bool enough_ = true;  ///< trajectories for all splits
  std::string statistics_split_;
};

/// Whole shares of `total` near the fractions; a non-zero fraction gets at least `minimum` where there is
/// enough.
std::vector<int64_t> whole_shares(int64_t total, const std::vector<double>& fractions, int64_t minimum);

}  // namespace meshgrad
