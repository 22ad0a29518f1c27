// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/embedding.h>
#include <meshgrad/nn/gat.h>
#include <meshgrad/nn/mlp.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace meshgrad {
namespace {

// Between stages are the last layer's nodes, the edges' features, and the layers before.
static_assert(kMostGatBlocksSideBySide - 1 + 2 <= kMaxMlpInputs);

void check_options(const GatOptions& o, const ModelSizes& sizes) {
  const auto need = [](const std::string& what, bool fits, const std::string& needed,
                       const std::string& got) {
    if (!fits) throw invalid_argument("Gat: " + what, needed, got);
  };
  const auto at_least = [&](const std::string& what, int64_t value, int64_t least) {
    need(what, value >= least, std::to_string(least) + " or more", std::to_string(value));
  };
  at_least("node_inputs", node_columns(sizes), 1);
  at_least("outputs", sizes.outputs, 1);
  at_least("width", o.width, 1);
  at_least("heads", o.heads, 1);
  at_least("output_heads", o.output_heads, 1);
  at_least("blocks", o.blocks, o.decoder == GatDecoder::attention ? 0 : 1);
  at_least("hidden_layers", o.hidden_layers, 0);
  need("hidden_layers", o.hidden_layers < kMaxMlpLayers, "at most 7", std::to_string(o.hidden_layers));
  need("heads", std::max(o.heads, o.output_heads) <= kMaxHeads, "at most " + std::to_string(kMaxHeads),
       std::to_string(std::max(o.heads, o.output_heads)));
  need("edge sets", sizes.edge_inputs.size() == 1, "one", std::to_string(sizes.edge_inputs.size()));
  need("score", o.score != AttentionScore::dot, "gat or gatv2", "dot");
  const bool reads_edges = o.edge_features && sizes.edge_inputs.front() > 0;
  need("edge_features", !reads_edges || o.score == AttentionScore::gat, "false with the score gatv2", "true");
  const bool attends = o.decoder == GatDecoder::attention;
  need("decoder", !attends || o.jumping == Jumping::none, "an MLP with jumping", "attention");
  need("decoder", !attends || !sizes.pool, "an MLP where nodes are pooled", "attention");
  need("graph_outputs", sizes.graph_outputs == 0, "0", std::to_string(sizes.graph_outputs));
  need("sizes", !sizes.pool || sizes.graph_starts, "graph_starts where nodes are pooled", "false");
  need("blocks", o.jumping != Jumping::concatenate || o.blocks <= kMostGatBlocksSideBySide,
       "at most " + std::to_string(kMostGatBlocksSideBySide) + " with jumping", std::to_string(o.blocks));
  for (const double rate : {o.dropout, o.attention_dropout})
    need("dropout", rate >= 0.0 && rate < 1.0, "a rate in [0, 1)", std::to_string(rate));
}

/// Numbers the dropouts of a model.
class Dropouts {
 public:
  /// Of one that is inactive unless the tape trains.
  struct Place {
    uint32_t op = 0;
    double rate = 0.0;

    DropoutKey key(const Tape& tape, const GraphBatch& batch) const {
      if (rate == 0.0 || !tape.training()) return {};
      if (!batch.node_keys.defined())
        throw invalid_argument("Gat: batch", "node_keys for dropout on a tape that trains", "none");
      return {.op = op, .rate = rate, .row_keys = batch.node_keys};
    }
  };
  Place next(double rate) { return {.op = count_++, .rate = rate}; }

 private:
  uint32_t count_ = 0;
};

/// What an attention layer is made of, beside the options that all layers share.
struct LayerShape {
  std::string name;
  int64_t in = 0;
  int64_t heads = 1;
  int64_t width = 0;  // of a head
  bool concatenate = true;
  int64_t edge_inputs = 0;  // 0: none are read

  int64_t all_heads() const { return heads * width; }
  int64_t out() const { return concatenate ? all_heads() : width; }
};

/// Without an activation.
class AttentionLayer {
 public:
  AttentionLayer(ParameterSet& parameters, const LayerShape& shape, const GatOptions& options,
                 Dropouts& dropouts)
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

  Variable operator()(Tape& tape, const ParameterSet& set, const GraphBatch& batch, const Variable& nodes,
                      const Variable& edges) const {
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

 private:
  static Weight weight_of(const ParameterSet& set, std::optional<size_t> index) {
    return index ? set.weight(*index) : Weight{};
  }

  LayerShape shape_;
  AttentionScore score_;
  bool self_edges_;
  Dropouts::Place inputs_, alphas_;
  size_t values_ = 0, queries_ = 0, queries_bias_ = 0, weight_ = 0;
  size_t sender_score_ = 0, receiver_score_ = 0, bias_ = 0;
  std::optional<size_t> values_bias_, edges_;
};

/// What the decoder reads of all layers, in their order, from the values between two stages: the last layer's
/// nodes, the edges' features, and with jumping the layers before, or their maximum.
PerInput<Variable> layers_read(Tape& tape, Jumping jumping, const Values& values) {
  PerInput<Variable> read;
  for (size_t i = 2; i < values.size(); ++i) read.push_back(values[i]);
  read.push_back(values[0]);
  if (jumping == Jumping::max && read.size() == 2) return {ops::maximum(tape, read[0], read[1])};
  return read;
}

struct GatLayer {
  AttentionLayer attention;
  Activation activation;
  Jumping jumping;
  bool first;

  Values operator()(Tape& tape, const ParameterSet& set, const GraphBatch& batch,
                    const Values& before) const {
    only_edge_set("Gat", batch);
    const Variable y = attention(tape, set, batch, before[0], before[1]);
    Values after{ops::activation(tape, y, activation), before[1]};
    if (jumping == Jumping::none || first) return after;
    for (const Variable& layer : layers_read(tape, jumping, before)) after.push_back(layer);
    return after;
  }
};

/// Of each value that the decoder reads; no others follow.
struct GatPool {
  GraphPool pool;
  Jumping jumping;

  Values operator()(Tape& tape, const ParameterSet&, const GraphBatch& batch, const Values& before) const {
    if (!batch.graph_starts.defined())
      throw invalid_argument("Gat: batch", "graph_starts, to pool the nodes of each graph", "none");
    Values after;
    for (const Variable& layer : layers_read(tape, jumping, before))
      after.push_back(ops::graph_pool(tape, layer, batch.graph_starts, pool));
    return after;
  }
};

struct MlpDecoder {
  Mlp mlp;
  ComputePath path;
  bool keep_hidden;
  bool pooled;
  Jumping jumping;

  Values operator()(Tape& tape, const ParameterSet& set, const GraphBatch& batch,
                    const Values& before) const {
    only_edge_set("Gat", batch);
    const PerInput<Variable> inputs = pooled ? before : layers_read(tape, jumping, before);
    return {mlp.forward(tape, set, inputs, {}, path, keep_hidden)};
  }
};

struct AttentionDecoder {
  AttentionLayer attention;

  Values operator()(Tape& tape, const ParameterSet& set, const GraphBatch& batch,
                    const Values& before) const {
    only_edge_set("Gat", batch);
    return {attention(tape, set, batch, before[0], before[1])};
  }
};

}  // namespace

std::string parameter_conventions(const GatOptions& o) {
  const auto yes = [](bool value) { return value ? " true" : " false"; };
  constexpr std::string_view kJumping[] = {"none", "concatenate", "max"};
  std::string text = "gat, score ";
  text.append(o.score == AttentionScore::gat ? "gat" : "gatv2")
      .append(", self_edges")
      .append(yes(o.self_edges));
  text.append(", concatenate").append(yes(o.concatenate)).append(", heads ").append(std::to_string(o.heads));
  text.append(", jumping ").append(kJumping[static_cast<int>(o.jumping)]);
  return text.append(", activation ").append(name_of(o.activation));
}

Model make_gat(const GatOptions& options, const ModelSizes& sizes) {
  check_options(options, sizes);
  Model model;
  model.parameters.set_conventions(parameter_conventions(options));
  Dropouts dropouts;
  const auto add = [&](const std::string& name, bool repeated, const auto& make) {
    const int64_t first_weight = model.parameters.arena_elements();
    model.stages.push_back({name, repeated, make(), first_weight});
  };
  LayerShape shape{.name = {},
                   .in = node_columns(sizes),
                   .heads = options.heads,
                   .width = options.width,
                   .concatenate = options.concatenate,
                   .edge_inputs = options.edge_features ? sizes.edge_inputs.front() : 0};
  add_embedding(model, sizes);
  std::vector<int64_t> read;  // widths that an MLP decoder reads
  for (int64_t block = 0; block < options.blocks; ++block) {
    shape.name = "layer." + std::to_string(block);
    add(shape.name, true, [&] {
      return GatLayer{AttentionLayer(model.parameters, shape, options, dropouts), options.activation,
                      options.jumping, block == 0};
    });
    shape.in = shape.out();
    if (options.jumping == Jumping::concatenate || block + 1 == options.blocks) read.push_back(shape.in);
  }
  if (sizes.pool) add("pool", false, [&] { return GatPool{*sizes.pool, options.jumping}; });
  add("decoder", false, [&]() -> decltype(Stage::run) {
    if (options.decoder == GatDecoder::attention) {
      shape.name = "decoder";
      shape.heads = options.output_heads;
      shape.width = sizes.outputs;
      shape.concatenate = false;
      return AttentionDecoder{AttentionLayer(model.parameters, shape, options, dropouts)};
    }
    return MlpDecoder{Mlp(model.parameters, "decoder",
                          {.inputs = read,
                           .file_order = {},
                           .hidden = shape.in,
                           .out = sizes.outputs,
                           .hidden_layers = options.hidden_layers,
                           .activation = options.activation,
                           .norm = Norm::none}),
                      options.path, options.keep_hidden, sizes.pool.has_value(), options.jumping};
  });
  return model;
}

}  // namespace meshgrad
