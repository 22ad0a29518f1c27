// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/task/graph_inputs.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/tools/extras/foreign_weights.h>
#include <meshgrad/train/tools/extras/import_weights.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

ModelName name_of_model(const ForeignModel& foreign) {
  if (foreign.gat) return ModelName::gat;
  return foreign.vgae ? ModelName::vgae : ModelName::mesh_graph_net;
}

/// The file's widths against those of the data: the likeliest mistake, and no shape of a parameter says it as
/// clearly.
void check_sizes(const ForeignModel& foreign, const ModelSizes& data, const fs::path& file) {
  const auto check = [&](std::string_view what, int64_t theirs, int64_t ours, std::string_view fix) {
    if (theirs == ours) return;
    throw data_error(file.string(), fmt::format("{} {}, as the data have", ours, what),
                     fmt::format("{}", theirs), fix);
  };
  check("node inputs", foreign.sizes.node_inputs, data.node_inputs,
        "set data.inputs and data.node_types to what the weights were trained with");
  check("edge sets", 1, static_cast<int64_t>(data.edge_inputs.size()),
        "set data.world_radius = 0: these files have no world edges");
  if (name_of_model(foreign) == ModelName::mesh_graph_net) {
    check("edge inputs", foreign.sizes.edge_inputs.front(), data.edge_inputs.front(),
          "use data of the dimension that the weights were trained with");
  }
  check("outputs", foreign.sizes.outputs, data.outputs,
        "set data.targets to what the weights were trained with");
}

void check_normalizers(const Normalizers& normalizers, const ModelSizes& sizes, const fs::path& file) {
  const auto check = [&](const char* name, const Normalizer& normalizer, int64_t width) {
    if (normalizer.width() == static_cast<size_t>(width)) return;
    throw data_error(file.string() + ": normalizer of " + name, fmt::format("{} columns", width),
                     fmt::format("{}", normalizer.width()),
                     "give a mean and a deviation for each input, 0 and 1 for node types");
  };
  check("nodes", normalizers.nodes, sizes.node_inputs);
  check("edges", normalizers.edges, sizes.edge_inputs.front());
  check("targets", normalizers.targets, sizes.outputs);
}

ModelConfig model_config(const ModelConfig& asked, const ForeignModel& foreign) {
  ModelConfig config = asked;
  if (foreign.gat) {
    config.blocks = foreign.gat->blocks;
    config.width = foreign.gat->heads * foreign.gat->width;
    config.gat.heads = foreign.gat->heads;
    config.gat.score = foreign.gat->score;
    config.gat.concatenate = true;
    config.gat.edge_features = false;
    config.gat.decoder = GatDecoder::attention;
    config.gat.output_heads = foreign.gat->output_heads;
    return config;
  }
  if (foreign.vgae) {
    if (asked.vgae.feature_weight > 0.0) {
      throw config_error("vgae.feature_weight", "0, as the file has no weights that decode inputs",
                         fmt::format("{}", asked.vgae.feature_weight), "leave it out");
    }
    if (asked.vgae.encoder != VgaeEncoder::convolution) {
      throw config_error("vgae.encoder", "\"convolution\", as in the file", "\"attention\"", "leave it out");
    }
    config.blocks = foreign.vgae->blocks;
    config.width = foreign.vgae->width;
    config.vgae.latent = foreign.sizes.outputs;
    return config;
  }
  if (asked.slices > 0) {
    throw config_error("model.slices", "0, as the file has no slices", fmt::format("{}", asked.slices),
                       "leave it out");
  }
  config.width = foreign.options.width;
  config.blocks = foreign.options.blocks;
  config.hidden_layers = foreign.options.hidden_layers;
  config.norm = foreign.options.norm;
  config.concat_order = foreign.options.concat_order;
  config.aggregate = foreign.options.aggregate;
  return config;
}

Tensor read_tensor(Runtime& runtime, const SafetensorsView& view, const std::string& name, int64_t columns) {
  const SafetensorsTensor& tensor = view.at(name);
  if (tensor.shape.size() != 2 || tensor.shape[1] != columns) {
    throw data_error(view.file + ": " + name, fmt::format("a matrix of {} columns", columns),
                     fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
                     "write what the model was called with");
  }
  return Tensor::from<double>(runtime, to_f64(tensor), {tensor.shape[0], tensor.shape[1]}, Tag::data, name);
}

std::vector<int32_t> read_nodes(const SafetensorsView& view, const std::string& name) {
  const std::vector<int64_t> values = to_i64(view.at(name));
  return {values.begin(), values.end()};
}

/// An edge from each node to itself where there is none, as a graph convolution has them.
void add_self_edges(int64_t nodes, std::vector<int32_t>& senders, std::vector<int32_t>& receivers) {
  std::vector<uint8_t> has(static_cast<size_t>(nodes), 0);
  for (size_t e = 0; e < std::min(senders.size(), receivers.size()); ++e)
    if (senders[e] == receivers[e] && senders[e] >= 0 && senders[e] < nodes)
      has[static_cast<size_t>(senders[e])] = 1;
  for (int32_t node = 0; node < nodes; ++node) {
    if (has[static_cast<size_t>(node)] != 0) continue;
    senders.push_back(node);
    receivers.push_back(node);
  }
}

/// The graph of the reference values. Edges are sorted by receiver, and their features with them.
GraphBatch read_graph(Runtime& runtime, const SafetensorsView& view, const ModelSizes& sizes) {
  GraphBatch batch;
  batch.node_features = read_tensor(runtime, view, "in.node_features", sizes.node_inputs);
  batch.nodes = batch.node_features.rows();
  std::vector<int32_t> order;
  std::vector<int32_t> senders = read_nodes(view, "in.senders"), receivers = read_nodes(view, "in.receivers");
  if (sizes.edge_weights) add_self_edges(batch.nodes, senders, receivers);
  EdgeSet edges{std::string(kMeshEdges), build_graph(runtime, batch.nodes, senders, receivers, &order), {}};
  if (sizes.edge_weights) {
    edges.weights = Tensor::empty(runtime, {edges.graph.edges}, DType::f32, Tag::data);
    write_convolution_weights(edges);
  }
  const int64_t columns = sizes.edge_inputs.front();
  if (columns == 0) {
    edges.features = Tensor::empty(runtime, {edges.graph.edges, 0}, DType::f64, Tag::data);
    batch.edge_sets.push_back(std::move(edges));
    return batch;
  }
  const Tensor given = read_tensor(runtime, view, "in.edge_features", columns);
  if (given.rows() != edges.graph.edges) {
    throw data_error(view.file + ": in.edge_features", fmt::format("{} rows", edges.graph.edges),
                     fmt::format("{}", given.rows()), "write a row for each edge");
  }
  edges.features = Tensor::empty(runtime, {edges.graph.edges, columns}, DType::f64, Tag::data);
  for (size_t e = 0; e < order.size(); ++e) {
    std::copy_n(given.data<double>() + order[e] * columns, columns,
                edges.features.data<double>() + static_cast<int64_t>(e) * columns);
  }
  batch.edge_sets.push_back(std::move(edges));
  return batch;
}

}  // namespace

ImportReport import_weights(Runtime& runtime, const Config& asked, const ImportOptions& options) {
  const SafetensorsFile file(options.file);
  ForeignModel foreign = read_foreign_model(file.view(), options.source);
  const ModelName name = name_of_model(foreign);
  if (asked.model.name != name) {
    throw config_error("model.name", toml_quoted(name_of(name)) + ", whose weights the file has",
                       toml_quoted(name_of(asked.model.name)),
                       "set model.name = " + toml_quoted(name_of(name)));
  }
  if (options.source == WeightSource::pyg && name == ModelName::mesh_graph_net)
    reverse_relative_positions(foreign);
  Config config = asked;
  config.model = model_config(asked.model, foreign);
  if (config.train.batch == kAutoBatch) config.train.batch = 1;
  const Task task = make_task(config, Dataset::open(config.data.path));
  check_sizes(foreign, task.sizes(), options.file);
  const Model model = make_model(runtime, config, task.sizes());
  set_parameters(foreign, options.file.string(), model.parameters, runtime.stream());
  if (foreign.normalizers) check_normalizers(*foreign.normalizers, task.sizes(), options.file);
  const bool raw = config.normalize.mode == NormalizeMode::none;
  const Normalizers normalizers = foreign.normalizers ? *foreign.normalizers
                                  : raw               ? task.online_normalizers()
                                                      : task.dataset_normalizers(noise_of(config));
  const Optimizer optimizer(runtime, model.parameters, config.optimizer, config.train.clip_norm, {});
  std::error_code ignored;  // save_checkpoint names what cannot be written
  if (options.output.has_parent_path()) fs::create_directories(options.output.parent_path(), ignored);
  const CheckpointExtra extra{{}, {{"imported", options.file.filename().string()}}};
  save_checkpoint(options.output, runtime.stream(), config, task.dataset(), model.parameters, optimizer,
                  normalizers, {}, &extra);
  return {.width = config.model.width,
          .blocks = config.model.blocks,
          .hidden_layers = name == ModelName::mesh_graph_net ? config.model.hidden_layers : 0,
          .parameters = model.parameters.count(),
          .normalizers = foreign.normalizers ? "file"
                         : raw               ? "none"
                                             : "data"};
}

ImportCheck check_weights(Runtime& runtime, const fs::path& path, WeightSource source,
                          Activation activation) {
  const SafetensorsFile file(path);
  const SafetensorsView& view = file.view();
  ForeignModel foreign = read_foreign_model(view, source);
  foreign.options.activation = activation;
  if (foreign.gat) foreign.gat->activation = activation;
  if (foreign.vgae) foreign.vgae->activation = activation;
  Model model = foreign.gat    ? make_gat(*foreign.gat, foreign.sizes)
                : foreign.vgae ? make_vgae(*foreign.vgae, foreign.sizes)
                               : make_mesh_graph_net(foreign.options, foreign.sizes);
  model.parameters.allocate(runtime, DType::f64, 0);
  set_parameters(foreign, path.string(), model.parameters, runtime.stream());
  const GraphBatch batch = read_graph(runtime, view, foreign.sizes);
  const SafetensorsTensor& expected = view.at("out.prediction");
  const std::vector<double> theirs = to_f64(expected);
  Tape tape(runtime, Tape::Mode::evaluate);
  const Tensor ours = forward(model, tape, batch, input_values(tape, batch)).front().value();
  if (ours.elements() != static_cast<int64_t>(theirs.size())) {
    throw data_error(path.string() + ": out.prediction", fmt::format("{} values", ours.elements()),
                     fmt::format("{}", theirs.size()), "write what the model returned");
  }
  const bool exact = expected.dtype == SafetensorsDtype::f64;
  ImportCheck check{.nodes = batch.nodes,
                    .edges = batch.edges(kMeshEdges).graph.edges,
                    .tolerance = !exact         ? 1e-4
                                 : foreign.vgae ? 1e-6
                                                : 1e-9};
  double largest = 0.0;
  for (size_t i = 0; i < theirs.size(); ++i) {
    const double difference = std::abs(ours.data<double>()[i] - theirs[i]);
    if (!(difference <= check.difference)) check.difference = difference;  // also a NaN
    largest = std::max(largest, std::abs(theirs[i]));
  }
  if (largest > 0.0) check.difference /= largest;
  return check;
}

}  // namespace meshgrad
