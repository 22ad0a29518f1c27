// SPDX-License-Identifier: Apache-2.0
// DeepMind's mesh data sets: a TFRecord file per split, each record a tf.Example with one raw buffer a field,
// and meta.json beside them (google-deepmind/deepmind-research, meshgraphnets/dataset.py).
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <meshgrad/train/convert/sources/deepmind_meta.h>
#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

/// Opens one split's file; meta.json is looked for beside it. Both CRCs of each record are checked.
std::unique_ptr<TrajectorySource> open_deepmind(const std::filesystem::path& tfrecord,
                                                const WarningCallback& warn);

/// The trajectories of one record (a tf.Example): one, or one per stretch of frames with the same mesh where
/// the mesh changes in time (mesh_pos, cells or node_type of type dynamic or dynamic_varlen). `name` is the
/// record's name. Defined for any bytes; throws DataError naming the record and the field.
std::vector<RawTrajectory> trajectories_of_record(std::span<const std::byte> message,
                                                  const DeepmindMeta& meta, std::string_view name,
                                                  const WarningCallback& warn);

}  // namespace meshgrad
