// SPDX-License-Identifier: Apache-2.0
// Which numbers in names count the frames of a simulation: "run_3_0.05" may be frame 0.05 of run 3, frame 5
// of run 3_0, or frame 3 of simulation 0.05. Works on names only, so that it is the same for files and
// groups.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// One way to read numbered names.
struct SeriesReading {
  std::string pattern;                      ///< "run_{case}_{frame}.vtu", as parse_series takes it
  std::vector<std::vector<size_t>> groups;  ///< places of names; the frames of each group in order
  bool frame_before_case = false;           ///< a number after that of the frame also changes
  bool cases_named_by_rank = false;         ///< a word before a number of the cases says rank or part
  bool frames_named_by_rank = false;        ///< or before that of the frame
  bool frames_named_by_step = false;        ///< which says step, time or frame
};

/// Names that are the same but for their numbers, and all ways to read them: none where no number changes.
struct SeriesFamily {
  std::vector<size_t> members;  ///< places of names
  std::vector<SeriesReading> readings;
};

/// Families in the order of their first names, whatever the order of `names`; every name is in one. Numbers
/// are ordered as people read them: decimal, scientific ("1e-3"), with or without leading zeros. Numbers that
/// change together are one; where they would give other orders, each order is a reading. "0.5" is a decimal
/// or two whole numbers: both are readings unless the digits rule one out ("0.05" beside "0.1" counts
/// nothing, "1.9" beside "1.10" is no decimal) or both give the same. Defined for any text.
std::vector<SeriesFamily> families_of(std::span<const std::string> names);

/// The reading by a pattern with one {frame}, a number, and any {case} (text that tells simulations apart)
/// and
/// * (text that does not count); names that do not match are in no group. Throws ConfigError for another
/// pattern.
SeriesReading parse_series(const std::string& pattern, std::span<const std::string> names);

}  // namespace meshgrad
