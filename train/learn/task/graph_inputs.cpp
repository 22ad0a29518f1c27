// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/statistics.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/learn/task/edge_fields.h>
#include <meshgrad/train/learn/task/graph_inputs.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

constexpr int64_t kMostIdentifiers = 1 << 24;

}  // namespace

ConfigError unfit_field(const char* key, const std::string& needed, const FieldInfo& field,
                        const std::string& fix) {
  return config_error(key, needed,
                      fmt::format("{} ({} on {}s, {} components)", field.name, name_of(field.dtype),
                                  name_of(field.on), field.components),
                      fix);
}

ConfigError unfit_target(const std::string& needed, const FieldInfo& field) {
  const bool label = field.dtype == DType::i32 && field.components == 1;
  if (!label || (field.on != FieldOn::node && field.on != FieldOn::graph))
    return unfit_field("data.targets", needed, field);
  return unfit_field("data.targets", needed, field,
                     fmt::format("name another, or learn this class alone: task.name = "
                                 "\"{}_classification\", data.targets = [{}]",
                                 name_of(field.on), toml_quoted(field.name)));
}

void refuse_noise(const Config& config) {
  if (!noise_of(config).any()) return;
  throw config_error("train.noise", fmt::format("0 with task.name = \"{}\"", name_of(config.task.name)),
                     fmt::format("{}", config.train.noise), "set train.noise = 0");
}

std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values;
  dispatch_storage(accumulator_of(tensor.dtype()), [&]<class T>() {
    std::vector<T> wide;
    const std::span<const T> read = read_rows(tensor, wide);
    values.assign(read.begin(), read.end());
  });
  return values;
}

void write_convolution_weights(const EdgeSet& edges) {
  const Graph& graph = edges.graph;
  const int64_t count = graph.counts.defined() ? graph.counts.data<int64_t>()[2] : graph.edges;
  const int32_t* offsets = graph.receiver_offsets.data<int32_t>();
  const auto degree = [&](int32_t node) { return static_cast<double>(offsets[node + 1] - offsets[node]); };
  for (int64_t e = 0; e < count; ++e) {
    edges.weights.data<float>()[e] =
        static_cast<float>(1.0 / std::sqrt(degree(graph.senders.data<int32_t>()[e]) *
                                           degree(graph.receivers.data<int32_t>()[e])));
  }
}

GraphInputs::GraphInputs(const Dataset& dataset, const Config& all)
    : edge_fields_(edge_fields(dataset, all.data)),
      node_types_(dataset.node_types() > 1 ? all.data.node_types : 0),
      edge_width_(static_cast<int64_t>(edge_columns(dataset.dim())) + columns_of(edge_fields_)),
      dim_(dataset.dim()) {
  const DataConfig& config = all.data;
  add_tables(dataset, all);
  for (const std::string& name : config.inputs) {
    const FieldInfo& field = dataset.field(name);
    if ((field.on != FieldOn::node && field.on != FieldOn::graph) || field.dtype != DType::f32)
      throw unfit_field("data.inputs", "f32 fields on nodes or graphs", field);
    fields_.push_back(field);
    width_ += field.components;
  }
  if (fields_.empty() && tables_.empty())
    throw config_error("data.inputs", "at least one field on nodes", "[]", "name one; see meshgrad info");
  if (node_types_ > 0 && dataset.node_types() > node_types_) {
    throw config_error(
        "data.node_types", fmt::format("more than {}, a node type of this data", dataset.node_types() - 1),
        fmt::format("{}", node_types_), fmt::format("set data.node_types = {}", dataset.node_types()));
  }
  width_ += node_types_;
}

void GraphInputs::add_tables(const Dataset& dataset, const Config& config) {
  int64_t rows = config.data.identifiers;
  for (const std::string& name : config.data.embed) {
    const FieldInfo& field = dataset.field(name);
    if (field.on != FieldOn::node || field.dtype != DType::i32 || field.components != 1 || field.node_split)
      throw unfit_field("data.embed", "i32 fields of 1 component on nodes, identifiers from 0", field);
    tables_.push_back({name, 0, config.model.embedding});
    if (config.data.identifiers > 0) continue;
    const FieldStatistics stats = dataset.field_stats(name);
    const double largest = stats.count > 0 ? stats.max.front() : 0.0;
    if (largest >= kMostIdentifiers) {
      throw data_error(fmt::format("{}: {}", dataset.path().string(), name),
                       fmt::format("identifiers from 0 to {}", kMostIdentifiers - 1),
                       fmt::format("{:.0f}", largest), "number them from 0 before the conversion");
    }
    rows = std::max(rows, static_cast<int64_t>(largest) + 1);
  }
  if (tables_.size() > kMostIdentifierTables)
    throw config_error("data.embed", fmt::format("at most {} fields", kMostIdentifierTables),
                       fmt::format("{}", tables_.size()), "leave some out");
  for (IdentifierTable& table : tables_) table.rows = rows + 1;  // the last is that of all others
}

ModelSizes GraphInputs::sizes() const {
  return {.node_inputs = width_,
          .edge_inputs = {edge_width_},
          .edge_set_names = {std::string(kMeshEdges)},
          .tables = tables_};
}

void GraphInputs::describe(TaskDescription& text) const {
  for (const FieldInfo& field : fields_) text.node_inputs.push_back({field.name, field.components});
  if (node_types_ > 0) text.node_inputs.push_back({"node type, one-hot", node_types_});
  for (const IdentifierTable& table : tables_)
    text.node_inputs.push_back({fmt::format("row of {}, of {}", table.name, table.rows - 1), table.width});
  if (dim_ > 0) text.edge_inputs = {{"relative position", dim_}, {"distance", 1}};
  for (const FieldInfo& field : edge_fields_) text.edge_inputs.push_back({field.name, field.components});
}

void GraphInputs::warn(std::vector<TaskWarning>& found) const {
  constexpr int64_t kManyTypes = 64;
  if (node_types_ <= kManyTypes) return;
  found.push_back(
      {"data.node_types",
       fmt::format("node types are a one-hot of {} columns; if they are identifiers, convert them as "
                   "a field (--map node:id=ARRAY), and name it in data.embed",
                   node_types_)});
}

template <class T>
void GraphInputs::write_rows(const GivenGraph& graph, T* rows) const {
  const MeshView& mesh = graph.view.mesh();
  const auto nodes = static_cast<size_t>(mesh.nodes), width = static_cast<size_t>(width_);
  size_t column = 0;
  for (const FieldInfo& field : fields_) {
    const std::span<const float> values = graph.view.field(field.name).frame(graph.frame);
    const auto components = static_cast<size_t>(field.components);
    const bool on_graph = field.on == FieldOn::graph;
    for (size_t i = 0; i < nodes; ++i)
      for (size_t c = 0; c < components; ++c)
        rows[i * width + column + c] = static_cast<T>(values[(on_graph ? 0 : i * components) + c]);
    column += components;
  }
  for (size_t i = 0; i < nodes && node_types_ > 0; ++i)
    for (size_t type = 0; type < width - column; ++type)
      rows[i * width + column + type] =
          static_cast<T>(mesh.node_type[i] == static_cast<int32_t>(type) ? 1 : 0);
}

template <class T>
void GraphInputs::write_edge_rows(const GivenGraph& graph, T* rows) const {
  const MeshView& mesh = graph.view.mesh();
  if (dim_ > 0) write_displacements(mesh, mesh.positions, dim_, edge_width_, rows);
  write_edge_fields(std::span(edge_fields_), graph.view, graph.frame, edge_width_, rows + edge_columns(dim_));
}

void GraphInputs::write(const Batch& batch, std::span<const GivenGraph> graphs, Normalizers& normalizers,
                        bool learn, SampleScratch& scratch) const {
  const EdgeSet& edges = batch.graph.edges(kMeshEdges);
  std::vector<int64_t> graph_nodes;
  Dataset::MeshSizes before;
  for (const GivenGraph& graph : graphs) {
    const MeshView& mesh = graph.edges();
    dispatch_storage(accumulator_of(batch.graph.node_features.dtype()), [&]<class T>() {
      const auto finish = [&](RowsInPlace<T>& rows, Normalizer& normalizer) {
        if (learn) normalizer.accumulate(std::span<const T>(rows.values()));
        normalizer.normalize(rows.values());
        rows.store();
      };
      RowsInPlace<T> node_rows(batch.graph.node_features, before.nodes, mesh.nodes, scratch.wide_nodes);
      write_rows(graph, node_rows.values().data());
      finish(node_rows, normalizers.nodes);
      if (edge_width_ == 0) return;
      RowsInPlace<T> edge_rows(edges.features, before.edges, mesh.edges, scratch.wide_edges);
      write_edge_rows(graph, edge_rows.values().data());
      finish(edge_rows, normalizers.edges);
    });
    before = append_to_union(edges.graph, mesh, before);
    graph_nodes.push_back(mesh.nodes);
  }
  write_graph_sizes(batch.graph, graph_nodes);
  write_identifiers(batch, graphs, before.nodes);
}

void GraphInputs::write_identifiers(const Batch& batch, std::span<const GivenGraph> graphs,
                                    int64_t nodes) const {
  for (size_t table = 0; table < tables_.size(); ++table) {
    const Graph& graph = batch.graph.identifiers[table];
    const auto others = static_cast<int32_t>(graph.nodes) - 1;
    int32_t* row = graph.senders.data<int32_t>();
    for (const GivenGraph& given : graphs)
      for (const int32_t value : given.view.field(tables_[table].name).frame_of<int32_t>(given.frame))
        *row++ = value >= 0 && value < others ? value : others;
    finish_identifiers(graph, nodes);
  }
}

Normalizers GraphInputs::online_normalizers(int64_t targets) const {
  return {Normalizer(static_cast<size_t>(width_)), Normalizer(static_cast<size_t>(edge_width_)),
          Normalizer(static_cast<size_t>(targets)), Normalizer(0)};
}

Normalizers GraphInputs::dataset_normalizers(const Dataset& dataset) const {
  FieldStatistics nodes, edges = dim_ > 0 ? dataset.edge_stats() : FieldStatistics();
  const auto add = [&](FieldStatistics& to, const std::vector<FieldInfo>& fields) {
    for (const FieldInfo& field : fields) {
      const FieldStatistics stats = dataset.field_stats(field.name);
      to.mean.insert(to.mean.end(), stats.mean.begin(), stats.mean.end());
      to.std.insert(to.std.end(), stats.std.begin(), stats.std.end());
    }
  };
  add(nodes, fields_);
  add(edges, edge_fields_);
  nodes.mean.resize(static_cast<size_t>(width_), 0.0);
  nodes.std.resize(static_cast<size_t>(width_), 1.0);
  return {Normalizer::fixed(nodes.mean, nodes.std), Normalizer::fixed(edges.mean, edges.std), Normalizer(0),
          Normalizer(0)};
}

}  // namespace meshgrad
