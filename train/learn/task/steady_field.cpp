// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/steady_field.h>

#include <algorithm>

namespace meshgrad {

SteadyField::SteadyField(const Dataset& dataset, const DataConfig& config, const LossConfig& loss)
    : mesh_(dataset, config, false, 1, loss) {
  const FieldSelection& fields = mesh_.fields;
  if (fields.world_position && fields.world_position->target_column >= 0) {
    throw config_error(
        "data.world_position", "a field that is no target: a steady field has no state before it",
        config.world_position, "remove it from data.targets, or set task.name = \"mesh_dynamics\"");
  }
  for (const FieldSelection::Input& input : fields.inputs) {
    if (input.target_column < 0) continue;
    throw config_error("data.inputs", "fields that are not targets: a steady field has no state before it",
                       input.field.name, "remove it from data.inputs, or set task.name = \"mesh_dynamics\"");
  }
}

void SteadyField::write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                        const NoiseOptions& noise, Normalizers& normalizers, bool learn,
                        SampleScratch& scratch) const {
  const std::vector<int64_t>& noise_types = mesh_.fields.config.noise_types;
  const auto add_noise = [&](const TrajectoryView& view, const Sample& sample, auto* nodes) {
    const MeshView& mesh = view.mesh();
    const auto types = mesh.node_type;
    const auto width = static_cast<size_t>(mesh_.fields.node_inputs);
    std::vector<double> deviations;  // by column; a condition of a mesh stays the same at all its nodes
    for (const FieldSelection::Input& input : mesh_.fields.inputs)
      deviations.resize(deviations.size() + static_cast<size_t>(input.field.components),
                        input.field.on == FieldOn::node ? noise.of(input.field.name) : 0.0);
    for (size_t i = 0; i < types.size(); ++i) {
      if (!contains_type(noise_types, types[i])) continue;
      for (size_t column = 0; column < deviations.size(); ++column) {
        if (deviations[column] <= 0.0) continue;
        const double draw =
            training_noise(noise.seed, sample.visit, view.sample_id(sample.frame),
                           static_cast<uint32_t>(mesh.point_of(i)), static_cast<uint32_t>(column));
        auto& value = nodes[i * width + column];
        value += static_cast<std::remove_reference_t<decltype(value)>>(deviations[column] * draw);
      }
    }
  };
  write_mesh_batch(mesh_, batch, split, samples, normalizers, learn, scratch,
                   [&](const TrajectoryView& view, const Sample& sample, auto* nodes, auto* targets) {
                     write_nodes(mesh_.fields, view, sample.frame, {}, nodes);
                     if (noise.any()) add_noise(view, sample, nodes);
                     mesh_.fields.read_targets(view, sample.frame, scratch.next);
                     std::copy(scratch.next.begin(), scratch.next.end(), targets);
                   });
  mesh_.loss.write(batch, mesh_, split, samples, noise.seed);
  mesh_.check_read(split, samples);
}

LossTerms SteadyField::loss(Tape& tape, const Model& model, const Batch& batch,
                            const Recomputation& recomputation, const Teacher* teacher) const {
  const Tensor missing = mesh_.world.find(tape.runtime(), batch);
  const TeacherOutput taught = teacher != nullptr ? teacher->predict(tape.runtime(), batch) : TeacherOutput();
  const Values values = forward(model, tape, batch.graph, recomputation.stages);
  const Variable sum = field_loss(tape, values.front(), batch, mesh_.loss.form(batch), taught);
  return {.sum = sum, .penalty = {}, .missing = missing};
}

std::vector<GivenTensor> SteadyField::given(const Batch& batch) const {
  return {{"target", batch.tensor("target"), batch.graph.node_rows(), batch.tensor("mask")}};
}

}  // namespace meshgrad
