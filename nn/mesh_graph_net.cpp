// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/nn/mesh_graph_net.h>

namespace meshgrad {
namespace {

void check_options(const MeshGraphNetOptions& o) {
  const auto need = [](std::string_view key, int64_t value, int64_t least) {
    if (value < least) {
      throw invalid_argument("MeshGraphNet: " + std::string(key), std::to_string(least) + " or more",
                             std::to_string(value));
    }
  };
  need("node_inputs", o.node_inputs, 1);
  need("outputs", o.outputs, 1);
  need("width", o.width, 1);
  need("blocks", o.blocks, 0);
  need("hidden_layers", o.hidden_layers, 0);
  need("edge sets", static_cast<int64_t>(o.edge_inputs.size()), 1);
  for (const int64_t inputs : o.edge_inputs) need("edge_inputs", inputs, 1);
  if (o.hidden_layers + 1 > kMaxMlpLayers || o.edge_inputs.size() + 1 > kMaxMlpInputs) {
    throw invalid_argument("MeshGraphNet", "at most 7 hidden layers and 7 edge sets",
                           std::to_string(o.hidden_layers) + " and " + std::to_string(o.edge_inputs.size()));
  }
  if (o.edge_set_names.size() != o.edge_inputs.size()) {
    throw invalid_argument("MeshGraphNet", "a name for each edge set",
                           std::to_string(o.edge_set_names.size()));
  }
}

}  // namespace

MeshGraphNet::MeshGraphNet(const MeshGraphNetOptions& options) : options_(options) {
  check_options(options);
  const size_t sets = options.edge_inputs.size();
  const auto suffix = [&](size_t set) {
    return sets > 1 ? "." + options.edge_set_names[set] : std::string();
  };
  const auto make = [&](const std::string& name, std::vector<int64_t> inputs, std::vector<size_t> order,
                        int64_t out, Norm norm) {
    return Mlp(parameters_, name,
               {.inputs = std::move(inputs),
                .file_order = std::move(order),
                .hidden = options.width,
                .out = out,
                .hidden_layers = options.hidden_layers,
                .activation = options.activation,
                .norm = norm});
  };
  const int64_t width = options.width;
  node_encoder_.push_back(make("node_encoder", {options.node_inputs}, {}, width, options.norm));
  for (size_t set = 0; set < sets; ++set) {
    edge_encoders_.push_back(
        make("edge_encoder" + suffix(set), {options.edge_inputs[set]}, {}, width, options.norm));
  }
  // Calls pass {sender, receiver, edge}; PhysicsNeMo's files hold {edge, sender, receiver}.
  const std::vector<size_t> order = options.concat_order == ConcatOrder::sender_receiver_edge
                                        ? std::vector<size_t>{0, 1, 2}
                                        : std::vector<size_t>{2, 0, 1};
  for (int64_t b = 0; b < options.blocks; ++b) {
    const std::string name = "processor." + std::to_string(b);
    std::vector<Mlp> edges;
    for (size_t set = 0; set < sets; ++set) {
      edges.push_back(
          make(name + ".edge_mlp" + suffix(set), {width, width, width}, order, width, options.norm));
    }
    // PhysicsNeMo's node MLP takes the aggregate first, DeepMind's the node.
    std::vector<size_t> node_order;
    if (options.concat_order == ConcatOrder::edge_sender_receiver) {
      for (size_t i = 1; i <= sets; ++i) node_order.push_back(i);
      node_order.push_back(0);
    }
    Mlp nodes =
        make(name + ".node_mlp", std::vector<int64_t>(sets + 1, width), node_order, width, options.norm);
    blocks_.push_back({std::move(edges), std::move(nodes)});
  }
  decoder_.push_back(make("node_decoder", {width}, {}, options.outputs, Norm::none));
}

Variable MeshGraphNet::forward(Tape& tape, const Batch& batch) const {
  std::vector<Variable> edges;
  for (const EdgeSet& set : batch.edge_sets) edges.emplace_back(set.features, false, set.graph.edge_rows());
  return forward(tape, batch, Variable(batch.node_features, false, batch.node_rows()), edges);
}

Variable MeshGraphNet::forward(Tape& tape, const Batch& batch, const Variable& node_features,
                               const std::vector<Variable>& edge_features, LatentTrace* trace) const {
  if (batch.edge_sets.size() != options_.edge_inputs.size() ||
      edge_features.size() != batch.edge_sets.size()) {
    throw invalid_argument("MeshGraphNet", std::to_string(options_.edge_inputs.size()) + " edge sets",
                           std::to_string(batch.edge_sets.size()));
  }
  const auto note = [&](const Variable& nodes, const std::vector<Variable>& edges) {
    if (trace == nullptr) return;
    trace->nodes.push_back(nodes.value());
    trace->edges.resize(edges.size());
    for (size_t set = 0; set < edges.size(); ++set) trace->edges[set].push_back(edges[set].value());
  };
  Variable nodes;
  std::vector<Variable> edges;
  {
    const MemoryScope scope(tape.runtime().allocator(), "encoder");
    nodes =
        node_encoder_[0].forward(tape, parameters_, {node_features}, {}, options_.path, options_.keep_hidden);
    for (size_t set = 0; set < edge_features.size(); ++set) {
      edges.push_back(edge_encoders_[set].forward(tape, parameters_, {edge_features[set]}, {}, options_.path,
                                                  options_.keep_hidden));
    }
  }
  note(nodes, edges);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const MemoryScope scope(tape.runtime().allocator(), "processor." + std::to_string(b));
    nodes = run_block(tape, batch, b, nodes, edges, trace != nullptr || b + 1 < blocks_.size());
    note(nodes, edges);
  }
  const MemoryScope scope(tape.runtime().allocator(), "decoder");
  return decoder_[0].forward(tape, parameters_, {nodes}, {}, options_.path, options_.keep_hidden);
}

Variable MeshGraphNet::run_block(Tape& tape, const Batch& batch, size_t index, const Variable& nodes,
                                 std::vector<Variable>& edges, bool keep_edges) const {
  std::vector<Variable> inputs{nodes};
  for (size_t set = 0; set < edges.size(); ++set) {
    EdgeUpdate update = update_edges(tape, batch.edge_sets[set].graph, blocks_[index].edges[set], nodes,
                                     edges[set], keep_edges);
    edges[set] = update.edges;
    inputs.push_back(update.aggregate);
  }
  return blocks_[index].nodes.forward(tape, parameters_, inputs, nodes, options_.path, options_.keep_hidden);
}

EdgeUpdate MeshGraphNet::update_edges(Tape& tape, const Graph& graph, const Mlp& mlp, const Variable& nodes,
                                      const Variable& edges, bool keep_edges) const {
  const bool after = options_.aggregate == AggregateOrder::after_residual;
  if (options_.path == ComputePath::fused) {
    return edge_update(tape, graph, nodes, edges, mlp.parameters(parameters_),
                       {.aggregate_after_residual = after,
                        .keep_hidden = options_.keep_hidden,
                        .edges_out_needed = keep_edges});
  }
  const ConcatPart calls[] = {
      {nodes, ConcatPart::Rows::sender}, {nodes, ConcatPart::Rows::receiver}, {edges, ConcatPart::Rows::own}};
  std::vector<ConcatPart> parts;
  for (const size_t input : mlp.file_order()) parts.push_back(calls[input]);
  const Variable y = mlp.forward_concatenated(tape, parameters_, concat(tape, parts, &graph));
  const Variable edges_out = add(tape, edges, y);
  return {edges_out, segment_sum(tape, after ? edges_out : y, graph)};
}

}  // namespace meshgrad
