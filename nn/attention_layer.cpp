// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/nn/attention_layer.h>

namespace meshgrad {
namespace {

Weight weight_of(const ParameterSet& set, std::optional<size_t> index) {
  return index ? set.weight(*index) : Weight{};
}

}  // namespace

DropoutKey Dropouts::Place::key(const Tape& tape, const GraphBatch& batch) const {
  if (rate == 0.0 || !tape.training()) return {};
  if (!batch.node_keys.defined())
    throw invalid_argument("AttentionLayer: batch", "node_keys for dropout on a tape that trains", "none");
  return {.op = op, .rate = rate, .row_keys = batch.node_keys};
}

AttentionLayer::AttentionLayer(ParameterSet& parameters, const AttentionShape& shape,
                               const GatOptions& options, Dropouts& dropouts)
    : shape_(shape),
      score_(options.score),
      self_edges_(options.self_edges),
      inputs_(dropouts.next(options.dropout)),
      alphas_(dropouts.next(options.attention_dropout)) {
  const int64_t in = shape.in, all = shape.all_heads();
  const auto add = [&](const std::string& what, const Shape& of, Initial initial, int64_t fans) {
    return parameters.add(shape.name + "." + what, of, initial, fans);
  };
  const auto matrix = [&](const std::string& what, int64_t rows, int64_t width) {
    return add(what + ".weight", {rows, width}, Initial::glorot, rows + width);
  };
  const auto vector = [&](const std::string& what) {  // of each head
    return add(what, {all}, Initial::glorot, shape.heads + shape.width);
  };
  values_ = matrix("values", in, all);
  if (score_ == AttentionScore::gatv2) {
    values_bias_ = add("values.bias", {all}, Initial::zero, 1);
    queries_ = matrix("queries", in, all);
    queries_bias_ = add("queries.bias", {all}, Initial::zero, 1);
    weight_ = vector("score");
  } else {
    sender_score_ = vector("sender_score");
    receiver_score_ = vector("receiver_score");
  }
  if (shape.edge_inputs > 0) edges_ = matrix("edge_scores", shape.edge_inputs, shape.heads);
  bias_ = add("bias", {shape.out()}, Initial::zero, 1);
}

Variable AttentionLayer::operator()(Tape& tape, const ParameterSet& set, const GraphBatch& batch,
                                    const Variable& nodes, const Variable& edges) const {
  const Variable x = ops::dropout(tape, nodes, inputs_.key(tape, batch));
  AttentionInputs in;
  in.score = score_;
  in.heads = shape_.heads;
  in.self_edges = self_edges_;
  in.values = ops::linear(tape, x, set.weight(values_), weight_of(set, values_bias_));
  in.dropout = alphas_.key(tape, batch);
  if (score_ == AttentionScore::gatv2) {
    in.queries = ops::linear(tape, x, set.weight(queries_), set.weight(queries_bias_));
    in.weight = set.weight(weight_);
  } else {
    const auto scores = [&](size_t weight) {
      return ops::head_scores(tape, in.values, set.weight(weight), shape_.heads);
    };
    in.sender_scores = scores(sender_score_);
    in.receiver_scores = scores(receiver_score_);
  }
  if (edges_) in.edge_scores = ops::linear(tape, edges, set.weight(*edges_), {});
  Variable y = ops::edge_attention(tape, batch.edge_sets[0].graph, in);
  if (!shape_.concatenate) y = ops::mean_of_heads(tape, y, shape_.heads);
  return ops::add_bias(tape, y, set.weight(bias_));
}

}  // namespace meshgrad
