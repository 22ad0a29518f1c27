// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/gemm_tuning.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace meshgrad {
namespace {

constexpr std::string_view kHeader = "meshgrad gemm choices, ";

}  // namespace

GemmChoices::GemmChoices(std::filesystem::path file, std::string machine)
    : file_(std::move(file)), machine_(std::move(machine)), choices_(read()) {}

GemmChoices::Choices GemmChoices::read() {
  std::ifstream in(file_);
  if (!in) return {};
  std::string line;
  if (!std::getline(in, line) || line != std::string(kHeader) + machine_) {
    problem_ = file_.string() + " is not about " + machine_;
    return {};
  }
  Choices found;
  while (std::getline(in, line)) {
    const size_t tab = line.find('\t');
    // A last line without a newline was cut off while it was written.
    if (tab == std::string::npos || tab == 0 || tab + 1 == line.size() || in.eof()) {
      problem_ = file_.string() + " is damaged after " + std::to_string(found.size()) + " choices";
      return {};
    }
    found[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return found;
}

const std::string* GemmChoices::find(const std::string& gemm) const {
  const auto found = choices_.find(gemm);
  return found == choices_.end() ? nullptr : &found->second;
}

void GemmChoices::add(const std::string& gemm, const std::string& choice) {
  if (!file_.empty()) choices_.merge(read());
  choices_[gemm] = choice;
  if (!file_.empty()) write();
}

/// Writes a temporary file and renames it: another process may read at any time.
void GemmChoices::write() const {
  std::error_code ignored;
  std::filesystem::create_directories(file_.parent_path(), ignored);
  std::filesystem::path unfinished = file_;
  unfinished += "." + std::to_string(getpid());
  std::ofstream out(unfinished);
  out << kHeader << machine_ << '\n';
  for (const auto& [gemm, choice] : choices_) out << gemm << '\t' << choice << '\n';
  out.close();
  if (out) {
    std::filesystem::rename(unfinished, file_, ignored);
  } else {
    std::filesystem::remove(unfinished, ignored);
  }
}

std::filesystem::path gemm_choices_file(std::string_view name) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (cache != nullptr && *cache != '\0') {
    folder = cache;
  } else if (home != nullptr && *home != '\0') {
    folder = std::filesystem::path(home) / ".cache";
  } else {
    return {};
  }
  std::string plain(name);
  for (char& c : plain) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  }
  return folder / "meshgrad" / ("gemm-" + plain + ".txt");
}

}  // namespace meshgrad
