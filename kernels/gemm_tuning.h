// SPDX-License-Identifier: Apache-2.0
// What was measured about matrix products on this machine, kept from run to run: one text file for a device
// and library version. Losing it costs a measurement, so that nothing about it is an error.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace meshgrad {

class GemmChoices {
 public:
  GemmChoices() = default;
  /// Reads `file`, whose first line has to name `machine`. A file that is not there is an empty one; so is
  /// one that cannot be understood, and `problem` says why.
  GemmChoices(std::filesystem::path file, std::string machine);
  const std::string& problem() const { return problem_; }

  /// The choice for a product; null when there is none.
  const std::string* find(const std::string& product) const;
  /// Adds a choice and rewrites the file, together with what other processes added meanwhile. Neither text
  /// has tabs or line ends.
  void add(const std::string& product, const std::string& choice);

 private:
  using Choices = std::map<std::string, std::string>;
  Choices read();
  void write() const;
  std::filesystem::path file_;
  std::string machine_, problem_;
  Choices choices_;
};

/// $XDG_CACHE_HOME/meshgrad/gemm-NAME.txt, else below ~/.cache; empty when neither variable is set.
std::filesystem::path gemm_choices_file(std::string_view name);

}  // namespace meshgrad
