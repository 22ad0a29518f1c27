// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/task/edge_fields.h>
#include <meshgrad/train/learn/task/sample.h>
#include <meshgrad/train/learn/task/world_edge_search.h>

#include <fmt/format.h>

namespace meshgrad {

std::vector<FieldInfo> edge_fields(const Dataset& dataset, const DataConfig& config) {
  std::vector<FieldInfo> fields;
  for (const std::string& name : config.edge_inputs) {
    const FieldInfo& field = dataset.field(name);
    if (field.on != FieldOn::edge || field.dtype != DType::f32) {
      throw config_error("data.edge_inputs", "f32 fields on edges",
                         fmt::format("{} ({} on {}s)", name, name_of(field.dtype), name_of(field.on)),
                         "name other fields; see meshgrad info");
    }
    fields.push_back(field);
  }
  if (!fields.empty() && edge_options(config) != MeshEdgeOptions{}) {
    throw config_error("data.edge_inputs", "[] with data.hops above 1 or data.period, which make other edges",
                       listed(config.edge_inputs), "leave out data.edge_inputs, or the other two");
  }
  return fields;
}

int64_t columns_of(std::span<const FieldInfo> fields) {
  int64_t columns = 0;
  for (const FieldInfo& field : fields) columns += field.components;
  return columns;
}

template <class T>
void write_edge_fields(std::span<const FieldInfo> fields, const TrajectoryView& trajectory, int64_t frame,
                       int64_t width, T* rows) {
  for (const FieldInfo& field : fields) {
    const std::span<const float> values = trajectory.field(field.name).frame(frame);
    const auto components = static_cast<size_t>(field.components);
    for (size_t edge = 0; edge * components < values.size(); ++edge)
      for (size_t c = 0; c < components; ++c)
        rows[edge * static_cast<size_t>(width) + c] = static_cast<T>(values[edge * components + c]);
    rows += components;
  }
}
template void write_edge_fields(std::span<const FieldInfo>, const TrajectoryView&, int64_t, int64_t, float*);
template void write_edge_fields(std::span<const FieldInfo>, const TrajectoryView&, int64_t, int64_t, double*);

}  // namespace meshgrad
