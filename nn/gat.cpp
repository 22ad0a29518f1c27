// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/attention_layer.h>
#include <meshgrad/nn/embedding.h>
#include <meshgrad/nn/gat.h>
#include <meshgrad/nn/mlp.h>

#include <algorithm>
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
  AttentionShape shape{.name = {},
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
