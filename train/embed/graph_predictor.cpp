// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/memory_data.h>
#include <meshgrad/train/embed/graph_predictor.h>
#include <meshgrad/train/embed/host_copies.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/class_metrics.h>
#include <meshgrad/train/learn/task/edge_fields.h>
#include <meshgrad/train/learn/task/graph_inputs.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

Config config_on_graphs(const fs::path& checkpoint) {
  Config config = config_of_predictions(checkpoint);
  const TaskName task = config.task.name;
  const bool on_graphs = task == TaskName::node_classification || task == TaskName::graph_classification ||
                         task == TaskName::graph_regression;
  if (on_graphs) return config;
  throw config_error(
      "task.name", "a checkpoint of node_classification, graph_classification or graph_regression",
      toml_quoted(name_of(task)),
      task == TaskName::link_reconstruction ? "use meshgrad predict"
                                            : "predict with MeshPredictor, in C meshgrad_predictor");
}

TrainingData data_on_graphs(const fs::path& checkpoint) {
  if (auto data = checkpoint_training_data(checkpoint); data && !data->fields.empty())
    return std::move(*data);
  throw data_error(checkpoint.string(), "a description of the fields, to predict without their data set",
                   "a checkpoint of an earlier version",
                   "train one more step: raise train.steps by 1 and run meshgrad train --resume");
}

int64_t node_inputs_of(const fs::path& checkpoint) {
  const SafetensorsFile file = open_checkpoint(checkpoint);
  return file.view().at("normalizer.nodes.mean").shape.front();
}

/// Throws InvalidArgument for another number of values.
void check_count(const char* what, int64_t rows, int64_t columns, size_t got) {
  if (std::cmp_equal(got, rows * columns)) return;
  throw invalid_argument(what, fmt::format("[{}, {}] numbers", rows, columns), fmt::format("{}", got),
                         "give one row for each");
}

}  // namespace

struct GraphPredictor::Loaded {
  Runtime& runtime;
  Config config;
  TrainingData trained;
  std::vector<FieldInfo> inputs{}, edge_inputs{}, identifiers{}, targets{};
  int64_t node_columns = 0, graph_columns = 0;
  bool per_graph = false, classes = false;
  int64_t node_types = 1;
  GraphInputs reads;
  ModelSizes sizes{};
  Model model{};
  Normalizers normalizers;
  SampleScratch scratch{};

  Loaded(Runtime& own, const fs::path& checkpoint);
  std::shared_ptr<MemoryData> data_without_graphs();
  int64_t columns_of_targets() const;
  std::vector<int64_t> sizes_of_graphs(const Integers& starts, int32_t first_node, int64_t nodes) const;
  bool directed(std::optional<bool> given) const;
  int64_t nodes_of(const GraphArrays& graphs, const Integers& starts) const;
  std::vector<std::vector<float>> fields_of(const GraphArrays& graphs, std::span<const int32_t> graph_of_node,
                                            std::span<const int32_t> row_of_edge) const;
  void write(std::span<const double> rows, WritableNumbers values) const;
};

/// What the model reads: each field on graphs has a row for each node.
std::shared_ptr<MemoryData> GraphPredictor::Loaded::data_without_graphs() {
  auto none = std::make_shared<MemoryData>();
  none->dim = trained.dim;
  none->node_types = node_types;
  for (const std::vector<FieldInfo>* fields : {&inputs, &edge_inputs, &identifiers}) {
    for (FieldInfo field : *fields) {
      if (field.on == FieldOn::graph) field.on = FieldOn::node;
      if (fields == &identifiers) field.dtype = DType::i32;
      field.dynamic = false;
      none->fields.push_back(std::move(field));
    }
  }
  none->splits = {{.name = "train", .first = 0, .count = 0}};
  return none;
}

/// Of classes, as the configuration or the labels that were trained on say.
int64_t GraphPredictor::Loaded::columns_of_targets() const {
  int64_t columns = 0;
  for (const FieldInfo& field : targets) columns += field.components;
  if (!classes) return columns;
  if (config.data.classes > 0) return config.data.classes;
  if (trained.ranges) {
    const auto label = trained.ranges->fields.find(targets.front().name);
    if (label != trained.ranges->fields.end() && !label->second.empty())
      return static_cast<int64_t>(label->second.front().most) + 1;
  }
  throw data_error("checkpoint", "the number of classes", "data.classes = 0 and labels without a range",
                   "set data.classes, raise train.steps by 1 and run meshgrad train --resume");
}

GraphPredictor::Loaded::Loaded(Runtime& own, const fs::path& checkpoint)
    : runtime(own),
      config(config_on_graphs(checkpoint)),
      trained(data_on_graphs(checkpoint)),
      reads([&] {
        const auto named = [&](const std::string& name) {
          const auto found = std::ranges::find(trained.fields, name, &FieldInfo::name);
          if (found == trained.fields.end())
            throw data_error(checkpoint.string(), "a description of field " + name, "none",
                             "use another checkpoint of the run (--checkpoint FILE)");
          return *found;
        };
        for (const std::string& name : config.data.inputs) inputs.push_back(named(name));
        for (const std::string& name : config.data.edge_inputs) edge_inputs.push_back(named(name));
        for (const std::string& name : config.data.embed) identifiers.push_back(named(name));
        for (const std::string& name : config.data.targets) targets.push_back(named(name));
        for (const FieldInfo& field : inputs)
          (field.on == FieldOn::graph ? graph_columns : node_columns) += field.components;
        // Nodes read their type where the data had several.
        if (node_inputs_of(checkpoint) > node_columns + graph_columns) node_types = config.data.node_types;
        return GraphInputs(Dataset::over(data_without_graphs()), config);
      }()),
      normalizers(reads.online_normalizers(0)) {
  check_precision(runtime.device(), config.precision);
  per_graph = config.task.name != TaskName::node_classification;
  classes = config.task.name != TaskName::graph_regression;
  sizes = reads.sizes();
  sizes.outputs = columns_of_targets();
  sizes.graph_starts = per_graph || reads_graph_starts(config.model);
  if (per_graph) {
    sizes.pool = config.model.pool;
  }
  normalizers = reads.online_normalizers(classes ? 0 : sizes.outputs);
  model = make_model(config.model, sizes);
  model.parameters.allocate(runtime, config.precision, 0);
  load_checkpoint(checkpoint, runtime.stream(), model.parameters, nullptr, normalizers);
  model.parameters.release_gradients();
}

std::vector<int64_t> GraphPredictor::Loaded::sizes_of_graphs(const Integers& starts, int32_t first_node,
                                                             int64_t nodes) const {
  if (starts.empty()) return {nodes};
  const std::span<const int32_t> at = starts.values();
  std::vector<int64_t> sizes_of;
  for (size_t g = 0; g < at.size(); ++g) {
    const int64_t end = int64_t{at[g]} - first_node;
    const bool first = g == 0, last = g + 1 == at.size();
    const int64_t least = first ? 0 : int64_t{at[g - 1]} - first_node;
    if (end < least || end > nodes || (first && end != 0) || (last && end != nodes)) {
      throw data_error(
          fmt::format("graphs: starts, row {}", g),
          fmt::format("ascending numbers of nodes, from {} to {}", first_node, nodes + first_node),
          fmt::format("{}", at[g]), "give the first node of each graph, then the end of the last");
    }
    if (!first) sizes_of.push_back(end - least);
  }
  return sizes_of;
}

bool GraphPredictor::Loaded::directed(std::optional<bool> given) const {
  const std::optional<bool>& known = trained.directed;
  if (!given && !known) {
    throw data_error("graphs: directed", "whether the data that were trained on had directed edges", "none",
                     "set it: meshgrad info DATA says which they are");
  }
  if (!given || !known || *given == *known) return given.value_or(known.value_or(false));
  throw data_error(
      "graphs: directed", fmt::format("{}, as in training", name_of_edges(*known)),
      std::string(name_of_edges(*given)),
      fmt::format("give edges of that kind: meshgrad convert --{}", *known ? "directed" : "undirected"));
}

int64_t GraphPredictor::Loaded::nodes_of(const GraphArrays& graphs, const Integers& starts) const {
  const auto rows = [](size_t numbers, int64_t columns) { return static_cast<int64_t>(numbers) / columns; };
  if (node_columns > 0) return rows(graphs.inputs.size(), node_columns);
  if (!identifiers.empty()) return rows(graphs.identifiers.size(), std::ssize(identifiers));
  if (trained.dim > 0) return rows(graphs.positions.size(), trained.dim);
  if (!graphs.node_type.empty()) return rows(graphs.node_type.size(), 1);
  if (!starts.empty()) return int64_t{starts.values().back()} - graphs.first_node;
  throw invalid_argument(
      "graphs: node_type",
      "[nodes] numbers, as this model reads nothing else that tells how many nodes there are", "0",
      "give node_type, of zeros where nodes have no types, or starts");
}

/// Of inputs, then of edge_inputs.
std::vector<std::vector<float>> GraphPredictor::Loaded::fields_of(
    const GraphArrays& graphs, std::span<const int32_t> graph_of_node,
    std::span<const int32_t> row_of_edge) const {
  struct Source {
    const Numbers& from;
    int64_t width;
    std::vector<int32_t> rows;  // of `from`, by row of the field
    size_t column = 0;
  };
  std::vector<int32_t> own(graph_of_node.size());
  std::iota(own.begin(), own.end(), 0);
  Source on_nodes{graphs.inputs, node_columns, std::move(own)},
      on_graphs{graphs.graph_inputs, graph_columns, {graph_of_node.begin(), graph_of_node.end()}},
      on_edges{graphs.edge_inputs, columns_of(edge_inputs), {row_of_edge.begin(), row_of_edge.end()}};
  std::vector<std::vector<float>> values;
  const auto add = [&](const FieldInfo& field, Source& source) {
    const auto offsets = trained.offsets.find(field.name);
    std::vector<float>& of_field = values.emplace_back();
    for (const int32_t row : source.rows) {
      for (size_t c = 0; std::cmp_less(c, field.components); ++c) {
        const double value =
            source.from[static_cast<size_t>(row) * static_cast<size_t>(source.width) + source.column + c];
        if (!std::isfinite(value)) {
          throw data_error(fmt::format("graphs: field {}, row {}", field.name, row), "finite numbers",
                           fmt::format("{}", value), "look for values that were never set");
        }
        of_field.push_back(
            static_cast<float>(value - (offsets == trained.offsets.end() ? 0.0 : offsets->second[c])));
      }
    }
    source.column += static_cast<size_t>(field.components);
  };
  for (const FieldInfo& field : inputs) add(field, field.on == FieldOn::graph ? on_graphs : on_nodes);
  for (const FieldInfo& field : edge_inputs) add(field, on_edges);
  return values;
}

void GraphPredictor::Loaded::write(std::span<const double> rows, WritableNumbers values) const {
  const auto width = static_cast<size_t>(sizes.outputs);
  if (classes) {
    for (size_t at = 0; at < rows.size(); at += width) {
      const std::vector<double> of_row = probabilities_of(rows.subspan(at, width));
      for (size_t c = 0; c < width; ++c) values.set(at + c, of_row[c]);
    }
    return;
  }
  std::vector<double> offsets;  // that the data had
  for (const FieldInfo& field : targets) {
    const auto of_field = trained.offsets.find(field.name);
    for (size_t c = 0; std::cmp_less(c, field.components); ++c)
      offsets.push_back(of_field == trained.offsets.end() ? 0.0 : of_field->second[c]);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t c = i % width;
    values.set(
        i, offsets[c] + normalizers.targets.mean(c) + normalizers.targets.standard_deviation(c) * rows[i]);
  }
}

GraphPredictor::GraphPredictor(Runtime& runtime, const fs::path& checkpoint)
    : loaded_(std::make_unique<Loaded>(runtime, checkpoint)) {}
GraphPredictor::~GraphPredictor() = default;
GraphPredictor::GraphPredictor(GraphPredictor&&) noexcept = default;

const std::vector<FieldInfo>& GraphPredictor::inputs() const { return loaded_->inputs; }
const std::vector<FieldInfo>& GraphPredictor::edge_inputs() const { return loaded_->edge_inputs; }
const std::vector<FieldInfo>& GraphPredictor::identifiers() const { return loaded_->identifiers; }
const std::vector<FieldInfo>& GraphPredictor::targets() const { return loaded_->targets; }
int64_t GraphPredictor::node_columns() const { return loaded_->node_columns; }
int64_t GraphPredictor::edge_columns() const { return columns_of(loaded_->edge_inputs); }
int64_t GraphPredictor::graph_columns() const { return loaded_->graph_columns; }
int GraphPredictor::dim() const { return loaded_->trained.dim; }
bool GraphPredictor::per_graph() const { return loaded_->per_graph; }
bool GraphPredictor::classes() const { return loaded_->classes; }
int64_t GraphPredictor::columns() const { return loaded_->sizes.outputs; }

namespace {

/// Edges by their ends, numbered from 0; throws DataError for one between two graphs.
struct Ends {
  std::vector<int32_t> senders, receivers, graph_of;  // of each node

  Ends(std::span<const int32_t> edges, int32_t first_node, std::span<const int64_t> graphs) {
    for (size_t graph = 0; graph < graphs.size(); ++graph)
      graph_of.insert(graph_of.end(), static_cast<size_t>(graphs[graph]), static_cast<int32_t>(graph));
    for (size_t at = 0; at + 1 < edges.size(); at += 2) {
      const int64_t from = int64_t{edges[at]} - first_node, to = int64_t{edges[at + 1]} - first_node;
      const auto inside = [&](int64_t node) { return node >= 0 && std::cmp_less(node, graph_of.size()); };
      if (!inside(from) || !inside(to) ||
          graph_of[static_cast<size_t>(from)] != graph_of[static_cast<size_t>(to)]) {
        throw data_error(fmt::format("graphs: edges, row {}", at / 2),
                         fmt::format("two nodes of one graph, numbered from {} to {}", first_node,
                                     std::ssize(graph_of) + first_node - 1),
                         fmt::format("{} and {}", edges[at], edges[at + 1]),
                         "number the nodes of all graphs one after another, and set first_node");
      }
      senders.push_back(static_cast<int32_t>(from));
      receivers.push_back(static_cast<int32_t>(to));
    }
  }
  /// The row of `edges` that each edge of the model has its values from.
  std::vector<int32_t> rows(const MeshEdges& made, bool directed) const {
    constexpr const char* kWhere = "graphs: edges";
    if (directed) return directed_edges(senders, receivers, std::ssize(graph_of), kWhere).columns;
    std::vector<int32_t> pairs = senders;
    pairs.insert(pairs.end(), receivers.begin(), receivers.end());
    return columns_of_edges(made, pairs, kWhere);
  }
};

/// Columns of `rows` [rows, columns], one after another.
std::vector<std::vector<int32_t>> columns_in(std::span<const int32_t> rows, size_t columns) {
  std::vector<std::vector<int32_t>> all(columns);
  for (size_t i = 0; i < rows.size(); ++i) all[i % columns].push_back(rows[i]);
  return all;
}

}  // namespace

void GraphPredictor::predict(const GraphArrays& given, WritableNumbers values) {
  Loaded& our = *loaded_;
  HostCopies copies(our.runtime);
  GraphArrays graphs = given;
  graphs.inputs = copies.read(given.inputs, "graphs: inputs");
  graphs.graph_inputs = copies.read(given.graph_inputs, "graphs: graph_inputs");
  const Numbers positions = copies.read(given.positions, "graphs: positions");
  const Integers edges = copies.read(given.edges, "graphs: edges", 2);
  const Integers types = copies.read(given.node_type, "graphs: node_type");
  const Integers starts = copies.read(given.starts, "graphs: starts");
  graphs.edge_inputs = copies.read(given.edge_inputs, "graphs: edge_inputs");
  const auto tables = std::ssize(our.identifiers);
  const Integers identifiers =
      copies.read(given.identifiers, "graphs: identifiers", std::max<int64_t>(1, tables));
  const int64_t nodes = our.nodes_of(given, starts);
  const std::vector<int64_t> sizes_of = our.sizes_of_graphs(starts, given.first_node, nodes);
  const int64_t count = std::ssize(sizes_of), rows = our.per_graph ? count : nodes;
  check_count("graphs: inputs", nodes, our.node_columns, given.inputs.size());
  check_count("graphs: graph_inputs", count, our.graph_columns, given.graph_inputs.size());
  check_count("graphs: edge_inputs", static_cast<int64_t>(given.edges.size()) / 2,
              columns_of(our.edge_inputs), given.edge_inputs.size());
  check_count("graphs: identifiers", nodes, tables, given.identifiers.size());
  check_count("graphs: positions", nodes, our.trained.dim, given.positions.size());
  if (!types.empty()) check_count("graphs: node_type", nodes, 1, types.size());
  check_count("graphs: values", rows, our.sizes.outputs, values.size());

  const std::shared_ptr<MemoryData> data = our.data_without_graphs();
  data->directed = our.directed(given.directed);
  std::vector<float> places;
  for (size_t i = 0; i < positions.size(); ++i) places.push_back(static_cast<float>(positions[i]));
  std::vector<int32_t> node_type(static_cast<size_t>(nodes), 0);
  std::ranges::copy(types.values(), node_type.begin());
  const Ends ends(edges.values(), given.first_node, sizes_of);
  data->add_mesh("graphs", places, node_type, ends.senders, ends.receivers);
  std::vector<int32_t> row_of_edge;
  if (!our.edge_inputs.empty()) row_of_edge = ends.rows(data->meshes.front().edges, data->directed);
  const std::vector<std::vector<float>> fields = our.fields_of(graphs, ends.graph_of, row_of_edge);
  const auto of_nodes = columns_in(identifiers.values(), static_cast<size_t>(tables));
  MemoryTrajectory one{.mesh = 0, .frames = 1, .fields = {}};
  for (const std::vector<float>& field : fields) one.fields.emplace_back(field);
  for (const std::vector<int32_t>& field : of_nodes) one.fields.emplace_back(field);
  data->trajectories.push_back(std::move(one));
  data->splits.front().count = 1;
  const Dataset dataset = Dataset::over(data);
  const GivenGraph graph{dataset.trajectory(0)};

  const BatchLayout layout(our.sizes, {.nodes = nodes, .edges = graph.view.mesh().edges, .graphs = count},
                           our.config.precision, BatchLayout::Sizes::exact);
  const Batch batch = make_batch(our.runtime, layout, [&](const Batch& host) {
    our.reads.write(host, {&graph, 1}, our.normalizers, false, our.scratch);
    write_graph_sizes(host.graph, sizes_of);
  });
  Tape tape(our.runtime, Tape::Mode::evaluate);
  const Tensor predicted =
      to_host(forward(our.model, tape, batch.graph).front().value(), our.runtime.stream());
  HostCopies results(our.runtime);
  our.write(values_of(predicted), results.room_for(values, "graphs: values"));
  results.write_back();
}

}  // namespace meshgrad
