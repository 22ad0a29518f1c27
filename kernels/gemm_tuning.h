// SPDX-License-Identifier: Apache-2.0
// Cache of GEMM autotuning results between runs: one text file per device and library version. A missing or
// damaged file only costs the measurements again, so nothing here is an error.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace meshgrad {

class GemmChoices {
 public:
  GemmChoices() = default;
  /// Reads `file`, whose first line must name `machine`. A missing file counts as empty; so does one that
  /// cannot be parsed, and `problem` then says why.
  GemmChoices(std::filesystem::path file, std::string machine);
  const std::string& problem() const { return problem_; }

  /// The algorithm chosen for a GEMM; null when none was stored.
  const std::string* find(const std::string& gemm) const;
  /// Adds a choice and rewrites the file, merged with what other processes added since it was read. The texts
  /// must contain no tabs or newlines.
  void add(const std::string& gemm, const std::string& choice);

 private:
  using Choices = std::map<std::string, std::string>;
  Choices read();
  void write() const;
  std::filesystem::path file_;
  std::string machine_, problem_;
  Choices choices_;
};

/// $XDG_CACHE_HOME/meshgrad/gemm-NAME.txt, or ~/.cache/meshgrad/...; an empty path when neither
/// XDG_CACHE_HOME nor HOME is set.
std::filesystem::path gemm_choices_file(std::string_view name);

}  // namespace meshgrad
