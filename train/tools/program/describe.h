// SPDX-License-Identifier: Apache-2.0
// The contents of packed files and safetensors files as text and JSON.
#pragma once
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/data/safetensors.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace meshgrad::cli {

/// "velocity[2] m/s, length[1] (edge, static), label[1] (i64, static)": what a field is on unless nodes, its
/// dtype unless f32, whether it is static, and whether it splits the nodes.
std::string fields_text(const std::vector<FieldInfo>& fields);
/// "in 2-D", "without positions".
std::string dimensions_text(int dim);
/// "1.6 to 2.2 by 1 (sizes of meshes along the axes)".
std::string extent_text(const std::vector<MeshExtent>& axes);
/// A list of {min, max}.
nlohmann::ordered_json extent_json(const std::vector<MeshExtent>& axes);
/// "train 8, valid 1, test 1", in trajectories.
std::string splits_text(const std::vector<SplitInfo>& splits);

/// A list of {name, components, dynamic, unit, on, dtype}.
nlohmann::ordered_json fields_json(const std::vector<FieldInfo>& fields);
/// An object: name -> trajectories.
nlohmann::ordered_json splits_json(const std::vector<SplitInfo>& splits);

/// A line for each of the first trajectories that a conversion read: "flow.pvd: 20 frames, times 0 to 0.19,
/// 20 files, flow_0.vtu to flow_19.vtu, in train"; and one that says how many more there are.
std::vector<std::string> read_lines(const std::vector<ReadTrajectory>& read);

/// The contents of a packed file or a safetensors file, as text or JSON; of a checkpoint as text with `all`,
/// and in JSON always, also the counters that a run resumes from and every tensor. Throws DataError if `path`
/// is neither or cannot be read.
std::string describe_file(const std::string& path, bool json, bool all = false);

/// Whether `meshgrad train` or an embedded trainer wrote it.
bool is_checkpoint(const SafetensorsView& view);
/// A run's checkpoint for people: what was trained on what, how far, and its losses.
std::string describe_checkpoint(const std::string& path);
/// What was read from where, as JSON: the manifest of a packed file. Throws DataError where it has none.
std::string manifest_of(const std::string& path);

}  // namespace meshgrad::cli
