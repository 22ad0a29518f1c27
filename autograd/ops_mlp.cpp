// SPDX-License-Identifier: Apache-2.0
// The fused ops: a whole MLP, and the edge half of a message-passing block.
#include <meshgrad/autograd/halo.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/kernels/linear.h>
#include <meshgrad/kernels/message_passing.h>

#include <optional>

namespace meshgrad::ops {
namespace {

/// The values or the gradients of weights.
template <class List>
List tensors_of(const auto& weights, Tensor Weight::*which) {
  List tensors;
  for (const Weight& weight : weights) tensors.push_back(weight.*which);
  return tensors;
}

PerLayer<Tensor> values_of(const PerLayer<Weight>& weights) {
  return tensors_of<PerLayer<Tensor>>(weights, &Weight::value);
}

PerLayer<Tensor> gradients_of(const PerLayer<Weight>& weights) {
  return tensors_of<PerLayer<Tensor>>(weights, &Weight::gradient);
}

MlpWeights weights_of(const MlpParameters& p) {
  return {.first_bias = p.first_bias.value,
          .weights = values_of(p.weights),
          .biases = values_of(p.biases),
          .activation = p.activation,
          .norm = p.norm,
          .gain = p.gain.value,
          .norm_bias = p.norm_bias.value,
          .epsilon = p.epsilon};
}

MlpWeightGradients weight_gradients_of(const MlpParameters& p) {
  return {.first_bias = p.first_bias.gradient,
          .weights = gradients_of(p.weights),
          .biases = gradients_of(p.biases),
          .gain = p.gain.gradient,
          .norm_bias = p.norm_bias.gradient};
}

/// Allocates the activations that backward reads.
MlpSaved saved_for(const Tape& tape, const MlpParameters& p, int64_t rows, DType dtype) {
  MlpSaved saved;
  const auto empty = [&](int64_t width) {
    return Tensor::empty(tape.runtime(), Shape{rows, width}, dtype, tape.tag(), "hidden");
  };
  int64_t width = p.first.front().value.width();
  for (const Weight& weight : p.weights) {
    saved.pre_activations.push_back(empty(width));
    width = weight.value.width();
  }
  if (p.norm != Norm::none) saved.pre_norm = empty(width);
  return saved;
}

int64_t out_width(const MlpParameters& p) {
  return p.weights.empty() ? p.first.front().value.width() : p.weights.back().value.width();
}

struct MlpSavedForBackward {
  PerInput<Variable> inputs;
  MlpParameters parameters;
  GradientSlot residual;
  MlpSaved saved;
  GradientSlot out;

  void backward(Tape& tape) const {
    const Tensor d_out = tape.take_gradient(out);
    if (!d_out.defined()) return;
    // The residual's slot may take d_out itself; an input that is the residual then accumulates in place.
    if (residual) tape.add_gradient(residual, d_out);
    MlpBackward args{.rows = out.rows(),
                     .inputs = {},
                     .weights = weights_of(parameters),
                     .saved = saved,
                     .d_out = d_out,
                     .d_inputs = {},
                     .accumulate = {},
                     .d_first_weights = tensors_of<PerInput<Tensor>>(parameters.first, &Weight::gradient),
                     .d_weights = weight_gradients_of(parameters)};
    for (size_t i = 0; i < inputs.size(); ++i) {
      args.inputs.push_back({inputs[i].value(), parameters.first[i].value});
      const GradientTarget target = tape.gradient_for(inputs[i].slot());
      args.d_inputs.push_back(target.tensor);
      args.accumulate.push_back(target.accumulate);
    }
    kernels::mlp_backward(args, tape.runtime(), tape.stream());
  }
};

struct EdgeUpdateSaved {
  const Graph* graph;
  Variable nodes, edges;
  MlpParameters parameters;
  EdgeUpdateOptions options;
  MlpSaved saved;
  GradientSlot edges_out, aggregate;

  void backward(Tape& tape) const;
};

bool have_values(const Variable& edges) { return edges.value().width() > 0; }

void EdgeUpdateSaved::backward(Tape& tape) const {
  const Tensor d_edges_out = edges_out ? tape.take_gradient(edges_out) : Tensor();
  Tensor d_aggregate = tape.take_gradient(aggregate);
  if (!d_edges_out.defined() && !d_aggregate.defined()) return;
  const DType dtype = aggregate.dtype();
  if (!d_aggregate.defined()) {
    d_aggregate = tape.scratch(aggregate.shape(), dtype, "no gradient");
    fill_zero(d_aggregate, tape.stream());
  }
  const Shape edge_shape = edges.value().shape();
  const GradientTarget d_nodes = tape.gradient_for(nodes.slot());
  EdgeUpdateBackward args{.graph = graph,
                          .terms = {nodes.value(), parameters.first[0].value, parameters.first[1].value},
                          .edges = {edges.value(), parameters.first[2].value},
                          .weights = weights_of(parameters),
                          .residual = have_values(edges),
                          .aggregate_after_residual = options.aggregate_after_residual,
                          .saved = saved,
                          .d_edges_out = d_edges_out,
                          .d_aggregate = d_aggregate,
                          .d_edges = {},
                          .d_nodes = d_nodes.tensor,
                          .accumulate_d_nodes = d_nodes.accumulate,
                          .d_sender_weight = parameters.first[0].gradient,
                          .d_receiver_weight = parameters.first[1].gradient,
                          .d_edge_weight = parameters.first[2].gradient,
                          .d_weights = weight_gradients_of(parameters)};
  std::optional<GhostExchange> ghosts;
  if (options.round != nullptr && d_nodes.tensor.defined()) ghosts = options.round->overlapped(*graph);
  if (ghosts) {
    const Tensor d_ghosts = d_nodes.tensor.row_range(graph->owned_nodes, graph->nodes);
    ghosts->call = [&tape, d_ghosts, this] { options.round->start_backward(tape, d_ghosts); };
    args.ghosts = &*ghosts;
  }
  const bool reaches_edges = edges.needs_gradient() && have_values(edges);
  if (reaches_edges) {
    // In place of the new edges' gradient, if there is one: then the residual's share needs no copy.
    args.d_edges = d_edges_out.defined()
                       ? d_edges_out
                       : Tensor::empty(tape.runtime(), edge_shape, dtype, Tag::activations, "gradient");
  }
  kernels::edge_update_backward(args, tape.runtime(), tape.stream());
  if (reaches_edges) tape.add_gradient(edges.slot(), args.d_edges);
}

}  // namespace

Variable mlp(Tape& tape, const PerInput<Variable>& inputs, const MlpParameters& parameters,
             const Variable& residual, bool keep_hidden, const MlpParameters* next_edges) {
  if (inputs.empty() || inputs.size() != parameters.first.size()) {
    throw invalid_argument("mlp", std::to_string(parameters.first.size()) + " inputs",
                           std::to_string(inputs.size()));
  }
  const Rows rows = inputs.front().rows();
  const DType dtype = inputs.front().value().dtype();
  MlpForward args{.rows = rows,
                  .inputs = {},
                  .weights = weights_of(parameters),
                  .residual = residual ? residual.value() : Tensor(),
                  .out = {},
                  .saved = {}};
  NodeTermsAhead ahead;
  if (next_edges != nullptr) {
    ahead = {next_edges->first[0].value, next_edges->first[1].value, {}, {}, {}};
    args.node_terms = &ahead;
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    args.inputs.push_back({inputs[i].value(), parameters.first[i].value});
  const Variable out = tape.output(rows, out_width(parameters), dtype, true, "mlp");
  args.out = out.value();
  if (tape.runs()) {
    if (tape.recording() && keep_hidden && kernels::saves_hidden(args))
      args.saved = saved_for(tape, parameters, rows.capacity, dtype);
    kernels::mlp_forward(args, tape.runtime(), tape.stream());
  }
  InlineVector<Variable, kMaxMlpInputs + 1> read{residual};
  for (const Variable& input : inputs) read.push_back(input);
  tape.record({.op = "mlp", .inputs = read, .backward_reads_inputs = true, .matmul = true},
              [saved = MlpSavedForBackward{inputs, parameters, residual.slot(), args.saved, out.slot()}](
                  Tape& back) { saved.backward(back); });
  if (ahead.sender.defined())
    tape.leave_for_next(out, std::make_shared<const NodeTermsAhead>(std::move(ahead)));
  return out;
}

EdgeUpdate edge_update(Tape& tape, const Graph& graph, const Variable& nodes, const Variable& edges,
                       const MlpParameters& parameters, const EdgeUpdateOptions& options) {
  if (parameters.first.size() != 3) {
    throw invalid_argument("edge_update", "row ranges for sender, receiver and edge",
                           std::to_string(parameters.first.size()));
  }
  const DType dtype = edges.value().dtype();
  const int64_t width = out_width(parameters);
  EdgeUpdate result;
  if (options.edges_out_needed) result.edges = tape.output(graph.edge_rows(), width, dtype, true, "edges");
  result.aggregate = tape.output(graph.owned_rows(), width, dtype, true, "aggregate");
  EdgeUpdateForward args{.graph = &graph,
                         .terms = {nodes.value(), parameters.first[0].value, parameters.first[1].value},
                         .edges = {edges.value(), parameters.first[2].value},
                         .weights = weights_of(parameters),
                         .residual = have_values(edges),
                         .aggregate_after_residual = options.aggregate_after_residual,
                         .edges_out = result.edges ? result.edges.value() : Tensor(),
                         .aggregate = result.aggregate.value(),
                         .saved = {}};
  const std::shared_ptr<const NodeTermsAhead> made = tape.take_from_last(nodes);
  args.node_terms = made.get();
  if (tape.runs()) {
    if (!args.aggregate.defined()) args.aggregate = tape.scratch(args.aggregate.shape(), dtype, "unused");
    if (tape.recording() && options.keep_hidden && kernels::saves_hidden(args))
      args.saved = saved_for(tape, parameters, graph.edges, dtype);
    std::optional<GhostExchange> ghosts;
    if (options.round != nullptr && options.round->pending()) {
      ghosts = options.round->overlapped(graph);
      if (!ghosts) options.round->finish();
    }
    if (ghosts) {
      ghosts->call = [&] { options.round->finish(); };
      args.ghosts = &*ghosts;
    }
    kernels::edge_update_forward(args, tape.runtime(), tape.stream());
  }
  if (options.round != nullptr) options.round->finish();  // a recomputation may need only the nodes
  const Variable read[] = {nodes, edges};
  tape.record(
      {.op = "edge_update", .inputs = read, .backward_reads_inputs = true, .matmul = true},
      [saved = EdgeUpdateSaved{&graph, nodes, edges, parameters, options, args.saved, result.edges.slot(),
                               result.aggregate.slot()}](Tape& back) { saved.backward(back); });
  return result;
}

}  // namespace meshgrad::ops
