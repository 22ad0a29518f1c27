// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/caching_allocator.h>
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

std::string MeshGraphNet::stage_name(int64_t stage) const {
  if (stage == 0) return "encoder";
  return stage <= options_.blocks ? "processor." + std::to_string(stage - 1) : "decoder";
}

PerInput<Variable> MeshGraphNet::inputs(const Tape& tape, const Batch& batch) const {
  PerInput<Variable> features{tape.input(batch.node_features, batch.node_rows())};
  for (const EdgeSet& set : batch.edge_sets)
    features.push_back(tape.input(set.features, set.graph.edge_rows()));
  return features;
}

void MeshGraphNet::check_recomputed(const std::vector<RecomputedStages>& recomputed) const {
  int64_t done = 0;
  for (const RecomputedStages& segment : recomputed) {
    if (segment.begin < done || segment.end <= segment.begin || segment.end > stages()) {
      throw invalid_argument("MeshGraphNet: recomputed stages",
                             "segments in order within 0.." + std::to_string(stages()),
                             std::to_string(segment.begin) + ".." + std::to_string(segment.end));
    }
    done = segment.end;
  }
}

Variable MeshGraphNet::forward(Tape& tape, const Batch& batch,
                               const std::vector<RecomputedStages>& recomputed, const Variable& nodes) const {
  check_recomputed(recomputed);
  PerInput<Variable> values = inputs(tape, batch);
  if (nodes) values.front() = nodes;
  int64_t stage = 0;
  for (const RecomputedStages& segment : recomputed) {
    for (; stage < segment.begin; ++stage) values = run_stage(tape, batch, stage, values);
    std::string name = stage_name(segment.begin);
    if (segment.end - segment.begin > 1) name.append("..").append(stage_name(segment.end - 1));
    values = checkpoint(
        tape, name,
        [this, &batch, segment](Tape& inner, Variables inside) {
          for (int64_t s = segment.begin; s < segment.end; ++s) inside = run_stage(inner, batch, s, inside);
          return inside;
        },
        values, segment.keep);
    stage = segment.end;
  }
  for (; stage < stages(); ++stage) values = run_stage(tape, batch, stage, values);
  return values.front();
}

Variable MeshGraphNet::forward(Tape& tape, const Batch& batch, const Variable& node_features,
                               const std::vector<Variable>& edge_features, LatentTrace* trace) const {
  PerInput<Variable> values{node_features};
  for (const Variable& edges : edge_features) values.push_back(edges);
  for (int64_t stage = 0; stage < stages(); ++stage) {
    values = run_stage(tape, batch, stage, values, trace != nullptr);
    if (trace == nullptr || stage + 1 == stages()) continue;
    trace->nodes.push_back(values.front().value());
    trace->edges.resize(values.size() - 1);
    for (size_t set = 0; set + 1 < values.size(); ++set) trace->edges[set].push_back(values[set + 1].value());
  }
  return values.front();
}

PerInput<Variable> MeshGraphNet::run_stage(Tape& tape, const Batch& batch, int64_t stage,
                                           const PerInput<Variable>& before, bool keep_last_edges) const {
  if (batch.edge_sets.size() != options_.edge_inputs.size() || before.size() != batch.edge_sets.size() + 1) {
    throw invalid_argument("MeshGraphNet", std::to_string(options_.edge_inputs.size()) + " edge sets",
                           std::to_string(batch.edge_sets.size()));
  }
  const MemoryScope scope(tape.runtime().allocator(), stage_name(stage));
  if (stage == 0) return encode(tape, before);
  if (stage <= options_.blocks) {
    return run_block(tape, batch, static_cast<size_t>(stage - 1), before,
                     keep_last_edges || stage < options_.blocks);
  }
  PerInput<Variable> after{
      decoder_[0].forward(tape, parameters_, {before.front()}, {}, options_.path, options_.keep_hidden)};
  while (after.size() < before.size()) after.push_back({});
  return after;
}

PerInput<Variable> MeshGraphNet::encode(Tape& tape, const PerInput<Variable>& features) const {
  PerInput<Variable> after;
  for (const Variable& feature : features) {
    const Mlp& encoder = after.empty() ? node_encoder_[0] : edge_encoders_[after.size() - 1];
    after.push_back(encoder.forward(tape, parameters_, {feature}, {}, options_.path, options_.keep_hidden));
  }
  return after;
}

PerInput<Variable> MeshGraphNet::run_block(Tape& tape, const Batch& batch, size_t index,
                                           const PerInput<Variable>& before, bool keep_edges) const {
  const Variable& nodes = before.front();
  PerInput<Variable> inputs{nodes};
  PerInput<Variable> after{Variable()};
  for (size_t set = 0; set < batch.edge_sets.size(); ++set) {
    const EdgeUpdate update = update_edges(tape, batch.edge_sets[set].graph, blocks_[index].edges[set], nodes,
                                           before[set + 1], keep_edges);
    after.push_back(update.edges);
    inputs.push_back(update.aggregate);
  }
  after.front() =
      blocks_[index].nodes.forward(tape, parameters_, inputs, nodes, options_.path, options_.keep_hidden);
  return after;
}

EdgeUpdate MeshGraphNet::update_edges(Tape& tape, const Graph& graph, const Mlp& mlp, const Variable& nodes,
                                      const Variable& edges, bool keep_edges) const {
  const bool after = options_.aggregate == AggregateOrder::after_residual;
  if (options_.path == ComputePath::fused) {
    return ops::edge_update(tape, graph, nodes, edges, mlp.parameters(parameters_),
                            {.aggregate_after_residual = after,
                             .keep_hidden = options_.keep_hidden,
                             .edges_out_needed = keep_edges});
  }
  const ConcatPart calls[] = {
      {nodes, ConcatPart::Rows::sender}, {nodes, ConcatPart::Rows::receiver}, {edges, ConcatPart::Rows::own}};
  PerInput<ConcatPart> parts;
  for (const size_t input : mlp.file_order()) parts.push_back(calls[input]);
  const Variable y = mlp.forward_concatenated(tape, parameters_, ops::concat(tape, parts, &graph));
  const Variable edges_out = ops::add(tape, edges, y);
  return {edges_out, ops::segment_sum(tape, after ? edges_out : y, graph)};
}

}  // namespace meshgrad
