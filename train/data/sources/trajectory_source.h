// SPDX-License-Identifier: Apache-2.0
// Trajectories as they come out of a file, one at a time, before they are packed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// One field of a trajectory.
struct RawField {
  std::string name;
  int components = 1;
  bool dynamic = true;
  std::string unit;           ///< empty when unknown
  std::vector<float> values;  ///< [frames, nodes, components]; [nodes, components] when static
};

/// One trajectory on one mesh.
struct RawTrajectory {
  std::string name;    ///< "data/train.tfrecord: record 3", for errors; the packed file keeps the end
  int64_t record = 0;  ///< which record of its file; parts of a record whose mesh changes share it
  int64_t first_frame = 0;
  int64_t frames = 1;
  int64_t nodes = 0;
  int dim = 0;                     ///< 2 or 3
  std::vector<float> positions;    ///< [nodes, dim]
  std::vector<int32_t> node_type;  ///< [nodes], or empty when the file has none
  std::vector<int32_t> cells;      ///< [cells, nodes_per_cell]; empty when edges are given
  int nodes_per_cell = 0;
  std::vector<int32_t> edges;  ///< [2, edges], one way or both; empty when cells are given
  double dt = 0;               ///< seconds; 0 when unknown
  std::vector<RawField> fields;
};

/// Called with one line of text for anything repaired or assumed.
using WarningCallback = std::function<void(const std::string&)>;

/// Reads trajectories in the order of the file.
class TrajectorySource {
 public:
  virtual ~TrajectorySource() = default;
  /// How many records next() will read, known before reading them.
  virtual int64_t records() const = 0;
  /// The next trajectory, or nothing at the end. Throws DataError naming file, record and field.
  virtual std::optional<RawTrajectory> next() = 0;
  /// Bytes of input read so far.
  virtual uint64_t bytes_read() const = 0;
};

/// Throws DataError, naming the trajectory and the field, when sizes disagree, a value is not finite, a node
/// type is outside 0..8, the mesh has neither cells nor edges, or there is nothing in it.
void validate(const RawTrajectory& trajectory);

/// Frames first..first + count - 1 of a trajectory.
RawTrajectory cut_frames(const RawTrajectory& trajectory, int64_t first, int64_t count);

}  // namespace meshgrad
#pragma GCC visibility pop
