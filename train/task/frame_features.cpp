// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/random.h>
#include <meshgrad/train/run/upload.h>
#include <meshgrad/train/task/frame_features.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace meshgrad {
namespace {

bool contains(const std::vector<int64_t>& values, int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

/// The first rows of a tensor to compute in T: in place, or beside it where the tensor stores 16 bits.
template <class T>
class RowsInPlace {
 public:
  RowsInPlace(const Tensor& tensor, int64_t rows, std::vector<float>& wide)
      : tensor_(tensor.row_range(0, rows)), wide_(wide) {
    wide_.resize(tensor.dtype() == dtype_of<T>() ? 0 : static_cast<size_t>(tensor_.elements()));
  }
  std::span<T> values() {
    if constexpr (std::is_same_v<T, float>) {
      if (tensor_.dtype() != DType::f32) return wide_;
    }
    return tensor_.values<T>();
  }
  void store() {
    const auto round = [&](auto* to) {
      using To = std::remove_pointer_t<decltype(to)>;
      for (size_t i = 0; i < wide_.size(); ++i) to[i] = To(wide_[i]);
    };
    if (tensor_.dtype() == DType::f16) round(tensor_.data<half>());
    if (tensor_.dtype() == DType::bf16) round(tensor_.data<bfloat16>());
  }

 private:
  Tensor tensor_;
  std::vector<float>& wide_;
};

/// The values of a tensor on the host, widened to T where it stores 16 bits.
template <class T>
std::vector<T> read_rows(const Tensor& tensor) {
  const auto widen = [&](const auto* from) {
    std::vector<T> values(static_cast<size_t>(tensor.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(static_cast<float>(from[i]));
    return values;
  };
  if (tensor.dtype() == DType::f16) return widen(tensor.data<half>());
  if (tensor.dtype() == DType::bf16) return widen(tensor.data<bfloat16>());
  return {tensor.data<T>(), tensor.data<T>() + tensor.elements()};
}

/// A batch that `write` fills on the host, in the runtime's memory.
Batch make_batch(Runtime& runtime, const BatchMemory& memory,
                 const std::function<void(const Batch&)>& write) {
  const StoragePtr host = batch_memory_to_write(runtime, memory.bytes());
  write(memory.batch(host));
  return memory.batch(to_device(runtime, host, memory.bytes()));
}

/// Mesh dynamics reads float fields on nodes alone.
const FieldInfo& node_field(const Dataset& dataset, const std::string& name, const char* key) {
  const FieldInfo& field = dataset.field(name);
  if (field.on == FieldOn::node && field.dtype == DType::f32) return field;
  throw config_error(key, "f32 fields on nodes",
                     fmt::format("{} ({} on {}s)", name, name_of(field.dtype), name_of(field.on)),
                     "name other fields; see meshgrad info");
}

}  // namespace

FrameFeatures::FrameFeatures(const Dataset& dataset, const DataConfig& config)
    : dataset_(dataset), config_(config) {
  std::vector<int64_t> target_columns;
  for (const std::string& name : config.targets) {
    const FieldInfo& field = node_field(dataset, name, "data.targets");
    if (!field.dynamic) {
      throw config_error("data.targets", "fields that change over time", name,
                         "name a dynamic field; see meshgrad info");
    }
    targets_.push_back(field);
    target_columns.push_back(outputs_);
    outputs_ += field.components;
  }
  for (const std::string& name : config.inputs) {
    Input input{node_field(dataset, name, "data.inputs"), -1};
    const auto target = std::find(config.targets.begin(), config.targets.end(), name);
    if (target != config.targets.end())
      input.target_column = target_columns[static_cast<size_t>(target - config.targets.begin())];
    node_inputs_ += input.field.components;
    inputs_.push_back(std::move(input));
  }
  node_inputs_ += config.node_types;
  if (dataset.node_types() > config.node_types) {
    throw config_error(
        "data.node_types", fmt::format("more than {}, a node type of this data", dataset.node_types() - 1),
        fmt::format("{}", config.node_types), fmt::format("set data.node_types = {}", dataset.node_types()));
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
    const FieldStatistics stats = dataset_.field_stats(input.field.name, NodeTypeSet::all(),
                                                       change ? Quantity::change : Quantity::value);
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
    const FieldStatistics stats =
        dataset_.field_stats(field.name, NodeTypeSet(std::span(config_.predicted_types)),
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
  std::vector<float> values;
  read_targets(trajectory, t, values);
  return values;
}

void FrameFeatures::read_targets(const TrajectoryView& trajectory, int64_t t,
                                 std::vector<float>& values) const {
  const auto nodes = static_cast<size_t>(trajectory.mesh().nodes);
  const auto width = static_cast<size_t>(outputs_);
  values.resize(nodes * width);
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
}

FieldState FrameFeatures::state_at(const TrajectoryView& trajectory, int64_t t) const {
  FieldState state;
  read_state(trajectory, t, state);
  return state;
}

void FrameFeatures::read_state(const TrajectoryView& trajectory, int64_t t, FieldState& state) const {
  read_targets(trajectory, t, state.current);
  state.previous.clear();
  if (config_.predict == Prediction::second_change) read_targets(trajectory, t - 1, state.previous);
}

std::vector<uint8_t> FrameFeatures::predicted_mask(const MeshView& mesh) const {
  std::vector<uint8_t> mask(mesh.node_type.size());
  write_mask(mesh, mask.data());
  return mask;
}

void FrameFeatures::write_mask(const MeshView& mesh, uint8_t* rows) const {
  std::transform(mesh.node_type.begin(), mesh.node_type.end(), rows,
                 [&](int32_t type) { return static_cast<uint8_t>(contains(config_.predicted_types, type)); });
}

int64_t FrameFeatures::predicted_nodes(const MeshView& mesh) const {
  return std::count_if(mesh.node_type.begin(), mesh.node_type.end(),
                       [&](int32_t type) { return contains(config_.predicted_types, type); });
}

bool FrameFeatures::takes_noise(int32_t type) const { return contains(config_.noise_types, type); }

void FrameFeatures::add_noise(const TrajectoryView& trajectory, const Sample& sample,
                              const NoiseOptions& noise, SampleScratch& scratch) const {
  std::vector<float>& current = scratch.state.current;
  scratch.noise.assign(current.size(), 0.0f);
  if (noise.deviation <= 0.0) return;
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
        scratch.noise[i * width + column] = static_cast<float>(noise.deviation * draw);
        current[i * width + column] += scratch.noise[i * width + column];
      }
    }
  }
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
                                  const NoiseOptions& options, SampleScratch& scratch, T* rows) const {
  read_targets(trajectory, sample.frame + 1, scratch.next);
  const FieldState& state = scratch.state;
  const bool second = config_.predict == Prediction::second_change;
  for (size_t i = 0; i < scratch.next.size(); ++i) {
    // The target takes (1 - gamma) of the noise; with gamma = 1 the model learns to remove all of it.
    const double goal =
        static_cast<double>(scratch.next[i]) + (1.0 - options.gamma) * static_cast<double>(scratch.noise[i]);
    const auto current = static_cast<double>(state.current[i]);
    rows[i] = static_cast<T>(second ? goal - 2.0 * current + static_cast<double>(state.previous[i])
                                    : goal - current);
  }
}

template <class T>
void FrameFeatures::write_further(const Batch& batch, std::string_view split,
                                  const std::vector<Sample>& samples, const Normalizers& normalizers,
                                  int64_t nodes, SampleScratch& scratch) const {
  const Unroll& unroll = batch.unroll;
  for (int64_t k = 0; k < unroll.further; ++k) {
    const Unroll::Step step = unroll.step(k, batch.nodes);
    RowsInPlace<T> node_rows(step.node_features, nodes, scratch.wide_nodes);
    const std::span<T> target_rows = step.target.row_range(0, nodes).values<T>();
    int64_t node = 0;
    for (Sample sample : samples) {
      const TrajectoryView view = dataset_.trajectory(split, sample.trajectory);
      sample.frame += k + 1;
      read_state(view, sample.frame, scratch.state);
      add_noise(view, sample, {}, scratch);
      write_node_inputs(view, sample.frame, scratch.state, node_rows.values().data() + node * node_inputs_);
      write_targets(view, sample, {}, scratch, target_rows.data() + node * outputs_);
      node += view.mesh().nodes;
    }
    normalizers.nodes.normalize(node_rows.values());
    normalizers.targets.normalize(target_rows);
    node_rows.store();
  }
  if (unroll.further == 0) return;
  const std::span<int32_t> source = unroll.source.values<int32_t>();
  const std::span<T> ratio = unroll.ratio.values<T>();
  std::fill(source.begin(), source.end(), -1);
  std::fill(ratio.begin(), ratio.end(), T(0));
  size_t column = 0;
  for (const Input& input : inputs_) {
    for (int c = 0; c < input.field.components; ++c, ++column) {
      if (input.target_column < 0) continue;
      source[column] = static_cast<int32_t>(input.target_column + c);
      ratio[column] =
          static_cast<T>(normalizers.targets.standard_deviation(static_cast<size_t>(source[column])) /
                         normalizers.nodes.standard_deviation(column));
    }
  }
}

BatchSizes FrameFeatures::sizes_of(const Dataset::MeshSizes& meshes, int64_t outputs) const {
  if (meshes.nodes > std::numeric_limits<int32_t>::max() - 1 ||
      meshes.edges > std::numeric_limits<int32_t>::max() - 1) {
    throw config_error("train.batch", "a batch of fewer than 2^31 nodes and edges",
                       fmt::format("{} nodes and {} edges", meshes.nodes, meshes.edges), "lower train.batch");
  }
  return {.nodes = meshes.nodes,
          .edges = meshes.edges,
          .node_inputs = node_inputs_,
          .edge_inputs = edge_inputs(),
          .outputs = outputs};
}

BatchSizes FrameFeatures::training_sizes(std::string_view split, const std::vector<Sample>& samples,
                                         int64_t steps) const {
  Dataset::MeshSizes meshes;
  for (const Sample& sample : samples) {
    const TrajectoryView view = dataset_.trajectory(split, sample.trajectory);
    meshes.nodes += view.mesh().nodes;
    meshes.edges += view.mesh().edges;
  }
  BatchSizes sizes = sizes_of(meshes, outputs_);
  sizes.steps = steps;
  sizes.second_change = config_.predict == Prediction::second_change;
  return sizes;
}

void FrameFeatures::write_training_batch(const Batch& batch, std::string_view split,
                                         const std::vector<Sample>& samples, const NoiseOptions& noise,
                                         Normalizers& normalizers, bool learn, SampleScratch& scratch) const {
  Dataset::MeshSizes all;
  for (const Sample& sample : samples) {
    const TrajectoryView view = dataset_.trajectory(split, sample.trajectory);
    all = append_to_union(batch.edge_sets[0].graph, view.mesh(), all);
  }
  const DType dtype = batch.node_features.dtype();
  dispatch_storage(accumulator_of(dtype), [&]<class T>() {
    RowsInPlace<T> node_rows(batch.node_features, all.nodes, scratch.wide_nodes);
    RowsInPlace<T> edge_rows(batch.edge_sets[0].features, all.edges, scratch.wide_edges);
    const std::span<T> target_rows = batch.target.row_range(0, all.nodes).values<T>();
    T* edges = edge_rows.values().data();
    int64_t node = 0;
    for (const Sample& sample : samples) {
      const TrajectoryView view = dataset_.trajectory(split, sample.trajectory);
      read_state(view, sample.frame, scratch.state);
      add_noise(view, sample, noise, scratch);
      write_node_inputs(view, sample.frame, scratch.state, node_rows.values().data() + node * node_inputs_);
      write_targets(view, sample, noise, scratch, target_rows.data() + node * outputs_);
      write_edge_inputs(view.mesh(), edges);
      edges += view.mesh().edges * edge_inputs();
      write_mask(view.mesh(), batch.mask.data<uint8_t>() + node);
      node += view.mesh().nodes;
    }
    if (learn) {
      normalizers.nodes.accumulate(std::span<const T>(node_rows.values()));
      normalizers.edges.accumulate(std::span<const T>(edge_rows.values()));
      normalizers.targets.accumulate(std::span<const T>(target_rows));
    }
    normalizers.nodes.normalize(node_rows.values());
    normalizers.edges.normalize(edge_rows.values());
    normalizers.targets.normalize(target_rows);
    node_rows.store();
    edge_rows.store();
    write_further<T>(batch, split, samples, normalizers, all.nodes, scratch);
  });
}

Batch FrameFeatures::training_batch(Runtime& runtime, DType dtype, std::string_view split,
                                    const std::vector<Sample>& samples, const NoiseOptions& noise,
                                    Normalizers& normalizers, bool learn, int64_t steps) const {
  const BatchMemory memory(training_sizes(split, samples, steps), dtype, BatchMemory::Sizes::exact);
  SampleScratch scratch;
  Batch batch = make_batch(runtime, memory, [&](const Batch& host) {
    write_training_batch(host, split, samples, noise, normalizers, learn, scratch);
  });
  batch.graph_offsets = {0};
  for (const Sample& sample : samples) {
    const TrajectoryView view = dataset_.trajectory(split, sample.trajectory);
    batch.graph_offsets.push_back(batch.graph_offsets.back() + view.mesh().nodes);
    batch.samples.push_back(view.sample_id(sample.frame));
  }
  return batch;
}

Batch FrameFeatures::prediction_batch(Runtime& runtime, DType dtype, const TrajectoryView& trajectory,
                                      int64_t t, const FieldState& state,
                                      const Normalizers& normalizers) const {
  const MeshView& mesh = trajectory.mesh();
  const BatchMemory memory(sizes_of({mesh.nodes, mesh.edges}, 0), dtype, BatchMemory::Sizes::exact);
  SampleScratch scratch;
  Batch result = make_batch(runtime, memory, [&](const Batch& batch) {
    append_to_union(batch.edge_sets[0].graph, mesh, {});
    dispatch_storage(accumulator_of(dtype), [&]<class T>() {
      RowsInPlace<T> node_rows(batch.node_features, memory.sizes().nodes, scratch.wide_nodes);
      RowsInPlace<T> edge_rows(batch.edge_sets[0].features, memory.sizes().edges, scratch.wide_edges);
      write_node_inputs(trajectory, t, state, node_rows.values().data());
      write_edge_inputs(mesh, edge_rows.values().data());
      normalizers.nodes.normalize(node_rows.values());
      normalizers.edges.normalize(edge_rows.values());
      node_rows.store();
      edge_rows.store();
    });
  });
  result.graph_offsets = {0, mesh.nodes};
  result.samples = {trajectory.sample_id(t)};
  return result;
}

std::vector<float> FrameFeatures::advance(const TrajectoryView& trajectory, const FieldState& state,
                                          const Tensor& prediction, const Normalizers& normalizers) const {
  const std::vector<uint8_t> mask = predicted_mask(trajectory.mesh());
  const auto width = static_cast<size_t>(outputs_);
  std::vector<float> next = state.current;
  dispatch_storage(accumulator_of(prediction.dtype()), [&]<class T>() {
    std::vector<T> change = read_rows<T>(prediction);
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

Dataset::MeshSizes append_to_union(const Graph& graph, const MeshView& mesh,
                                   const Dataset::MeshSizes& before) {
  const auto append = [](std::span<const int32_t> from, const Tensor& to, int64_t at, int64_t shift) {
    std::transform(from.begin(), from.end(), to.data<int32_t>() + at,
                   [shift](int32_t value) { return static_cast<int32_t>(value + shift); });
  };
  append(mesh.senders, graph.senders, before.edges, before.nodes);
  append(mesh.receivers, graph.receivers, before.edges, before.nodes);
  append(mesh.sender_order, graph.sender_order, before.edges, before.edges);
  append(mesh.receiver_offsets, graph.receiver_offsets, before.nodes, before.edges);
  append(mesh.sender_offsets, graph.sender_offsets, before.nodes, before.edges);
  const Dataset::MeshSizes all{before.nodes + mesh.nodes, before.edges + mesh.edges};
  if (graph.counts.defined()) {
    int64_t* counts = graph.counts.data<int64_t>();
    counts[0] = counts[1] = all.nodes;
    counts[2] = all.edges;
  }
  return all;
}

}  // namespace meshgrad
