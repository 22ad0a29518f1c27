// SPDX-License-Identifier: Apache-2.0
// A directory for one test case's files, removed when the case ends.
#pragma once
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

namespace meshgrad::test {

struct ScratchDirectory {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("meshgrad-test-" + std::to_string(std::random_device{}()));
  ScratchDirectory() { std::filesystem::create_directories(path); }
  ~ScratchDirectory() { std::filesystem::remove_all(path); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
};

/// The bytes of a file; empty when there is none.
inline std::string read_text(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace meshgrad::test
