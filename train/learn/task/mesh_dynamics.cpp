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
    : inputs_(dataset, config), unroll_frames_(unroll_frames), loss_(loss) {
  for (const FieldInfo& field : inputs_.targets()) {
    if (!field.dynamic) {
      throw config_error("data.targets", "fields that change over time", field.name,
                         "name a dynamic field (see meshgrad info), or set task.name = \"steady_field\"");
    }
  }
}

MeshDynamics MeshDynamics::for_validation() const {
  MeshDynamics task = *this;
  task.inputs_ = inputs_.for_validation();
  task.unroll_frames_ = 1;
  task.loss_ = loss_.for_validation();
  return task;
}

FrameRange MeshDynamics::sample_frames(int64_t frames) const {
  const int64_t first = inputs_.earlier_frames();
  return {first, std::max(first, frames - unroll_frames_)};
}

int64_t MeshDynamics::least_frames() const { return unroll_frames_ + inputs_.earlier_frames() + 1; }

Normalizers MeshDynamics::dataset_normalizers(const NoiseOptions& noise) const {
  const bool second = second_change();
  std::vector<double> target_mean, target_deviation;
  // What the noise leaves in the target; see add_noise and write_targets. A second change takes 1 + gamma of
  // the last draw and gamma of those before.
  const auto draws = static_cast<double>(inputs_.config().history);
  const double last = (1.0 + noise.gamma) / std::sqrt(draws);
  const double kept = second ? std::hypot(last, noise.gamma * std::sqrt((draws - 1.0) / draws)) : noise.gamma;
  for (const FieldInfo& field : inputs_.targets()) {
    const Quantity quantity = inputs_.predicted_quantity(field.name);
    const FieldStatistics stats = inputs_.predicted_stats(field.name, quantity);
    target_mean.insert(target_mean.end(), stats.mean.begin(), stats.mean.end());
    // Noise is added to what the model reads: another target keeps its own deviation. So does a value.
    const bool noisy = inputs_.reads(field.name) && quantity != Quantity::value;
    const double share = noise.of(field.name) * kept;
    for (const double std : stats.std) target_deviation.push_back(noisy ? std::hypot(std, share) : std);
  }
  return inputs_.dataset_normalizers(Normalizer::fixed(target_mean, target_deviation));
}

FieldState MeshDynamics::state_at(const TrajectoryView& trajectory, int64_t t) const {
  FieldState state;
  read_state(trajectory, t, state);
  return state;
}

void MeshDynamics::read_state(const TrajectoryView& trajectory, int64_t t, FieldState& state) const {
  inputs_.read_targets(trajectory, t, state.current);
  const int64_t earlier = inputs_.earlier_frames();
  const size_t size = state.current.size();
  state.previous.resize(static_cast<size_t>(earlier) * size);
  for (int64_t i = 0; i < earlier; ++i)
    inputs_.read_targets(trajectory, t - 1 - i,
                         std::span(state.previous).subspan(static_cast<size_t>(i) * size, size));
}

void MeshDynamics::add_noise(const TrajectoryView& trajectory, const Sample& sample,
                             const NoiseOptions& noise, SampleScratch& scratch) const {
  std::vector<float>& current = scratch.state.current;
  scratch.noise.assign(current.size(), 0.0f);
  if (!noise.any()) return;
  const MeshView& mesh = trajectory.mesh();
  const auto types = mesh.node_type;
  const auto width = static_cast<size_t>(inputs_.outputs());
  const uint64_t id = trajectory.sample_id(sample.frame);
  // A random walk over the frames that are given, which ends with the whole deviation.
  const auto history = static_cast<size_t>(inputs_.config().history);
  const double step = 1.0 / std::sqrt(static_cast<double>(history));
  int64_t end = 0;
  for (const FieldInfo& field : inputs_.targets()) {
    const int64_t begin = std::exchange(end, end + field.components);
    const double deviation = noise.of(field.name);
    if (deviation <= 0.0 || !inputs_.reads(field.name)) continue;
    for (size_t i = 0; i < types.size(); ++i) {
      if (!contains_type(inputs_.config().noise_types, types[i])) continue;
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
  inputs_.read_targets(trajectory, sample.frame + 1, scratch.next);
  const FieldState& state = scratch.state;
  const bool second = second_change();
  const std::vector<uint8_t>& values = inputs_.value_columns();
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
    nodes += inputs_.dataset().trajectory(split, sample.trajectory).mesh().nodes;
  for (int64_t frame = 1; frame < unroll_frames_; ++frame) {
    const UnrolledFrame further = unrolled_frame(batch, frame);
    RowsInPlace<T> node_rows(further.nodes, 0, nodes, scratch.wide_nodes);
    const std::span<T> target_rows = further.target.row_range(0, nodes).values<T>();
    int64_t node = 0;
    for (Sample sample : samples) {
      const TrajectoryView view = inputs_.dataset().trajectory(split, sample.trajectory);
      sample.frame += frame;
      read_state(view, sample.frame, scratch.state);
      add_noise(view, sample, {}, scratch);
      inputs_.write_nodes(view, sample.frame, scratch.state,
                          node_rows.values().data() + node * inputs_.node_inputs());
      write_targets(view, sample, {}, scratch, target_rows.data() + node * inputs_.outputs());
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
  for (const Input& input : inputs_.inputs()) {
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
  BatchLayout layout = inputs_.layout(shape, dtype, kind);
  loss_.add_to(layout, inputs_.outputs());
  if (unroll_frames_ <= 1) return layout;
  const int64_t rows = (unroll_frames_ - 1) * unrolled_rows(shape.nodes);
  layout.add("unroll.nodes", {rows, inputs_.node_inputs()}, dtype, TensorRows::frames);
  layout.add("unroll.target", {rows, inputs_.outputs()}, accumulator_of(dtype), TensorRows::frames);
  layout.add("unroll.source", {inputs_.node_inputs()}, DType::i32);
  layout.add("unroll.ratio", {inputs_.node_inputs()}, accumulator_of(dtype));
  return layout;
}

void MeshDynamics::write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                         const NoiseOptions& noise, Normalizers& normalizers, bool learn,
                         SampleScratch& scratch) const {
  write_mesh_batch(inputs_, batch, split, samples, normalizers, learn, scratch,
                   [&](const TrajectoryView& view, const Sample& sample, auto* nodes, auto* targets) {
                     read_state(view, sample.frame, scratch.state);
                     add_noise(view, sample, noise, scratch);
                     inputs_.write_nodes(view, sample.frame, scratch.state, nodes);
                     write_targets(view, sample, noise, scratch, targets);
                   });
  loss_.write(batch, inputs_, split, samples, noise.seed);
  if (unroll_frames_ <= 1) return;
  dispatch_storage(accumulator_of(batch.graph.node_features.dtype()),
                   [&]<class T>() { write_further<T>(batch, split, samples, normalizers, scratch); });
}

double MeshDynamics::loss_weight(std::string_view split, const std::vector<Sample>& samples) const {
  return static_cast<double>(unroll_frames_) * loss_.weight(inputs_, split, samples);
}

LossTerms MeshDynamics::loss(Tape& tape, const Model& model, const Batch& batch,
                             const Recomputation& recomputation) const {
  UnrolledFrames frames{
      .count = unroll_frames_, .second_change = second_change(), .form = loss_.form(batch), .penalty = {}};
  if (loss_.penalises()) frames.penalty = loss_.penalty(batch);
  return unrolled_loss(tape, model, batch, frames, recomputation);
}

std::vector<GivenTensor> MeshDynamics::given(const Batch& batch) const {
  const Rows rows = batch.graph.node_rows();
  const Tensor& mask = batch.tensor("mask");
  std::vector<GivenTensor> tensors{{"target", batch.tensor("target"), rows, mask}};
  for (int64_t frame = 1; frame < unroll_frames_; ++frame) {
    const UnrolledFrame further = unrolled_frame(batch, frame);
    tensors.push_back({fmt::format("node features of unrolled step {}", frame), further.nodes, rows, {}});
    tensors.push_back({fmt::format("target of unrolled step {}", frame), further.target, rows, mask});
  }
  return tensors;
}

Batch MeshDynamics::prediction_batch(Runtime& runtime, DType dtype, const TrajectoryView& trajectory,
                                     int64_t t, const FieldState& state,
                                     const Normalizers& normalizers) const {
  return inputs_.prediction_batch(runtime, dtype, trajectory, t, state, normalizers);
}

std::vector<float> MeshDynamics::advance(const TrajectoryView& trajectory, const FieldState& state,
                                         const Tensor& prediction, const Normalizers& normalizers) const {
  FieldState next = state;
  SampleScratch scratch;
  advance_in_place(trajectory.mesh(), prediction, normalizers, scratch, next);
  return std::move(next.current);
}

void MeshDynamics::advance_in_place(const MeshView& mesh, const Tensor& prediction,
                                    const Normalizers& normalizers, SampleScratch& scratch,
                                    FieldState& state) const {
  const auto width = static_cast<size_t>(inputs_.outputs());
  const bool second = second_change();
  dispatch_storage(accumulator_of(prediction.dtype()), [&]<class T>() {
    const std::span<T> change = read_rows(prediction, std::get<std::vector<T>>(scratch.predicted));
    normalizers.targets.denormalize(change);
    std::vector<float>& next = scratch.next;
    next = state.current;
    for (size_t i = 0; i < next.size(); ++i) {
      if (!inputs_.is_predicted(mesh.node_type[i / width])) continue;
      const auto current = static_cast<double>(next[i]);
      double base = second ? 2.0 * current - static_cast<double>(state.previous[i]) : current;
      if (inputs_.value_columns()[i % width] != 0) base = 0.0;
      next[i] = static_cast<float>(base + static_cast<double>(change[i]));
    }
    state.advance(std::move(next));
  });
}

}  // namespace meshgrad
