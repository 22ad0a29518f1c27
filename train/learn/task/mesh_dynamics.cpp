// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/mesh_dynamics.h>
#include <meshgrad/train/learn/task/unrolled_loss.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace meshgrad {
MeshDynamics::MeshDynamics(const Dataset& dataset, const DataConfig& config, int64_t unroll_frames,
                           const LossConfig& loss)
    : mesh_(dataset, config, true, unroll_frames, loss) {
  for (const FieldInfo& field : mesh_.fields.targets) {
    if (!field.dynamic) {
      throw config_error("data.targets", "fields that change over time", field.name,
                         "name a dynamic field (see meshgrad info), or set task.name = \"steady_field\"");
    }
  }
}

void MeshDynamics::add_noise(const TrajectoryView& trajectory, const Sample& sample,
                             const NoiseOptions& noise, SampleScratch& scratch) const {
  std::vector<float>& current = scratch.state.current;
  scratch.noise.assign(current.size(), 0.0f);
  if (!noise.any()) return;
  const MeshView& mesh = trajectory.mesh();
  const auto types = mesh.node_type;
  const auto width = static_cast<size_t>(mesh_.fields.outputs);
  const uint64_t id = trajectory.sample_id(sample.frame);
  // A random walk over the frames that are given, which ends with the whole deviation.
  const auto history = static_cast<size_t>(mesh_.fields.config.history);
  const double step = 1.0 / std::sqrt(static_cast<double>(history));
  int64_t end = 0;
  for (const FieldInfo& field : mesh_.fields.targets) {
    const int64_t begin = std::exchange(end, end + field.components);
    const double deviation = noise.of(field.name);
    if (deviation <= 0.0 || !mesh_.fields.reads(field.name)) continue;
    for (size_t i = 0; i < types.size(); ++i) {
      if (!contains_type(mesh_.fields.config.noise_types, types[i])) continue;
      for (auto column = static_cast<size_t>(begin); std::cmp_less(column, end); ++column) {
        double sum = 0.0;
        for (size_t age = history; age-- > 0;) {
          const double draw =
              training_noise(noise.seed, sample.visit, id, static_cast<uint32_t>(mesh.point_of(i)),
                             static_cast<uint32_t>(column + age * width));
          sum += step * deviation * draw;
          float& value = age == 0 ? current[i * width + column]
                                  : scratch.state.previous[(age - 1) * current.size() + i * width + column];
          value += static_cast<float>(sum);
        }
        scratch.noise[i * width + column] = static_cast<float>(sum);
      }
    }
  }
}

template <class T>
void MeshDynamics::write_targets(const TrajectoryView& trajectory, const Sample& sample,
                                 const NoiseOptions& options, SampleScratch& scratch, T* rows) const {
  mesh_.fields.read_targets(trajectory, sample.frame + 1, scratch.next);
  const FieldState& state = scratch.state;
  const bool second = mesh_.fields.second_change();
  const std::vector<uint8_t>& values = mesh_.fields.value_columns;
  for (size_t i = 0; i < scratch.next.size(); ++i) {
    if (values[i % values.size()] != 0) {
      rows[i] = static_cast<T>(scratch.next[i]);
      continue;
    }
    // The target takes (1 - gamma) of the noise; with gamma = 1 the model learns to remove all of it.
    const double goal =
        static_cast<double>(scratch.next[i]) + (1.0 - options.gamma) * static_cast<double>(scratch.noise[i]);
    const auto current = static_cast<double>(state.current[i]);
    rows[i] = static_cast<T>(second ? goal - 2.0 * current + static_cast<double>(state.previous[i])
                                    : goal - current);
  }
}

template <class T>
void MeshDynamics::write_further(const Batch& batch, std::string_view split,
                                 const std::vector<Sample>& samples, const Normalizers& normalizers,
                                 SampleScratch& scratch) const {
  int64_t nodes = 0;
  for (const Sample& sample : samples)
    nodes += mesh_.dataset.trajectory(split, sample.trajectory).mesh().nodes;
  for (int64_t frame = 1; frame < mesh_.predictions; ++frame) {
    const UnrolledFrame further = unrolled_frame(batch, frame);
    RowsInPlace<T> node_rows(further.nodes, 0, nodes, scratch.wide_nodes);
    const std::span<T> target_rows = further.target.row_range(0, nodes).values<T>();
    int64_t node = 0;
    for (Sample sample : samples) {
      const TrajectoryView view = mesh_.dataset.trajectory(split, sample.trajectory);
      sample.frame += frame;
      mesh_.fields.read_state(view, sample.frame, scratch.state);
      add_noise(view, sample, {}, scratch);
      write_nodes(mesh_.fields, view, sample.frame, scratch.state,
                  node_rows.values().data() + node * mesh_.fields.node_inputs);
      write_targets(view, sample, {}, scratch, target_rows.data() + node * mesh_.fields.outputs);
      node += view.mesh().nodes;
    }
    normalizers.nodes.normalize(node_rows.values());
    normalizers.targets.normalize(target_rows);
    node_rows.store();
  }
  const std::span<int32_t> source = batch.tensor("unroll.source").values<int32_t>();
  const std::span<T> ratio = batch.tensor("unroll.ratio").values<T>();
  std::fill(source.begin(), source.end(), -1);
  std::fill(ratio.begin(), ratio.end(), T(0));
  size_t column = 0;
  for (const FieldSelection::Input& input : mesh_.fields.inputs) {
    for (int c = 0; c < input.field.components; ++c, ++column) {
      if (input.target_column < 0) continue;
      source[column] = static_cast<int32_t>(input.target_column + c);
      ratio[column] =
          static_cast<T>(normalizers.targets.standard_deviation(static_cast<size_t>(source[column])) /
                         normalizers.nodes.standard_deviation(column));
    }
  }
}

BatchLayout MeshDynamics::layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const {
  BatchLayout layout = mesh_.layout(shape, dtype, kind);
  if (mesh_.predictions <= 1) return layout;
  const int64_t rows = (mesh_.predictions - 1) * unrolled_rows(shape.nodes);
  layout.add("unroll.nodes", {rows, mesh_.fields.node_inputs}, dtype, TensorRows::frames);
  layout.add("unroll.target", {rows, mesh_.fields.outputs}, accumulator_of(dtype), TensorRows::frames);
  layout.add("unroll.source", {mesh_.fields.node_inputs}, DType::i32);
  layout.add("unroll.ratio", {mesh_.fields.node_inputs}, accumulator_of(dtype));
  return layout;
}

void MeshDynamics::write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                         const NoiseOptions& noise, Normalizers& normalizers, bool learn,
                         SampleScratch& scratch) const {
  write_mesh_batch(mesh_, batch, split, samples, normalizers, learn, scratch,
                   [&](const TrajectoryView& view, const Sample& sample, auto* nodes, auto* targets) {
                     mesh_.fields.read_state(view, sample.frame, scratch.state);
                     add_noise(view, sample, noise, scratch);
                     write_nodes(mesh_.fields, view, sample.frame, scratch.state, nodes);
                     write_targets(view, sample, noise, scratch, targets);
                   });
  mesh_.loss.write(batch, mesh_, split, samples, noise.seed);
  if (mesh_.predictions > 1) {
    dispatch_storage(accumulator_of(batch.graph.node_features.dtype()),
                     [&]<class T>() { write_further<T>(batch, split, samples, normalizers, scratch); });
  }
  mesh_.check_read(split, samples);
}

LossTerms MeshDynamics::loss(Tape& tape, const Model& model, const Batch& batch,
                             const Recomputation& recomputation, const Teacher* teacher) const {
  UnrolledFrames frames{.count = mesh_.predictions,
                        .second_change = mesh_.fields.second_change(),
                        .form = mesh_.loss.form(batch),
                        .penalty = {}};
  if (mesh_.loss.penalises()) frames.penalty = mesh_.loss.penalty(batch);
  const Tensor missing = mesh_.world.find(tape.runtime(), batch);
  if (teacher != nullptr) frames.teacher = teacher->predict(tape.runtime(), batch);
  LossTerms terms = unrolled_loss(tape, model, batch, frames, recomputation);
  terms.missing = missing;
  return terms;
}

std::vector<GivenTensor> MeshDynamics::given(const Batch& batch) const {
  const Rows rows = batch.graph.node_rows();
  const Tensor& mask = batch.tensor("mask");
  std::vector<GivenTensor> tensors{{"target", batch.tensor("target"), rows, mask}};
  for (int64_t frame = 1; frame < mesh_.predictions; ++frame) {
    const UnrolledFrame further = unrolled_frame(batch, frame);
    tensors.push_back({fmt::format("node features of unrolled step {}", frame), further.nodes, rows, {}});
    tensors.push_back({fmt::format("target of unrolled step {}", frame), further.target, rows, mask});
  }
  return tensors;
}

}  // namespace meshgrad
