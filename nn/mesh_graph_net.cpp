// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/halo.h>
#include <meshgrad/nn/embedding.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/nn/mlp.h>
#include <meshgrad/nn/slice_layer.h>

#include <memory>
#include <optional>

namespace meshgrad {
namespace {

void check_options(const MeshGraphNetOptions& o, const ModelSizes& sizes) {
  const auto need = [](std::string_view key, int64_t value, int64_t least) {
    if (value < least) {
      throw invalid_argument("MeshGraphNet: " + std::string(key), std::to_string(least) + " or more",
                             std::to_string(value));
    }
  };
  need("node_inputs", node_columns(sizes), 1);
  need("outputs", sizes.outputs, sizes.graph_outputs > 0 ? 0 : 1);
  need("width", o.width, 1);
  need("blocks", o.blocks, 0);
  need("hidden_layers", o.hidden_layers, 0);
  need("edge sets", static_cast<int64_t>(sizes.edge_inputs.size()), 1);
  need("graph_outputs", sizes.graph_outputs, 0);
  if ((sizes.pool || sizes.graph_outputs > 0) && !sizes.graph_starts)
    throw invalid_argument("MeshGraphNet: sizes", "graph_starts where nodes are pooled", "false");
  if (sizes.pool && sizes.graph_outputs > 0)
    throw invalid_argument("MeshGraphNet: sizes with pool", "graph_outputs 0",
                           std::to_string(sizes.graph_outputs));
  for (const int64_t inputs : sizes.edge_inputs) need("edge_inputs", inputs, 0);
  if (o.hidden_layers + 1 > kMaxMlpLayers || sizes.edge_inputs.size() + 1 > kMaxMlpInputs) {
    throw invalid_argument(
        "MeshGraphNet", "at most 7 hidden layers and 7 edge sets",
        std::to_string(o.hidden_layers) + " and " + std::to_string(sizes.edge_inputs.size()));
  }
  if (sizes.edge_set_names.size() != sizes.edge_inputs.size()) {
    throw invalid_argument("MeshGraphNet", "a name for each edge set",
                           std::to_string(sizes.edge_set_names.size()));
  }
}

void check_slices(const MeshGraphNetOptions& o, const ModelSizes& sizes) {
  if (o.slices == 0) return;
  const auto need = [](const char* what, bool fits, const std::string& needed, const std::string& got) {
    if (!fits) throw invalid_argument(std::string("MeshGraphNet: ") + what, needed, got);
  };
  need("slices_every", o.slices_every >= 1, "1 or more", std::to_string(o.slices_every));
  need("slice_heads", o.slice_heads >= 1 && o.slice_heads <= kMaxHeads && o.width % o.slice_heads == 0,
       "1 to " + std::to_string(kMaxHeads) + " heads that divide the width, " + std::to_string(o.width),
       std::to_string(o.slice_heads));
  need("slices", slices_fit(o.slices, o.width / o.slice_heads), slices_that_fit(),
       std::to_string(o.slices) + " slices of " + std::to_string(o.width / o.slice_heads) + " columns");
  need("sizes", sizes.graph_starts, "graph_starts, with slices", "false");
}

void check_batch(const GraphBatch& batch, const Values& before, size_t edge_sets) {
  if (batch.edge_sets.size() != edge_sets || before.size() != edge_sets + 1) {
    throw invalid_argument("MeshGraphNet", std::to_string(edge_sets) + " edge sets",
                           std::to_string(batch.edge_sets.size()));
  }
}

/// Of one edge set the name does not matter.
void check_edge_sets(const GraphBatch& batch, const std::vector<std::string>& names) {
  for (size_t set = 0; set < names.size(); ++set) {
    const EdgeSet& edges = batch.edge_sets[set];
    const std::string where = "MeshGraphNet: edge set " + std::to_string(set);
    if (names.size() > 1 && edges.name != names[set]) throw invalid_argument(where, names[set], edges.name);
    if (!edges.from_batch || !edges.to_batch)
      throw invalid_argument(
          where, "edges between nodes of the batch",
          edges.name + (edges.from_batch ? ", which ends" : ", which begins") + " outside the batch");
  }
}

/// Declares the parameters of MLPs, stage after stage.
class MlpFactory {
 public:
  MlpFactory(ParameterSet& parameters, const MeshGraphNetOptions& options, const ModelSizes& sizes)
      : parameters_(parameters), options_(options), sizes_(sizes) {}

  Mlp make(const std::string& name, std::vector<int64_t> inputs, std::vector<size_t> order, int64_t out,
           Norm norm) const {
    return Mlp(parameters_, name,
               {.inputs = std::move(inputs),
                .file_order = std::move(order),
                .hidden = options_.width,
                .out = out,
                .hidden_layers = options_.hidden_layers,
                .activation = options_.activation,
                .norm = norm});
  }
  /// Of the edges of one set, in the place `name`.
  Mlp edge_mlp(const std::string& name, size_t set, std::vector<int64_t> inputs,
               std::vector<size_t> order) const {
    const bool several = sizes_.edge_inputs.size() > 1;
    return make(several ? name + "." + sizes_.edge_set_names[set] : name, std::move(inputs), std::move(order),
                options_.width, options_.norm);
  }

 private:
  ParameterSet& parameters_;
  const MeshGraphNetOptions& options_;
  const ModelSizes& sizes_;
};

/// An MLP for the nodes and one for each edge set that has features.
struct Encoder {
  MeshGraphNetOptions options;
  std::vector<std::string> edge_sets;
  std::vector<std::optional<Mlp>> mlps;

  Encoder(const MlpFactory& factory, const MeshGraphNetOptions& o, const ModelSizes& sizes)
      : options(o), edge_sets(sizes.edge_set_names) {
    mlps.emplace_back(factory.make("node_encoder", {node_columns(sizes)}, {}, o.width, o.norm));
    for (size_t set = 0; set < sizes.edge_inputs.size(); ++set) {
      mlps.emplace_back();
      if (sizes.edge_inputs[set] > 0)
        mlps.back() = factory.edge_mlp("edge_encoder", set, {sizes.edge_inputs[set]}, {});
    }
  }
  Values operator()(Tape& tape, const ParameterSet& parameters, const GraphBatch& batch,
                    const Values& features) const {
    check_batch(batch, features, edge_sets.size());
    check_edge_sets(batch, edge_sets);
    Values after;
    for (size_t i = 0; i < features.size(); ++i) {
      after.push_back(
          mlps[i] ? mlps[i]->forward(tape, parameters, {features[i]}, {}, options.path, options.keep_hidden)
                  : features[i]);
    }
    return after;
  }
};

/// Message passing: edges from their ends, then nodes from the sums of their edges.
struct MessagePassingBlock {
  MeshGraphNetOptions options;
  bool edges_needed;  // by a later stage
  std::vector<Mlp> edges;
  std::vector<Mlp> nodes;  // one
  /// The next block's edge MLP, for the node terms; none after the last block and with several edge sets.
  /// Shared, since the next block is made after this one.
  std::shared_ptr<std::optional<Mlp>> next_edges = std::make_shared<std::optional<Mlp>>();

  MessagePassingBlock(const MlpFactory& factory, const MeshGraphNetOptions& o, const ModelSizes& sizes,
                      int64_t number)
      : options(o), edges_needed(o.keep_last_edges || number + 1 < o.blocks) {
    const int64_t width = o.width;
    const size_t sets = sizes.edge_inputs.size();
    const bool edge_first = o.concat_order == ConcatOrder::edge_sender_receiver;
    const std::string name = "processor." + std::to_string(number);
    // Calls pass {sender, receiver, edge}; PhysicsNeMo's files hold {edge, sender, receiver}.
    const std::vector<size_t> order =
        edge_first ? std::vector<size_t>{2, 0, 1} : std::vector<size_t>{0, 1, 2};
    for (size_t set = 0; set < sets; ++set) {
      const int64_t latents = number == 0 && sizes.edge_inputs[set] == 0 ? 0 : width;
      edges.push_back(factory.edge_mlp(name + ".edge_mlp", set, {width, width, latents}, order));
    }
    // PhysicsNeMo's node MLP takes the aggregate first, DeepMind's the node.
    std::vector<size_t> node_order;
    if (edge_first) {
      for (size_t i = 1; i <= sets; ++i) node_order.push_back(i);
      node_order.push_back(0);
    }
    nodes.push_back(
        factory.make(name + ".node_mlp", std::vector<int64_t>(sets + 1, width), node_order, width, o.norm));
  }

  Values operator()(Tape& tape, const ParameterSet& parameters, const GraphBatch& batch,
                    const Values& before) const {
    check_batch(batch, before, edges.size());
    const Variable& latents = before.front();
    // Of a part of a mesh, ghosts are only senders.
    Variable senders = latents;
    std::shared_ptr<HaloRound> round;
    if (batch.halo != nullptr) {
      round = std::make_shared<HaloRound>(*batch.halo);
      senders = ops::halo_exchange(tape, latents, round);
    }
    Values inputs{latents};
    Values after{Variable()};
    for (size_t set = 0; set < edges.size(); ++set) {
      const EdgeUpdate update = update_edges(tape, parameters, batch.edge_sets[set].graph, edges[set],
                                             senders, before[set + 1], set == 0 ? round : nullptr);
      after.push_back(update.edges);
      inputs.push_back(update.aggregate);
    }
    const bool next_reads_these = tape.stage_follows() && batch.halo == nullptr && next_edges->has_value();
    after.front() = nodes.front().forward(tape, parameters, inputs, latents, options.path,
                                          options.keep_hidden, next_reads_these ? &**next_edges : nullptr);
    return after;
  }

 private:
  EdgeUpdate update_edges(Tape& tape, const ParameterSet& parameters, const Graph& graph, const Mlp& mlp,
                          const Variable& latents, const Variable& own,
                          const std::shared_ptr<HaloRound>& round) const {
    const bool after = options.aggregate == AggregateOrder::after_residual;
    const bool fused = options.path == ComputePath::fused;
    if (fused && options.reduce == EdgeReduce::sum) {
      return ops::edge_update(tape, graph, latents, own, mlp.parameters(parameters),
                              {.aggregate_after_residual = after,
                               .keep_hidden = options.keep_hidden,
                               .edges_out_needed = edges_needed,
                               .round = round});
    }
    if (fused)
      tape.runtime().log_once(LogLevel::info, "edge update runs op by op, not as a fused kernel: a " +
                                                  std::string(name_of(options.reduce)) +
                                                  " of edges needs each of them");
    if (round != nullptr) round->finish();
    const ConcatPart calls[] = {{latents, ConcatPart::Rows::sender},
                                {latents, ConcatPart::Rows::receiver},
                                {own, ConcatPart::Rows::own}};
    PerInput<ConcatPart> parts;
    const bool have_latents = own.value().width() > 0;
    for (const size_t input : mlp.file_order())
      if (calls[input].rows != ConcatPart::Rows::own || have_latents) parts.push_back(calls[input]);
    const Variable y = mlp.forward_concatenated(tape, parameters, ops::concat(tape, parts, &graph));
    const Variable edges_out = have_latents ? ops::add(tape, own, y) : y;
    const Variable& reduced = after ? edges_out : y;
    if (options.reduce != EdgeReduce::sum)
      return {edges_out, ops::edge_pool(tape, reduced, graph, options.reduce)};
    return {edges_out, ops::segment_sum(tape, reduced, graph)};
  }
};

Variable pool_nodes(Tape& tape, const Variable& nodes, const GraphBatch& batch, GraphPool pool) {
  if (!batch.graph_starts.defined())
    throw invalid_argument("MeshGraphNet: batch", "graph_starts, to pool the nodes of each graph", "none");
  return ops::graph_pool(tape, nodes, batch.graph_starts, pool);
}

/// Nodes of a graph exchange what they know through slices.
struct SliceStage {
  SliceLayer layer;

  Values operator()(Tape& tape, const ParameterSet& parameters, const GraphBatch& batch,
                    const Values& before) const {
    if (batch.halo != nullptr || !batch.graph_starts.defined())
      throw invalid_argument("MeshGraphNet: batch", "whole graphs with graph_starts, for slices",
                             batch.halo != nullptr ? "a part of a mesh" : "none");
    Values after = before;
    after.front() = layer(tape, parameters, batch.graph_starts, before.front());
    return after;
  }
};

/// The nodes' values become one row a graph.
struct Pool {
  GraphPool pool;

  Values operator()(Tape& tape, const ParameterSet&, const GraphBatch& batch, const Values& before) const {
    Values after{pool_nodes(tape, before.front(), batch, pool)};
    while (after.size() < before.size()) after.push_back({});
    return after;
  }
};

/// Without outputs of nodes, a prediction with rows of no columns.
struct Decoder {
  MeshGraphNetOptions options;
  std::optional<Mlp> nodes, graphs;

  Values operator()(Tape& tape, const ParameterSet& parameters, const GraphBatch& batch,
                    const Values& before) const {
    check_batch(batch, before, batch.edge_sets.size());
    const auto decode = [&](const Mlp& decoder, const Variable& latents) {
      return decoder.forward(tape, parameters, {latents}, {}, options.path, options.keep_hidden);
    };
    const Variable& latents = before.front();
    Values after{nodes ? decode(*nodes, latents) : no_columns(tape, latents)};
    if (graphs) after.push_back(decode(*graphs, pool_nodes(tape, latents, batch, options.graph_pool)));
    while (after.size() < before.size()) after.push_back({});
    return after;
  }

 private:
  static Variable no_columns(const Tape& tape, const Variable& like) {
    const Shape shape{like.rows().capacity, 0};
    return tape.input(Tensor::empty(tape.runtime(), shape, like.slot().dtype(), tape.tag(), "prediction"),
                      like.rows());
  }
};

}  // namespace

std::string parameter_conventions(const MeshGraphNetOptions& options) {
  const bool edge_first = options.concat_order == ConcatOrder::edge_sender_receiver;
  const bool after = options.aggregate == AggregateOrder::after_residual;
  std::string text = "concat_order ";
  text.append(edge_first ? "edge_sender_receiver" : "sender_receiver_edge").append(", aggregate ");
  text.append(after ? "after_residual" : "before_residual").append(", activation ");
  text.append(name_of(options.activation)).append(", norm ").append(name_of(options.norm));
  // Files of earlier versions do not name the sum.
  if (options.reduce != EdgeReduce::sum) text.append(", reduce ").append(name_of(options.reduce));
  return text;
}

Model make_mesh_graph_net(const MeshGraphNetOptions& options, const ModelSizes& sizes) {
  check_options(options, sizes);
  check_slices(options, sizes);
  Model model;
  model.parameters.set_conventions(parameter_conventions(options));
  const MlpFactory factory(model.parameters, options, sizes);
  const auto add = [&](const std::string& name, bool repeated, const auto& make) {
    const int64_t first_weight = model.parameters.arena_elements();
    model.stages.push_back({name, repeated, make(), first_weight});
  };
  add_embedding(model, sizes);
  add("encoder", false, [&] { return Encoder(factory, options, sizes); });
  std::shared_ptr<std::optional<Mlp>> next_edges;  // of the block before
  for (int64_t b = 0; b < options.blocks; ++b) {
    add("processor." + std::to_string(b), true, [&] {
      MessagePassingBlock block(factory, options, sizes, b);
      const bool fused = block.edges.size() == 1 && options.reduce == EdgeReduce::sum;
      if (next_edges != nullptr && fused) *next_edges = block.edges.front();
      next_edges = block.next_edges;
      return block;
    });
    if (options.slices == 0 || (b + 1) % options.slices_every != 0 || b + 1 == options.blocks) continue;
    const std::string name = "slices." + std::to_string(b);
    add(name, true, [&] {
      return SliceStage{SliceLayer(model.parameters, name,
                                   {.width = options.width,
                                    .heads = options.slice_heads,
                                    .slices = options.slices,
                                    .norm = options.norm})};
    });
    next_edges = nullptr;  // the next block reads other nodes than this one's
  }
  if (sizes.pool) add("pool", false, [&] { return Pool{*sizes.pool}; });
  add("decoder", false, [&] {
    const auto decoder = [&](const char* name, int64_t outputs) {
      return factory.make(name, {options.width}, {}, outputs, Norm::none);
    };
    Decoder made{options, {}, {}};
    if (sizes.outputs > 0) made.nodes = decoder("node_decoder", sizes.outputs);
    if (sizes.graph_outputs > 0) made.graphs = decoder("graph_decoder", sizes.graph_outputs);
    return made;
  });
  return model;
}

}  // namespace meshgrad
