// SPDX-License-Identifier: Apache-2.0
// Borrowed arrays as the engine reads them: f32, less an offset.
#pragma once
#include <meshgrad/train/data/memory_data.h>
#include <meshgrad/train/embed/arrays.h>
#include <meshgrad/train/embed/host_copies.h>

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// `values` less `offset` (per component; empty: 0) as f32, in f64 before they are rounded.
void round_to(std::span<float> to, const Numbers& values, std::span<const double> offset);

/// What a conversion of the same positions would subtract; empty: nothing.
std::vector<double> far_origin(const Numbers& positions, int dim);

/// Throws DataError that names `where` and the row of the first number that f32 cannot hold: nan, infinite,
/// or too large. `columns`: of a row; `reads`: the rows that count, if not all do.
void check_finite(std::string_view where, const Numbers& values, int64_t columns, std::string_view fix,
                  const std::function<bool(int64_t row)>& reads = {});

/// A warning of a mesh whose edges all have the length 0; empty where one has another.
std::string no_lengths_warning(const MeshView& mesh);

/// Numbers on the host that stay borrowed. f32 without an offset or gaps is read where it is, others from a
/// rounded copy.
class HeldNumbers {
 public:
  /// Others from now on, in the room of those before; `copies` has them where they are copies of the
  /// device's.
  void hold(Numbers values, std::vector<double> offset, HostCopies copies) {
    copies_ = std::move(copies);
    values_ = values;
    offset_ = std::move(offset);
    given_ = true;
  }
  bool given() const { return given_; }
  const Numbers& values() const { return values_; }
  const std::vector<double>& offset() const { return offset_; }
  /// From the device, where they live there.
  void fetch() const { copies_.read_again(); }
  std::span<const float> read();

 private:
  HostCopies copies_;
  Numbers values_;
  std::vector<double> offset_;
  std::vector<float> rounded_;
  bool given_ = false;
};

/// Positions and node types of a mesh in a MemoryData.
class HeldMesh {
 public:
  /// Adds the mesh to `data`, which this outlives. Throws InvalidArgument and DataError with `name`.
  HeldMesh(const Runtime& runtime, MemoryData& data, const MeshArrays& mesh, std::string_view name);
  /// From the device, where they live there. Throws DataError for one that is not finite.
  void fetch_positions() const;
  /// On the host, as they were given.
  const Numbers& positions() const { return positions_.values(); }
  /// Where the application has them.
  const Numbers& given() const { return given_; }
  /// What is subtracted from them; empty: nothing.
  const std::vector<double>& origin() const { return positions_.offset(); }
  /// Reads the positions again, which were fetched.
  void read_positions() { positions_.read(); }

 private:
  void check_positions() const;

  std::string name_;
  int dim_;
  Numbers given_;
  HeldNumbers positions_;
  std::vector<int32_t> node_type_;  // where none were given, of 64 bits, or on a device
};

}  // namespace meshgrad
