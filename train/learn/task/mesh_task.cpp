// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/captured_prediction.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/mesh_task.h>
#include <meshgrad/train/learn/task/unrolled_loss.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

namespace meshgrad {
namespace {

/// Columns of a normaliser.
struct Columns {
  std::vector<double> mean, deviation;
  void add(double one_mean, double one_deviation) {
    mean.push_back(one_mean);
    deviation.push_back(one_deviation);
  }
  void add(const FieldStatistics& stats) {
    for (size_t c = 0; c < stats.mean.size(); ++c) add(stats.mean[c], stats.std[c]);
  }
  Normalizer normalizer() const { return Normalizer::fixed(mean, deviation); }
};

/// What the noise leaves in the target: see MeshDynamics::add_noise and write_targets.
Normalizer target_normalizer(const MeshTask& task, const NoiseOptions& noise) {
  const FieldSelection& fields = task.fields;
  Columns columns;
  const double kept = noise_in_targets(fields, noise.gamma);
  for (const FieldInfo& field : fields.targets) {
    const Quantity quantity = fields.predicted_quantity(field.name);
    const FieldStatistics stats = task.predicted_stats(field.name, quantity);
    // Noise is added to what the model reads: another target keeps its own deviation. So does a value.
    const bool noisy = fields.reads(field.name) && quantity != Quantity::value;
    const double share = noise.of(field.name) * kept;
    // A component that never varies has no scale but its field's: 1 may be far outside of it.
    const double largest = stats.std.empty() ? 0.0 : std::ranges::max(stats.std);
    for (size_t c = 0; c < stats.mean.size(); ++c) {
      const double deviation = stats.std[c] > Normalizer::kSmallestDeviation ? stats.std[c] : largest;
      columns.add(stats.mean[c], noisy ? std::hypot(deviation, share) : deviation);
    }
  }
  return columns.normalizer();
}

}  // namespace

double noise_in_targets(const FieldSelection& fields, double gamma) {
  if (!fields.second_change()) return gamma;
  // A second change takes 1 + gamma of the last draw and gamma of those before.
  const auto draws = static_cast<double>(fields.config.history);
  return std::hypot((1.0 + gamma) / std::sqrt(draws), gamma * std::sqrt((draws - 1.0) / draws));
}

MeshTask::MeshTask(const Dataset& data, const DataConfig& config, bool over_time, int64_t predicted,
                   const LossConfig& counts)
    : dataset(data.with_edges(edge_options(config))),
      fields(data, config, over_time),
      world(config, fields.moving() != nullptr ? fields.moving()->components : data.dim()),
      sizes{.node_inputs = fields.node_inputs,
            .edge_inputs = {edge_inputs(fields, data.dim())},
            .edge_set_names = {std::string(kMeshEdges)},
            .outputs = fields.outputs,
            .graph_outputs = fields.graph_targets.width,
            .graph_starts = !fields.graph_targets.empty()},
      predictions(predicted),
      loss(counts) {
  for (const FieldInfo& field : fields.edges) {
    if (field.dynamic && predictions > 1)
      throw config_error("data.edge_inputs",
                         "static fields with unroll.steps above 1: edges are written once a sample",
                         field.name + ", which changes over time", "remove it, or set unroll.steps = 1");
  }
  if (!world.any()) return;
  sizes.edge_inputs.push_back(world.inputs());
  sizes.edge_set_names.emplace_back(kWorldEdges);
}

MeshTask MeshTask::for_validation() const {
  MeshTask task = *this;
  task.world = world.without_limit();
  task.predictions = 1;
  task.loss = loss.for_validation();
  return task;
}

FrameRange MeshTask::sample_frames(int64_t frames) const {
  if (!fields.over_time) return {0, frames};
  const int64_t first = fields.earlier_frames();
  return {first, std::max(first, frames - predictions)};
}

SplitSamples MeshTask::samples(std::string_view split) const {
  SplitSamples samples{.first_frame = sample_frames(0).first};
  for (int64_t i = 0; i < dataset.size(split); ++i)
    samples.add(sample_frames(dataset.frames(split, i)).size());
  return samples;
}

DataError MeshTask::no_samples(std::string_view split) const {
  return data_error(
      fmt::format("{}: split {}", dataset.path().string(), split),
      fmt::format("trajectories of at least {}", counted(least_frames(), "frame")), "none",
      "lower unroll.steps or data.history, choose another split, or convert data with more frames");
}

DataError MeshTask::no_loss() const {
  const std::string path = dataset.path().string();
  return data_error(
      path, "nodes of the types in data.predicted_types", "a batch with 0 predicted nodes",
      "set data.predicted_types to types that occur, and loss.type_weights above 0 for one of them; see "
      "meshgrad info " +
          path);
}

TaskDescription MeshTask::describe() const {
  TaskDescription text{.sample = counted(least_frames(), "frame") + " in a row",
                       .over_time = fields.over_time};
  const DataConfig& config = fields.config;
  for (const FieldSelection::Input& input : fields.inputs) {
    const bool only = fields.changes_only(input);
    const int64_t changes = input.target_column < 0 ? 0 : config.history - (only ? 0 : 1);
    if (!only) text.node_inputs.push_back({input.field.name, input.field.components});
    if (changes > 0) {
      const std::string which = changes == 1 ? "last change" : fmt::format("last {} changes", changes);
      text.node_inputs.push_back({which + " of " + input.field.name, changes * input.field.components});
    }
  }
  for (const FieldSelection::Input& known : fields.known_changes)
    text.node_inputs.push_back(
        {"next change of " + known.field.name + ", kinematic", known.field.components});
  text.node_inputs.push_back({"node type, one-hot", config.node_types});
  if (fields.world_position) {
    const FieldInfo& field = fields.world_position->field;
    text.edge_inputs = {{"relative position of " + field.name, field.components},
                        {"distance of " + field.name, 1}};
  }
  text.edge_inputs.insert(text.edge_inputs.end(), {{"relative position", dataset.dim()}, {"distance", 1}});
  for (const FieldInfo& field : fields.edges) text.edge_inputs.push_back({field.name, field.components});
  if (world.any()) {
    text.edge_inputs.push_back({"of world edges: relative position", world.dim()});
    text.edge_inputs.push_back({"of world edges: distance", 1});
  }
  for (const FieldInfo& target : fields.targets) {
    const Quantity quantity = fields.predicted_quantity(target.name);
    const char* const of = quantity == Quantity::value    ? ""
                           : quantity == Quantity::change ? "change of "
                                                          : "second change of ";
    text.outputs.push_back({of + target.name, target.components});
  }
  for (const FieldInfo& target : fields.graph_targets)
    text.outputs.push_back({"of the mesh: " + target.name, target.components});
  return text;
}

BatchShape MeshTask::shape(std::string_view split, const std::vector<Sample>& samples) const {
  BatchShape shape;
  for (const Sample& sample : samples) {
    const TrajectoryView view = dataset.trajectory(split, sample.trajectory);
    shape.nodes += view.mesh().nodes;
    shape.edges += view.mesh().edges;
  }
  shape.graphs = std::max<int64_t>(1, std::ssize(samples));
  shape.world_edges = world_room(fields.config, shape.nodes);
  if (world.any() && !world.limited()) {
    shape.world_edges = 1;  // of frames without noise
    for (const Sample& sample : samples) {
      const TrajectoryView view = dataset.trajectory(split, sample.trajectory);
      shape.world_edges += count_world_edges(view.mesh(), positions_at(view, fields.moving(), sample.frame),
                                             world.dim(), world.options());
    }
  }
  if (std::max({shape.nodes, shape.edges, shape.world_edges}) > std::numeric_limits<int32_t>::max() - 1) {
    throw config_error(
        "train.batch", "a batch of fewer than 2^31 nodes and edges",
        fmt::format("{} nodes, {} edges and {} world edges", shape.nodes, shape.edges, shape.world_edges),
        "lower train.batch");
  }
  return shape;
}

BatchLayout MeshTask::layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const {
  BatchLayout layout(sizes, shape, dtype, kind);
  layout.add("target", {shape.nodes, fields.outputs}, accumulator_of(dtype), TensorRows::nodes);
  layout.add("mask", {shape.nodes}, DType::u8, TensorRows::nodes);
  loss.add_to(layout, fields.outputs);
  if (fields.graph_targets.empty()) return layout;
  const int64_t width = fields.graph_targets.width;
  layout.add("graph_target", {shape.graphs, width}, accumulator_of(dtype), TensorRows::graphs);
  layout.add("graph_mask", {shape.graphs}, DType::u8, TensorRows::graphs);
  layout.add("graph_rows", {shape.graphs}, accumulator_of(dtype), TensorRows::graphs);
  layout.add("graph_columns", {width}, accumulator_of(dtype));
  return layout;
}

LossTerms MeshTask::loss_of(Tape& tape, const Model& model, const Batch& batch,
                            const Recomputation& recomputation, const Teacher* teacher) const {
  UnrolledFrames frames{
      .count = predictions, .second_change = fields.second_change(), .form = loss.form(batch)};
  if (loss.penalises()) frames.penalty = loss.penalty(batch);
  if (!fields.graph_targets.empty()) {
    frames.graphs = loss.form(batch);
    frames.graphs->row_weights = batch.tensor("graph_rows");
    frames.graphs->column_weights = batch.tensor("graph_columns");
  }
  const Tensor missing = world.find(tape.runtime(), batch);
  if (teacher != nullptr) frames.teacher = teacher->predict(tape.runtime(), batch);
  LossTerms terms = unrolled_loss(tape, model, batch, frames, recomputation);
  terms.missing = missing;
  return terms;
}

std::vector<GivenTensor> MeshTask::given(const Batch& batch) const {
  const Rows rows = batch.graph.node_rows();
  const Tensor& mask = batch.tensor("mask");
  std::vector<GivenTensor> tensors{{"target", batch.tensor("target"), rows, mask}};
  const auto add_graphs = [&](const std::string& name, const Tensor& target) {
    if (target.defined()) tensors.push_back({name, target, Rows(target.rows()), batch.tensor("graph_mask")});
  };
  if (batch.has("graph_target")) add_graphs("target of graphs", batch.tensor("graph_target"));
  for (int64_t frame = 1; frame < predictions; ++frame) {
    const UnrolledFrame further = unrolled_frame(batch, frame);
    tensors.push_back({fmt::format("node features of unrolled step {}", frame), further.nodes, rows, {}});
    tensors.push_back({fmt::format("target of unrolled step {}", frame), further.target, rows, mask});
    add_graphs(fmt::format("target of graphs of unrolled step {}", frame), further.graph_target);
  }
  return tensors;
}

int64_t MeshTask::predicted_nodes(std::string_view split, const std::vector<Sample>& samples) const {
  int64_t nodes = 0;
  for (const Sample& sample : samples)
    nodes += fields.predicted_nodes(dataset.trajectory(split, sample.trajectory).mesh());
  return nodes;
}

void MeshTask::check_read(std::string_view split, const std::vector<Sample>& samples) const {
  for (const Sample& sample : samples) dataset.trajectory(split, sample.trajectory);
}

Normalizers MeshTask::online_normalizers() const {
  return {Normalizer(static_cast<size_t>(sizes.node_inputs)),
          Normalizer(static_cast<size_t>(sizes.edge_inputs.front())),
          Normalizer(static_cast<size_t>(sizes.outputs)),
          Normalizer(static_cast<size_t>(world.any() ? world.inputs() : 0)),
          Normalizer(static_cast<size_t>(sizes.graph_outputs))};
}

Normalizers MeshTask::dataset_normalizers(const NoiseOptions& noise) const {
  Columns nodes, edges, near;
  for (const FieldSelection::Input& input : fields.inputs) {
    const bool target = input.target_column >= 0;
    for (int64_t age = 0; age < (target ? fields.config.history : 1); ++age) {
      const bool change = fields.changes_only(input) || age > 0;
      nodes.add(dataset.field_stats(input.field.name, NodeTypeSet::all(),
                                    change ? Quantity::change : Quantity::value));
    }
  }
  // Of known changes their root of the mean square, so that the 0 of other nodes stays 0.
  const NodeTypeSet kinematic(std::span(fields.config.kinematic_types));
  for (const FieldSelection::Input& known : fields.known_changes) {
    const FieldStatistics stats = dataset.field_stats(known.field.name, kinematic, Quantity::change);
    for (size_t c = 0; c < stats.mean.size(); ++c) nodes.add(0.0, std::hypot(stats.mean[c], stats.std[c]));
  }
  for (int64_t type = 0; type < fields.config.node_types; ++type) nodes.add(0.0, 1.0);
  if (fields.world_position) edges.add(displacement_stats(dataset, fields.moving()));
  edges.add(dataset.edge_stats());
  for (const FieldInfo& field : fields.edges) edges.add(dataset.field_stats(field.name));
  if (world.any()) near.add(displacement_stats(dataset, fields.moving(), world.options()));
  return {nodes.normalizer(), edges.normalizer(), target_normalizer(*this, noise), near.normalizer(),
          fields.graph_targets.statistics(dataset)};
}

FieldStatistics MeshTask::predicted_stats(const std::string& field, Quantity which) const {
  return dataset.field_stats(field, NodeTypeSet(std::span(fields.config.predicted_types)), which);
}

FieldState MeshTask::state_at(const TrajectoryView& trajectory, int64_t t) const {
  FieldState state;
  fields.read_state(trajectory, t, state);
  return state;
}

Batch MeshTask::prediction_batch(Runtime& runtime, DType dtype, const TrajectoryView& trajectory, int64_t t,
                                 const FieldState& state, const Normalizers& normalizers,
                                 CapturedPrediction* captured) const {
  const MeshView& mesh = trajectory.mesh();
  SampleScratch scratch;
  // A prediction has as much room as its frame needs, or on a device once more where it needed more.
  const bool searches = world.any() && runtime.stream().on_gpu();
  MeshEdges found;
  int64_t room = world_room(fields.config, mesh.nodes);
  std::span<const float> positions;
  if (world.any()) positions = fields.current_positions(trajectory, t, state, scratch.positions);
  if (world.any() && !searches) {
    found = world.edges_at(trajectory, t, positions, most_world_edges(mesh.nodes));
    room = std::max<int64_t>(1, std::ssize(found.senders));
  }
  while (true) {
    BatchLayout layout(sizes, {.nodes = mesh.nodes, .edges = mesh.edges, .world_edges = room}, dtype,
                       BatchLayout::Sizes::exact);
    if (searches) world.add_to(layout);
    const auto write = [&](const Batch& batch) {
      append_to_union(batch.graph.edges(kMeshEdges).graph, mesh, {});
      write_graph_sizes(batch.graph, {&mesh.nodes, 1});
      write_edge_features(fields, batch, trajectory, t, state, {}, normalizers, scratch);
      write_node_features(fields, batch, trajectory, t, state, {}, normalizers, scratch);
      if (searches) {
        world.write_search(batch, mesh, positions, {}, normalizers);
      } else if (world.any()) {
        world.write(batch, found, trajectory, positions, {}, normalizers, scratch.wide_world);
      }
    };
    Batch result =
        make_batch(runtime, layout, write, captured != nullptr ? captured->memory(layout) : nullptr);
    const int64_t missing = missing_edges(runtime, world.find(runtime, result));
    if (missing == 0) return result;
    room += missing;
    if (room > most_world_edges(mesh.nodes)) throw too_many_world_edges(frame_name(trajectory, t));
  }
}

std::vector<float> MeshTask::mean_values(const MeshView& mesh) const {
  std::map<int32_t, std::vector<float>> means;
  std::vector<float> values;
  values.reserve(static_cast<size_t>(mesh.nodes * fields.outputs));
  for (const int32_t type : mesh.node_type) {
    const auto [found, added] = means.try_emplace(type);
    std::vector<float>& mean = found->second;
    for (const FieldInfo& target : added ? fields.targets.fields : std::vector<FieldInfo>()) {
      // A type that the training split does not have gets the mean over all nodes.
      FieldStatistics of_type = dataset.field_stats(target.name, NodeTypeSet{type});
      if (of_type.count == 0) of_type = dataset.field_stats(target.name);
      std::ranges::transform(of_type.mean, std::back_inserter(mean),
                             [](double value) { return static_cast<float>(value); });
    }
    values.insert(values.end(), mean.begin(), mean.end());
  }
  return values;
}

std::vector<float> MeshTask::baseline_output(const TrajectoryView& trajectory, int64_t t) const {
  if (!fields.over_time) return mean_values(trajectory.mesh());
  const FieldState state = state_at(trajectory, t);
  const auto width = static_cast<size_t>(fields.outputs);
  std::vector<float> values(state.current.size(), 0.0F);
  for (size_t i = 0; i < values.size(); ++i) {
    if (fields.value_columns[i % width] != 0) {
      values[i] = state.current[i];
    } else if (fields.second_change()) {
      values[i] = state.previous[i] - state.current[i];  // x[t+1] = x[t]
    }
  }
  return values;
}

std::vector<double> MeshTask::centres() const {
  std::vector<double> centres;
  for (const FieldInfo& field : fields.targets) {
    FieldStatistics stats;
    if (!dataset.node_type_counts().empty()) stats = predicted_stats(field.name, Quantity::value);
    const std::vector<double> of_field = centres_of(field, stats);
    centres.insert(centres.end(), of_field.begin(), of_field.end());
  }
  return centres;
}

ComparedErrors MeshTask::compare(const Stream& stream, std::string_view split, const Sample& sample,
                                 const Tensor& prediction, const Batch& batch,
                                 const Normalizers& normalizers) const {
  if (dataset.node_type_counts().empty()) return {};
  const TrajectoryView view = dataset.trajectory(split, sample.trajectory);
  const std::span<const int32_t> types = view.mesh().node_type;
  const Normalizer spread = target_normalizer(*this, {});
  const std::vector<float> expected = baseline_output(view, sample.frame);
  const std::vector<double> columns = loss.column_weights(fields.targets);
  const Tensor target = to_host(batch.tensor("target"), stream);
  const auto width = static_cast<size_t>(fields.outputs);
  ComparedErrors sums;
  dispatch_storage(target.dtype(), [&]<class T>() {
    std::vector<T> ours, truth;
    read_rows(prediction, ours);
    read_rows(target, truth);
    for (size_t i = 0; i < types.size(); ++i) {
      const double of_type = fields.is_predicted(types[i]) ? loss.type_weight(types[i]) : 0.0;
      for (size_t c = 0; of_type > 0.0 && c < width; ++c) {
        const size_t at = i * width + c;
        const double weight = of_type * columns[c], unit = spread.standard_deviation(c);
        const double scale = normalizers.targets.standard_deviation(c);
        const auto value = static_cast<double>(truth[at]);
        const double error = scale / unit * (static_cast<double>(ours[at]) - value);
        const double in_unit = normalizers.targets.mean(c) + scale * value;
        const double missed = (in_unit - static_cast<double>(expected[at])) / unit;
        sums += {weight * error * error, weight * missed * missed, weight};
      }
    }
  });
  return sums;
}

void MeshTask::advance(const MeshView& mesh, const Tensor& prediction, const Normalizers& normalizers,
                       SampleScratch& scratch, FieldState& state) const {
  const auto width = static_cast<size_t>(fields.outputs);
  const bool second = fields.second_change();
  dispatch_storage(accumulator_of(prediction.dtype()), [&]<class T>() {
    const std::span<T> change = read_rows(prediction, std::get<std::vector<T>>(scratch.predicted));
    normalizers.targets.denormalize(change);
    std::vector<float>& next = scratch.next;
    next = state.current;
    for (size_t i = 0; i < next.size(); ++i) {
      if (!fields.is_predicted(mesh.node_type[i / width])) continue;
      const auto current = static_cast<double>(next[i]);
      double base = second ? 2.0 * current - static_cast<double>(state.previous[i]) : current;
      if (fields.value_columns[i % width] != 0) base = 0.0;
      next[i] = static_cast<float>(base + static_cast<double>(change[i]));
    }
    state.advance(std::move(next));
  });
}

void MeshTask::check_something_to_predict(const std::string& split, std::optional<int64_t> trajectory) const {
  const std::string where =
      trajectory ? fmt::format("trajectory {} of split {}", *trajectory, split) : "split " + split;
  const MeshTask one = for_validation();
  const int64_t first = trajectory.value_or(0);
  const int64_t end = trajectory ? first + 1 : dataset.size(split);
  int64_t nodes = 0, frames = 0;
  for (int64_t i = first; i < end; ++i) {
    const TrajectoryView view = dataset.trajectory(split, i);
    const int64_t predicted =
        fields.targets.empty() ? view.mesh().nodes : fields.predicted_nodes(view.mesh());
    nodes += predicted;
    if (predicted > 0) frames += one.sample_frames(view.frames()).size();
  }
  if (nodes == 0) {
    throw config_error("data.predicted_types", "types that nodes of " + where + " have",
                       fmt::format("[{}]", fmt::join(fields.config.predicted_types, ", ")),
                       "choose another --split or --data; see meshgrad info " + dataset.path().string());
  }
  if (frames == 0) {
    throw config_error("--split", fmt::format("at least {} frames", one.least_frames()),
                       "0 trajectories of that length in " + where, "choose another --split or --data");
  }
}

}  // namespace meshgrad
