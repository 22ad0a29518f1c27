// SPDX-License-Identifier: Apache-2.0
// The contents of packed files and safetensors files as text and JSON.
#pragma once
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/data_facts.h>
#include <meshgrad/train/data/safetensors.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace meshgrad::cli {

/// "velocity[2] m/s, length[1] (edge, static), label[1] (i64, static)": what a field is on unless nodes, its
/// dtype unless f32, whether it is static, and whether it splits the nodes.
std::string fields_text(const std::vector<FieldInfo>& fields);

/// "in 2-D", "without positions".
std::string dimensions_text(int dim);

/// The lines data, dt, nodes, extent (where it was measured), types, splits and fields.
std::string facts_text(const DataFacts& facts);
/// The same as an object; its fields are a list of {name, components, dynamic, unit, on, dtype}.
nlohmann::ordered_json facts_json(const DataFacts& facts);

/// What a component's values are, in the field's unit.
struct ValueRange {
  double least = 0, most = 0;
  std::optional<double> mean, deviation, change;  ///< `change`: root mean square from frame to frame
};
/// A line for each component of a field, or one for all of many: "values    u[0]: 0 to 1.2 m/s, mean 0.5".
std::string value_lines(const FieldInfo& field, const std::vector<ValueRange>& components);

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
