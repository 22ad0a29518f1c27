// SPDX-License-Identifier: Apache-2.0
#include "attention_case.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

namespace meshgrad::test {

std::string AttentionShape::text() const {
  constexpr const char* kNames[] = {"gat", "gatv2", "dot"};
  return fmt::format("{} {} x {}{}{}{} rate {}", kNames[static_cast<int>(score)], heads, dim,
                     self_edges ? " self" : "", edge_scores ? " edge_scores" : "", own_keys ? " keys" : "",
                     rate);
}

const std::vector<AttentionShape>& attention_shapes() {
  using enum AttentionScore;
  static const std::vector<AttentionShape> shapes = {
      {gat, 8, 16},
      {gat, 8, 8, true, false, true, 0.6},
      {gat, 1, 7, true, true},
      {gat, 1, 1, false, true},
      {gat, 16, 4, false, false, true, 0.3},
      {gat, 3, 5, true},
      {gat, 1, 64, true},
      {gat, 2, 260, false, true},
      {gatv2, 8, 16, true, false, false, 0.4},
      {gatv2, 4, 16, false},
      {gatv2, 1, 7, true},
      {gatv2, 5, 33, true, false, false},
      {gatv2, 1, 1, false, false, false},
      {dot, 8, 16, false, true},
      {dot, 4, 32, true, true, true, 0.5},
      {dot, 1, 64, true},
      {dot, 7, 9, false, true, true, 0.2},
      {dot, 16, 1, true, false, false},
      {dot, 2, 260, false, false, false},
  };
  return shapes;
}

AttentionCase::AttentionCase(Runtime& runtime, RandomMatrices& random, const AttentionShape& of,
                             reference::Edges edges, DType type)
    : shape(of), connectivity(std::move(edges)), dtype(type), graph(to_graph(runtime, connectivity)) {
  const DType sums = accumulator_of(dtype);
  const int64_t width = shape.heads * shape.dim;
  const auto stored = [&](int64_t rows, int64_t cols, DType as) {
    return stored_as(as, random.normal(rows, cols));
  };
  ref.score = shape.score;
  ref.heads = shape.heads;
  ref.self_edges = shape.self_edges;
  ref.values = stored(connectivity.nodes, width, dtype);
  inputs = {.graph = &graph, .score = shape.score, .heads = shape.heads, .self_edges = shape.self_edges};
  inputs.values = to_tensor(runtime, ref.values, dtype);
  if (shape.score == AttentionScore::gat) {
    ref.sender_scores = stored(connectivity.nodes, shape.heads, sums);
    ref.receiver_scores = stored(connectivity.owned_nodes, shape.heads, sums);
    inputs.sender_scores = to_tensor(runtime, ref.sender_scores, sums);
    inputs.receiver_scores = to_tensor(runtime, ref.receiver_scores, sums);
  } else {
    if (shape.own_keys) {
      ref.keys = stored(connectivity.nodes, width, dtype);
      inputs.keys = to_tensor(runtime, ref.keys, dtype);
    }
    ref.queries = stored(connectivity.owned_nodes, width, dtype);
    inputs.queries = to_tensor(runtime, ref.queries, dtype);
  }
  if (shape.score == AttentionScore::gatv2) {
    ref.weight = stored_as(sums, random.normal(1, width, 1.0 / std::sqrt(static_cast<double>(shape.dim))));
    inputs.weight = to_vector(runtime, ref.weight, sums);
  }
  if (shape.edge_scores) {
    ref.edge_scores = stored(graph.edges, shape.heads, dtype);
    inputs.edge_scores = to_tensor(runtime, ref.edge_scores, dtype);
  }
  if (shape.rate > 0.0) {
    inputs.dropout = {.seed = random.seed(), .op = 3, .rate = shape.rate};
    ref.keep = [mask = mask_of(inputs.dropout)](int64_t receiver, int64_t column) {
      return keep(mask, receiver, column) ? mask.scale : 0.0;
    };
  }
  d_out = stored(connectivity.owned_nodes, width, dtype);
}

double AttentionCase::flowing() const {
  const double scale = shape.rate > 0.0 ? 1.0 / (1.0 - shape.rate) : 1.0;
  return scale * std::max({magnitude(d_out), 1.0}) * std::max(magnitude(ref.values), 1.0);
}

EdgeAttentionForward AttentionCase::forward(Runtime& runtime) const {
  return {.inputs = inputs,
          .out = unwritten(runtime, {connectivity.owned_nodes, shape.heads * shape.dim}, dtype),
          .log_sums = unwritten(runtime, {connectivity.owned_nodes, shape.heads}, accumulator_of(dtype))};
}

EdgeAttentionBackward AttentionCase::backward(Runtime& runtime, const EdgeAttentionForward& done,
                                              bool accumulate) const {
  const auto like = [&](const Tensor& tensor) {
    if (!tensor.defined()) return Tensor();
    if (!accumulate) return unwritten(runtime, tensor.shape(), tensor.dtype());
    return to_tensor(runtime, Matrix(tensor.rows(), tensor.width(), kGradientStart), tensor.dtype());
  };
  return {.inputs = done.inputs,
          .out = done.out,
          .log_sums = done.log_sums,
          .d_out = to_tensor(runtime, d_out, dtype),
          .d_values = like(inputs.values),
          .accumulate_d_values = accumulate,
          .d_sender_scores = like(inputs.sender_scores),
          .d_receiver_scores = like(inputs.receiver_scores),
          .accumulate_d_sender_scores = accumulate,
          .accumulate_d_receiver_scores = accumulate,
          .d_keys = like(inputs.keys),
          .d_queries = like(inputs.queries),
          .accumulate_d_keys = accumulate,
          .accumulate_d_queries = accumulate,
          .d_weight = inputs.weight.defined()
                          ? to_vector(runtime, Matrix(1, inputs.weight.elements(), kGradientStart),
                                      inputs.weight.dtype())
                          : Tensor(),
          .d_edge_scores = like(inputs.edge_scores),
          .accumulate_d_edge_scores = accumulate};
}

NamedTensors AttentionCase::gradients(const EdgeAttentionBackward& args) {
  return {{"d_values", args.d_values},
          {"d_sender_scores", args.d_sender_scores},
          {"d_receiver_scores", args.d_receiver_scores},
          {"d_keys", args.d_keys},
          {"d_queries", args.d_queries},
          {"d_weight", args.d_weight},
          {"d_edge_scores", args.d_edge_scores}};
}

void check_attention_gradients(const AttentionCase& c, const EdgeAttentionBackward& args, bool accumulate) {
  const auto g = reference::attention_backward(c.ref, c.connectivity, c.d_out);
  const Matrix* const expected[] = {&g.d_values,  &g.d_sender_scores, &g.d_receiver_scores, &g.d_keys,
                                    &g.d_queries, &g.d_weight,        &g.d_edge_scores};
  size_t i = 0;
  for (const auto& [name, tensor] : AttentionCase::gradients(args)) {
    Matrix of = *expected[i++];
    if (!tensor.defined()) continue;
    for (double& value : of.v) value += accumulate || name == "d_weight" ? kGradientStart : 0.0;
    const std::string& gradient = name;
    CAPTURE(gradient);
    CHECK(difference(tensor, of, c.terms(), c.flowing(), c.dtype) == "");
  }
}

}  // namespace meshgrad::test
