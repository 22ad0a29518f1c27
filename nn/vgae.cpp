// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/attention_layer.h>
#include <meshgrad/nn/mlp.h>
#include <meshgrad/nn/vgae.h>

#include <functional>

namespace meshgrad {
namespace {

void check_options(const VgaeOptions& o, const ModelSizes& sizes) {
  const auto need = [](const char* what, bool fits, const std::string& needed, const std::string& got) {
    if (!fits) throw invalid_argument(std::string("Vgae: ") + what, needed, got);
  };
  const auto at_least = [&](const char* what, int64_t value, int64_t least) {
    need(what, value >= least, std::to_string(least) + " or more", std::to_string(value));
  };
  at_least("node_inputs", sizes.node_inputs, 1);
  at_least("outputs", sizes.outputs, 1);
  at_least("width", o.width, 1);
  at_least("blocks", o.blocks, 0);
  at_least("hidden_layers", o.hidden_layers, 0);
  need("hidden_layers", o.hidden_layers < kMaxMlpLayers, "at most 7", std::to_string(o.hidden_layers));
  need("edge sets", sizes.edge_inputs.size() == 1, "one", std::to_string(sizes.edge_inputs.size()));
  if (o.encoder == VgaeEncoder::attention) {
    at_least("heads", o.heads, 1);
    need("heads", o.heads <= kMaxHeads, "at most " + std::to_string(kMaxHeads), std::to_string(o.heads));
    need("heads", o.width % o.heads == 0, "a divisor of the width " + std::to_string(o.width),
         std::to_string(o.heads));
  } else {
    need("sizes: edge_weights", sizes.edge_weights, "true", "false");
  }
  need("sizes: tables", sizes.tables.empty(), "0", std::to_string(sizes.tables.size()));
  need("sizes: pool", !sizes.pool, "no value", sizes.pool ? std::string(name_of(*sizes.pool)) : "");
}

const EdgeSet& edges_of(const GraphBatch& batch) {
  const EdgeSet& edges = only_edge_set("Vgae", batch);
  if (!edges.weights.defined())
    throw invalid_argument("Vgae: batch", "an edge set with weights", "no weights in " + edges.name);
  return edges;
}

/// y = P x W + b, where P has the edges' weights.
class GraphConvolution {
 public:
  /// `fan_out`: columns that belong together, by which the weight is initialised.
  GraphConvolution(ParameterSet& parameters, const std::string& name, int64_t in, int64_t out,
                   int64_t fan_out)
      : weight_(parameters.add(name + ".weight", {in, out}, Initial::glorot, in + fan_out)),
        bias_(parameters.add(name + ".bias", {out}, Initial::zero, 1)) {}

  Variable operator()(Tape& tape, const ParameterSet& set, const GraphBatch& batch, const Variable& x) const {
    const EdgeSet& edges = edges_of(batch);
    const Variable y = ops::linear(tape, x, set.weight(weight_), {});
    return ops::add_bias(tape, ops::weighted_sum(tape, y, edges.graph, edges.weights), set.weight(bias_));
  }

 private:
  size_t weight_, bias_;
};

/// Of the nodes' values, without an activation.
using EncoderLayer =
    std::function<Variable(Tape&, const ParameterSet&, const GraphBatch&, const Variable& nodes)>;

/// `groups` of `width` columns each: heads, or columns that are initialised together.
EncoderLayer make_encoder_layer(ParameterSet& parameters, const VgaeOptions& options, const std::string& name,
                                int64_t in, int64_t groups, int64_t width) {
  if (options.encoder == VgaeEncoder::convolution)
    return GraphConvolution(parameters, name, in, groups * width, width);
  Dropouts none;
  const AttentionLayer layer(parameters, {.name = name, .in = in, .heads = groups, .width = width},
                             {.self_edges = false}, none);
  return [layer](Tape& tape, const ParameterSet& set, const GraphBatch& batch, const Variable& nodes) {
    only_edge_set("Vgae", batch);
    return layer(tape, set, batch, nodes, {});
  };
}

struct VgaeLayer {
  EncoderLayer layer;
  Activation activation;

  Values operator()(Tape& tape, const ParameterSet& set, const GraphBatch& batch,
                    const Values& before) const {
    return {ops::activation(tape, layer(tape, set, batch, before[0]), activation)};
  }
};

struct LatentLayer {
  EncoderLayer layer;

  Values operator()(Tape& tape, const ParameterSet& set, const GraphBatch& batch,
                    const Values& before) const {
    if (tape.training() && !batch.node_keys.defined())
      throw invalid_argument("Vgae: batch", "node_keys for latent values on a tape that trains", "none");
    const Variable moments = layer(tape, set, batch, before[0]);
    NoiseKey key{.draws = tape.training()};
    if (key.draws) key.row_keys = batch.node_keys;
    return {ops::sample_latent(tape, moments, key), moments};
  }
};

struct FeatureDecoder {
  Mlp mlp;
  ComputePath path;
  bool keep_hidden;

  Values operator()(Tape& tape, const ParameterSet& set, const GraphBatch&, const Values& before) const {
    return {before[0], before[1], mlp.forward(tape, set, {before[0]}, {}, path, keep_hidden)};
  }
};

}  // namespace

std::string parameter_conventions(const VgaeOptions& o) {
  const std::string encoder =
      o.encoder == VgaeEncoder::convolution ? "convolution" : "attention, heads " + std::to_string(o.heads);
  return "vgae, " + encoder + ", activation " + std::string(name_of(o.activation));
}

Model make_vgae(const VgaeOptions& options, const ModelSizes& sizes) {
  check_options(options, sizes);
  Model model;
  ParameterSet& parameters = model.parameters;
  parameters.set_conventions(parameter_conventions(options));
  const auto add = [&](const std::string& name, bool repeated, const auto& make) {
    const int64_t first_weight = parameters.arena_elements();
    model.stages.push_back({name, repeated, make(), first_weight});
  };
  const int64_t heads = options.encoder == VgaeEncoder::attention ? options.heads : 1;
  int64_t in = sizes.node_inputs;
  for (int64_t block = 0; block < options.blocks; ++block) {
    const std::string name = "encoder." + std::to_string(block);
    add(name, true, [&] {
      return VgaeLayer{make_encoder_layer(parameters, options, name, in, heads, options.width / heads),
                       options.activation};
    });
    in = options.width;
  }
  add("latent", false,
      [&] { return LatentLayer{make_encoder_layer(parameters, options, "latent", in, 2, sizes.outputs)}; });
  if (!options.features) return model;
  add("features", false, [&] {
    return FeatureDecoder{Mlp(parameters, "features",
                              {.inputs = {sizes.outputs},
                               .file_order = {},
                               .hidden = options.width,
                               .out = sizes.node_inputs,
                               .hidden_layers = options.hidden_layers,
                               .activation = options.activation,
                               .norm = Norm::none}),
                          options.path, options.keep_hidden};
  });
  return model;
}

}  // namespace meshgrad
