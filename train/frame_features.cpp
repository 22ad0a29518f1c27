// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/random.h>
#include <meshgrad/train/frame_features.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshgrad {
namespace {

bool contains(const std::vector<int64_t>& values, int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

NodeTypeMask mask_of(const std::vector<int64_t>& types) {
  NodeTypeMask mask = 0;
  for (const int64_t type : types) {
    if (type < kNodeTypes) mask |= node_type_bit(static_cast<int>(type));
  }
  return mask;
}

}  // namespace

FrameFeatures::FrameFeatures(const Dataset& dataset, const DataConfig& config)
    : dataset_(dataset), config_(config) {
  std::vector<int64_t> target_columns;
  for (const std::string& name : config.targets) {
    const FieldInfo& field = dataset.field(name);
    if (!field.dynamic) {
      throw config_error("data.targets", "fields that change over time", name,
                         "name a dynamic field; see meshgrad info");
    }
    targets_.push_back(field);
    target_columns.push_back(outputs_);
    outputs_ += field.components;
  }
  for (const std::string& name : config.inputs) {
    Input input{dataset.field(name), -1};
    const auto target = std::find(config.targets.begin(), config.targets.end(), name);
    if (target != config.targets.end())
      input.target_column = target_columns[static_cast<size_t>(target - config.targets.begin())];
    node_inputs_ += input.field.components;
    inputs_.push_back(std::move(input));
  }
  node_inputs_ += config.node_types;
  const auto& counts = dataset.node_type_counts();
  for (int64_t type = config.node_types; type < kNodeTypes; ++type) {
    if (counts[static_cast<size_t>(type)] > 0.0) {
      throw config_error("data.node_types", fmt::format("more than {}, a node type of this data", type),
                         fmt::format("{}", config.node_types), "set data.node_types = 9");
    }
  }
}

std::string FrameFeatures::target_names() const {
  std::string names;
  for (const FieldInfo& field : targets_) names += (names.empty() ? "" : ", ") + field.name;
  return names;
}

Normalizers FrameFeatures::online_normalizers() const {
  return {Normalizer(static_cast<size_t>(node_inputs_)), Normalizer(static_cast<size_t>(edge_inputs())),
          Normalizer(static_cast<size_t>(outputs_))};
}

Normalizers FrameFeatures::dataset_normalizers(const NoiseOptions& noise) const {
  const bool second = config_.predict == Prediction::second_change;
  std::vector<double> mean, deviation;
  for (const Input& input : inputs_) {
    const bool change = second && input.target_column >= 0;
    const FieldStatistics stats =
        dataset_.field_stats(input.field.name, kAllNodeTypes, change ? Quantity::change : Quantity::value);
    mean.insert(mean.end(), stats.mean.begin(), stats.mean.end());
    deviation.insert(deviation.end(), stats.std.begin(), stats.std.end());
  }
  mean.insert(mean.end(), static_cast<size_t>(config_.node_types), 0.0);
  deviation.insert(deviation.end(), static_cast<size_t>(config_.node_types), 1.0);
  const FieldStatistics edges = dataset_.edge_stats();
  std::vector<double> target_mean, target_deviation;
  // What the noise leaves in the target; see write_targets.
  const double share = noise.deviation * (second ? 1.0 + noise.gamma : noise.gamma);
  for (const FieldInfo& field : targets_) {
    const FieldStatistics stats = dataset_.field_stats(field.name, mask_of(config_.predicted_types),
                                                       second ? Quantity::second_change : Quantity::change);
    target_mean.insert(target_mean.end(), stats.mean.begin(), stats.mean.end());
    // Noise is added to inputs: a target that is none keeps its own deviation.
    const bool noisy = std::any_of(inputs_.begin(), inputs_.end(),
                                   [&](const Input& input) { return input.field.name == field.name; });
    for (const double std : stats.std) target_deviation.push_back(noisy ? std::hypot(std, share) : std);
  }
  return {Normalizer::fixed(mean, deviation), Normalizer::fixed(edges.mean, edges.std),
          Normalizer::fixed(target_mean, target_deviation)};
}

std::vector<float> FrameFeatures::target_values(const TrajectoryView& trajectory, int64_t t) const {
  const auto nodes = static_cast<size_t>(trajectory.mesh().nodes);
  const auto width = static_cast<size_t>(outputs_);
  std::vector<float> values(nodes * width);
  size_t column = 0;
  for (const FieldInfo& field : targets_) {
    const std::span<const float> frame = trajectory.field(field.name).frame(t);
    const auto components = static_cast<size_t>(field.components);
    for (size_t i = 0; i < nodes; ++i) {
      std::copy_n(frame.begin() + static_cast<std::ptrdiff_t>(i * components), components,
                  values.begin() + static_cast<std::ptrdiff_t>(i * width + column));
    }
    column += components;
  }
  return values;
}

FieldState FrameFeatures::state_at(const TrajectoryView& trajectory, int64_t t) const {
  FieldState state{target_values(trajectory, t), {}};
  if (config_.predict == Prediction::second_change) state.previous = target_values(trajectory, t - 1);
  return state;
}

std::vector<uint8_t> FrameFeatures::predicted_mask(const MeshView& mesh) const {
  std::vector<uint8_t> mask(mesh.node_type.size());
  std::transform(mesh.node_type.begin(), mesh.node_type.end(), mask.begin(),
                 [&](int32_t type) { return static_cast<uint8_t>(contains(config_.predicted_types, type)); });
  return mask;
}

int64_t FrameFeatures::predicted_nodes(const MeshView& mesh) const {
  return std::count_if(mesh.node_type.begin(), mesh.node_type.end(),
                       [&](int32_t type) { return contains(config_.predicted_types, type); });
}

bool FrameFeatures::takes_noise(int32_t type) const { return contains(config_.noise_types, type); }

std::vector<float> FrameFeatures::add_noise(const TrajectoryView& trajectory, const Sample& sample,
                                            const NoiseOptions& noise, FieldState& state) const {
  std::vector<float> added(state.current.size(), 0.0f);
  if (noise.deviation <= 0.0) return added;
  const auto types = trajectory.mesh().node_type;
  const auto width = static_cast<size_t>(outputs_);
  const uint64_t id = trajectory.sample_id(sample.frame);
  for (const Input& input : inputs_) {
    if (input.target_column < 0) continue;
    for (size_t i = 0; i < types.size(); ++i) {
      if (!takes_noise(types[i])) continue;
      for (int c = 0; c < input.field.components; ++c) {
        const auto column = static_cast<size_t>(input.target_column + c);
        const double draw = training_noise(noise.seed, sample.visit, id, static_cast<uint32_t>(i),
                                           static_cast<uint32_t>(column));
        added[i * width + column] = static_cast<float>(noise.deviation * draw);
        state.current[i * width + column] += added[i * width + column];
      }
    }
  }
  return added;
}

template <class T>
void FrameFeatures::write_node_inputs(const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                                      T* rows) const {
  const MeshView& mesh = trajectory.mesh();
  const auto nodes = static_cast<size_t>(mesh.nodes);
  const auto width = static_cast<size_t>(node_inputs_);
  const auto outputs = static_cast<size_t>(outputs_);
  size_t column = 0;
  for (const Input& input : inputs_) {
    const auto components = static_cast<size_t>(input.field.components);
    std::span<const float> frame;
    if (input.target_column < 0) frame = trajectory.field(input.field.name).frame(t);
    for (size_t i = 0; i < nodes; ++i) {
      for (size_t c = 0; c < components; ++c) {
        if (input.target_column < 0) {
          rows[i * width + column + c] = static_cast<T>(frame[i * components + c]);
          continue;
        }
        const size_t at = i * outputs + static_cast<size_t>(input.target_column) + c;
        const double before = state.previous.empty() ? 0.0 : static_cast<double>(state.previous[at]);
        rows[i * width + column + c] = static_cast<T>(static_cast<double>(state.current[at]) - before);
      }
    }
    column += components;
  }
  for (size_t i = 0; i < nodes; ++i) {
    for (size_t type = 0; type < width - column; ++type) {
      rows[i * width + column + type] =
          static_cast<T>(mesh.node_type[i] == static_cast<int32_t>(type) ? 1 : 0);
    }
  }
}

template <class T>
void FrameFeatures::write_edge_inputs(const MeshView& mesh, T* rows) const {
  const auto dim = static_cast<size_t>(mesh.dim);
  for (size_t e = 0; e < static_cast<size_t>(mesh.edges); ++e, rows += dim + 1) {
    const auto sender = static_cast<size_t>(mesh.senders[e]) * dim;
    const auto receiver = static_cast<size_t>(mesh.receivers[e]) * dim;
    double squares = 0.0;
    for (size_t axis = 0; axis < dim; ++axis) {
      const double d = static_cast<double>(mesh.positions[sender + axis]) -
                       static_cast<double>(mesh.positions[receiver + axis]);
      rows[axis] = static_cast<T>(d);
      squares += d * d;
    }
    rows[dim] = static_cast<T>(std::sqrt(squares));
  }
}

template <class T>
void FrameFeatures::write_targets(const TrajectoryView& trajectory, const Sample& sample,
                                  const FieldState& state, const std::vector<float>& noise,
                                  const NoiseOptions& options, T* rows) const {
  const std::vector<float> next = target_values(trajectory, sample.frame + 1);
  const bool second = config_.predict == Prediction::second_change;
  for (size_t i = 0; i < next.size(); ++i) {
    // The target takes (1 - gamma) of the noise; with gamma = 1 the model learns to remove all of it.
    const double goal = static_cast<double>(next[i]) + (1.0 - options.gamma) * static_cast<double>(noise[i]);
    const auto current = static_cast<double>(state.current[i]);
    rows[i] = static_cast<T>(second ? goal - 2.0 * current + static_cast<double>(state.previous[i])
                                    : goal - current);
  }
}

void FrameFeatures::allocate(Runtime& runtime, DType dtype, const std::vector<TrajectoryView>& views,
                             Batch& batch) const {
  std::vector<MeshView> meshes;
  batch.graph_offsets = {0};
  for (const TrajectoryView& view : views) {
    meshes.push_back(view.mesh());
    batch.graph_offsets.push_back(batch.graph_offsets.back() + view.mesh().nodes);
  }
  batch.nodes = batch.graph_offsets.back();
  EdgeSet set{"mesh", union_graph(runtime, meshes), {}};
  set.features =
      Tensor::empty(runtime, Shape{set.graph.edges, edge_inputs()}, dtype, Tag::data, "edge features");
  batch.edge_sets.push_back(std::move(set));
  batch.node_features =
      Tensor::empty(runtime, Shape{batch.nodes, node_inputs_}, dtype, Tag::data, "node features");
}

Batch FrameFeatures::training_batch(Runtime& runtime, DType dtype, std::string_view split,
                                    const std::vector<Sample>& samples, const NoiseOptions& noise,
                                    Normalizers& normalizers, bool learn) const {
  std::vector<TrajectoryView> views;
  for (const Sample& sample : samples) views.push_back(dataset_.trajectory(split, sample.trajectory));
  Batch batch;
  allocate(runtime, dtype, views, batch);
  batch.target = Tensor::empty(runtime, Shape{batch.nodes, outputs_}, dtype, Tag::data, "target");
  batch.mask = Tensor::empty(runtime, Shape{batch.nodes}, DType::u8, Tag::data, "loss mask");
  dispatch_storage(dtype, [&]<class T>() {
    T* edges = batch.edge_sets[0].features.template data<T>();
    for (size_t g = 0; g < views.size(); ++g) {
      const int64_t node = batch.graph_offsets[g];
      FieldState state = state_at(views[g], samples[g].frame);
      const std::vector<float> added = add_noise(views[g], samples[g], noise, state);
      write_node_inputs(views[g], samples[g].frame, state,
                        batch.node_features.template data<T>() + node * node_inputs_);
      write_targets(views[g], samples[g], state, added, noise,
                    batch.target.template data<T>() + node * outputs_);
      write_edge_inputs(views[g].mesh(), edges);
      edges += views[g].mesh().edges * edge_inputs();
      const std::vector<uint8_t> mask = predicted_mask(views[g].mesh());
      std::copy(mask.begin(), mask.end(), batch.mask.data<uint8_t>() + node);
      batch.samples.push_back(views[g].sample_id(samples[g].frame));
    }
    const auto node_values = batch.node_features.template values<T>();
    const auto edge_values = batch.edge_sets[0].features.template values<T>();
    const auto target_rows = batch.target.template values<T>();
    if (learn) {
      normalizers.nodes.accumulate(std::span<const T>(node_values));
      normalizers.edges.accumulate(std::span<const T>(edge_values));
      normalizers.targets.accumulate(std::span<const T>(target_rows));
    }
    normalizers.nodes.normalize(node_values);
    normalizers.edges.normalize(edge_values);
    normalizers.targets.normalize(target_rows);
  });
  return batch;
}

Batch FrameFeatures::prediction_batch(Runtime& runtime, DType dtype, const TrajectoryView& trajectory,
                                      int64_t t, const FieldState& state,
                                      const Normalizers& normalizers) const {
  Batch batch;
  allocate(runtime, dtype, {trajectory}, batch);
  batch.samples.push_back(trajectory.sample_id(t));
  dispatch_storage(dtype, [&]<class T>() {
    write_node_inputs(trajectory, t, state, batch.node_features.template data<T>());
    write_edge_inputs(trajectory.mesh(), batch.edge_sets[0].features.template data<T>());
    normalizers.nodes.normalize(batch.node_features.template values<T>());
    normalizers.edges.normalize(batch.edge_sets[0].features.template values<T>());
  });
  return batch;
}

std::vector<float> FrameFeatures::advance(const TrajectoryView& trajectory, const FieldState& state,
                                          const Tensor& prediction, const Normalizers& normalizers) const {
  const std::vector<uint8_t> mask = predicted_mask(trajectory.mesh());
  const auto width = static_cast<size_t>(outputs_);
  std::vector<float> next = state.current;
  dispatch_storage(prediction.dtype(), [&]<class T>() {
    std::vector<T> change(prediction.data<T>(), prediction.data<T>() + prediction.elements());
    normalizers.targets.denormalize(std::span<T>(change));
    for (size_t i = 0; i < next.size(); ++i) {
      if (mask[i / width] == 0) continue;
      const auto current = static_cast<double>(state.current[i]);
      const double base =
          state.previous.empty() ? current : 2.0 * current - static_cast<double>(state.previous[i]);
      next[i] = static_cast<float>(base + static_cast<double>(change[i]));
    }
  });
  return next;
}

Graph union_graph(Runtime& runtime, const std::vector<MeshView>& meshes) {
  Graph graph;
  for (const MeshView& mesh : meshes) {
    graph.nodes += mesh.nodes;
    graph.edges += mesh.edges;
  }
  if (graph.nodes > std::numeric_limits<int32_t>::max() - 1 ||
      graph.edges > std::numeric_limits<int32_t>::max() - 1) {
    throw config_error("train.batch", "a batch of fewer than 2^31 nodes and edges",
                       fmt::format("{} nodes and {} edges", graph.nodes, graph.edges), "lower train.batch");
  }
  graph.owned_nodes = graph.nodes;
  const auto make = [&](int64_t count, std::string_view name) {
    return Tensor::empty(runtime, Shape{count}, DType::i32, Tag::data, name);
  };
  graph.senders = make(graph.edges, "senders");
  graph.receivers = make(graph.edges, "receivers");
  graph.receiver_offsets = make(graph.nodes + 1, "receiver_offsets");
  graph.sender_offsets = make(graph.nodes + 1, "sender_offsets");
  graph.sender_order = make(graph.edges, "sender_order");
  int64_t node = 0;
  int64_t edge = 0;
  const auto append = [](std::span<const int32_t> from, size_t count, const Tensor& to, int64_t at,
                         int64_t shift) {
    std::transform(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(count), to.data<int32_t>() + at,
                   [shift](int32_t value) { return static_cast<int32_t>(value + shift); });
  };
  graph.receiver_offsets.data<int32_t>()[0] = graph.sender_offsets.data<int32_t>()[0] = 0;
  for (const MeshView& mesh : meshes) {
    append(mesh.senders, mesh.senders.size(), graph.senders, edge, node);
    append(mesh.receivers, mesh.receivers.size(), graph.receivers, edge, node);
    append(mesh.sender_order, mesh.sender_order.size(), graph.sender_order, edge, edge);
    append(mesh.receiver_offsets, mesh.receiver_offsets.size(), graph.receiver_offsets, node, edge);
    append(mesh.sender_offsets, mesh.sender_offsets.size(), graph.sender_offsets, node, edge);
    node += mesh.nodes;
    edge += mesh.edges;
  }
  return graph;
}

}  // namespace meshgrad
