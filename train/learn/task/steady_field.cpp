// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/steady_field.h>

#include <algorithm>

namespace meshgrad {

SteadyField::SteadyField(const Dataset& dataset, const DataConfig& config, const LossConfig& loss)
    : inputs_(dataset, config), loss_(loss) {
  if (inputs_.world_position() && inputs_.world_position()->target_column >= 0) {
    throw config_error(
        "data.world_position", "a field that is no target: a steady field has no state before it",
        config.world_position, "remove it from data.targets, or set task.name = \"mesh_dynamics\"");
  }
  for (const MeshInputs::Input& input : inputs_.inputs()) {
    if (input.target_column < 0) continue;
    throw config_error("data.inputs", "fields that are not targets: a steady field has no state before it",
                       input.field.name, "remove it from data.inputs, or set task.name = \"mesh_dynamics\"");
  }
}

Normalizers SteadyField::dataset_normalizers(const NoiseOptions&) const {
  std::vector<double> mean, deviation;
  for (const FieldInfo& field : inputs_.targets()) {
    const FieldStatistics stats = inputs_.predicted_stats(field.name, Quantity::value);
    mean.insert(mean.end(), stats.mean.begin(), stats.mean.end());
    deviation.insert(deviation.end(), stats.std.begin(), stats.std.end());
  }
  return inputs_.dataset_normalizers(Normalizer::fixed(mean, deviation));
}

BatchLayout SteadyField::layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const {
  BatchLayout layout = inputs_.layout(shape, dtype, kind);
  loss_.add_to(layout, inputs_.outputs());
  return layout;
}

SteadyField SteadyField::for_validation() const {
  SteadyField task = *this;
  task.inputs_ = inputs_.for_validation();
  task.loss_ = loss_.for_validation();
  return task;
}

void SteadyField::write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                        const NoiseOptions& noise, Normalizers& normalizers, bool learn,
                        SampleScratch& scratch) const {
  const std::vector<int64_t>& noise_types = inputs_.config().noise_types;
  const auto add_noise = [&](const TrajectoryView& view, const Sample& sample, auto* nodes) {
    const MeshView& mesh = view.mesh();
    const auto types = mesh.node_type;
    const auto width = static_cast<size_t>(inputs_.node_inputs());
    std::vector<double> deviations;  // by column; a condition of a mesh stays the same at all its nodes
    for (const MeshInputs::Input& input : inputs_.inputs())
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
  write_mesh_batch(inputs_, batch, split, samples, normalizers, learn, scratch,
                   [&](const TrajectoryView& view, const Sample& sample, auto* nodes, auto* targets) {
                     inputs_.write_nodes(view, sample.frame, {}, nodes);
                     if (noise.any()) add_noise(view, sample, nodes);
                     inputs_.read_targets(view, sample.frame, scratch.next);
                     std::copy(scratch.next.begin(), scratch.next.end(), targets);
                   });
  loss_.write(batch, inputs_, split, samples, noise.seed);
}

double SteadyField::loss_weight(std::string_view split, const std::vector<Sample>& samples) const {
  return loss_.weight(inputs_, split, samples);
}

LossTerms SteadyField::loss(Tape& tape, const Model& model, const Batch& batch,
                            const Recomputation& recomputation) const {
  const Values values = forward(model, tape, batch.graph, recomputation.stages);
  return {
      ops::masked_loss(tape, values.front(), batch.tensor("target"), batch.tensor("mask"), loss_.form(batch))
          .sum,
      {}};
}

std::vector<GivenTensor> SteadyField::given(const Batch& batch) const {
  return {{"target", batch.tensor("target"), batch.graph.node_rows(), batch.tensor("mask")}};
}

std::vector<float> SteadyField::physical(const MeshView& mesh, const Tensor& prediction,
                                         const Normalizers& normalizers,
                                         const std::vector<float>& truth) const {
  std::vector<float> values = truth;
  SampleScratch scratch;
  replace_predicted(mesh, prediction, normalizers, scratch, values);
  return values;
}

void SteadyField::replace_predicted(const MeshView& mesh, const Tensor& prediction,
                                    const Normalizers& normalizers, SampleScratch& scratch,
                                    std::vector<float>& values) const {
  const auto width = static_cast<size_t>(inputs_.outputs());
  dispatch_storage(accumulator_of(prediction.dtype()), [&]<class T>() {
    const std::span<T> rows = read_rows(prediction, std::get<std::vector<T>>(scratch.predicted));
    normalizers.targets.denormalize(rows);
    for (size_t i = 0; i < values.size(); ++i)
      if (inputs_.is_predicted(mesh.node_type[i / width])) values[i] = static_cast<float>(rows[i]);
  });
}

}  // namespace meshgrad
