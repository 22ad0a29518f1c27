// SPDX-License-Identifier: Apache-2.0
// Small data sets in DeepMind's format, good ones and, with a change, bad ones.
#pragma once
#include <meshgrad/train/convert/sources/tf_example.h>
#include <meshgrad/train/data/tfrecord.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support.h"

namespace meshgrad::test {

/// One trajectory on two triangles: a square of 4 nodes.
struct SquareRecord {
  std::vector<int32_t> cells{0, 1, 2, 0, 2, 3};
  std::vector<float> mesh_pos{0, 0, 1, 0, 1, 1, 0, 1};
  std::vector<int32_t> node_type{4, 0, 0, 6};
  std::vector<float> velocity;  ///< [frames, 4, 2]
  std::vector<std::pair<std::string, std::vector<std::byte>>> more;

  explicit SquareRecord(int64_t frames, float scale = 1) {
    for (int64_t i = 0; i < frames * 8; ++i) {
      velocity.push_back(scale * static_cast<float>((i * i * 7 + i * 3) % 11));
    }
  }
  std::vector<std::byte> message() const {
    std::vector<std::pair<std::string, std::span<const std::byte>>> features{
        {"cells", std::as_bytes(std::span(cells))},
        {"mesh_pos", std::as_bytes(std::span(mesh_pos))},
        {"node_type", std::as_bytes(std::span(node_type))},
        {"velocity", std::as_bytes(std::span(velocity))}};
    for (const auto& [name, bytes] : more) features.emplace_back(name, bytes);
    return write_example(features);
  }
};

/// The meta.json that describes SquareRecord.
inline nlohmann::json square_meta(int64_t frames) {
  const auto feature = [](const char* type, std::vector<int64_t> shape, const char* dtype) {
    return nlohmann::json{{"type", type}, {"shape", shape}, {"dtype", dtype}};
  };
  return {{"dt", 0.5},
          {"trajectory_length", frames},
          {"field_names", {"cells", "mesh_pos", "node_type", "velocity"}},
          {"features",
           {{"cells", feature("static", {1, -1, 3}, "int32")},
            {"mesh_pos", feature("static", {1, -1, 2}, "float32")},
            {"node_type", feature("static", {1, -1, 1}, "int32")},
            {"velocity", feature("dynamic", {frames, -1, 2}, "float32")}}}};
}

inline void write_bytes(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

inline void write_meta(const std::filesystem::path& folder, const nlohmann::json& meta) {
  std::ofstream(folder / "meta.json") << meta.dump();
}

inline std::vector<std::byte> tfrecord_of(const std::vector<SquareRecord>& records) {
  std::vector<std::byte> file;
  for (const SquareRecord& record : records) write_record(file, record.message());
  return file;
}

}  // namespace meshgrad::test
