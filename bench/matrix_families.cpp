// SPDX-License-Identifier: Apache-2.0
// Rows of the families that multiply matrices: linear, mlp and the edge update, at the sizes of one block of
// the standard model. They are bound by arithmetic.
#include <meshgrad/kernels/linear.h>
#include <meshgrad/kernels/message_passing.h>

#include <fmt/format.h>

#include "families.h"

#include <algorithm>

namespace meshgrad::bench {
namespace {

constexpr int64_t kBaseEdges = 6;  // a node
constexpr int kLayers = 3;

std::string sizes(const Case& c, int64_t rows) { return fmt::format("{} rows of {}", rows, c.scale().width); }

/// Backward reads hidden activations that forward saved, or recomputes them.
enum class Pass : uint8_t { forward, backward, backward_recomputing };

/// A workload from its parts; `prepare` runs before the check and before timing.
Workload finish(const std::shared_ptr<Case>& c, std::string description, const Work& work,
                const std::function<void()>& prepare, const std::function<void()>& run,
                const std::function<void(Case&)>& ref) {
  return {.run = run,
          .flops = work.flops,
          .bytes = work.bytes,
          .description = std::move(description),
          .cold = true,
          .check = [=] { return c->check(prepare, run, ref); },
          .randomise =
              [=] {
                c->randomise();
                if (prepare) prepare();
              }};
}

Workload linear_work(const std::shared_ptr<Case>& c, bool backward) {
  const int64_t base = kBaseEdges * c->scale().period, rows = c->scale().edges(), width = c->scale().width;
  const Input x = c->rows(base, width), w = c->weight(width, width), b = c->vector(width);
  Runtime& runtime = c->runtime();
  if (!backward) {
    const LinearForward args{.rows = rows,
                             .x = x.tensor,
                             .weight = w.tensor,
                             .bias = b.tensor,
                             .y = c->written({rows, width}, c->storage())};
    return finish(
        c, sizes(*c, rows), work_of(args), {},
        [&runtime, args] { kernels::linear_forward(args, runtime, runtime.stream()); },
        [=](Case& checked) {
          checked.expect("y", args.y, reference::linear(x.base, w.base, b.base), width);
        });
  }
  const Input d_y = c->rows(base, width);
  const LinearBackward args{.rows = rows,
                            .d_y = d_y.tensor,
                            .x = x.tensor,
                            .weight = w.tensor,
                            .d_x = c->written({rows, width}, c->storage()),
                            .d_weight = c->accumulated({width, width}),
                            .d_bias = c->accumulated({width})};
  return finish(
      c, sizes(*c, rows), work_of(args), {},
      [&runtime, args] { kernels::linear_backward(args, runtime, runtime.stream()); },
      [=](Case& checked) {
        const reference::LinearGradients g = reference::linear_backward(x.base, w.base, d_y.base);
        checked.expect("d_x", args.d_x, g.d_x, width);
        checked.expect_total("d_weight", args.d_weight, g.d_weight, base, 1.0);
        checked.expect_total("d_bias", args.d_bias, g.d_bias, base, 1.0);
      });
}

/// The standard MLP without its first layer's weights: relu, two hidden layers, LayerNorm. On the device, in
/// FP64, and its gradients.
struct MlpParts {
  std::vector<Input> weights, biases;
  Input first_bias, gain, norm_bias;
  MlpWeights device;
  reference::Mlp ref;
  MlpWeightGradients gradients;
};
MlpParts make_mlp(Case& c) {
  const int64_t width = c.scale().width;
  MlpParts parts{{}, {}, c.vector(width), c.vector(width, 1.0), c.vector(width), {}, {}, {}};
  parts.device.norm = parts.ref.norm = Norm::layer;
  parts.device.activation = parts.ref.activation = Activation::relu;
  parts.device.first_bias = parts.first_bias.tensor;
  parts.ref.first_bias = parts.first_bias.base;
  parts.gradients.first_bias = c.accumulated({width});
  for (int layer = 1; layer < kLayers; ++layer) {
    parts.weights.push_back(c.weight(width, width));
    parts.biases.push_back(c.vector(width));
    parts.device.weights.push_back(parts.weights.back().tensor);
    parts.device.biases.push_back(parts.biases.back().tensor);
    parts.ref.weights.push_back(parts.weights.back().base);
    parts.ref.biases.push_back(parts.biases.back().base);
    parts.gradients.weights.push_back(c.accumulated({width, width}));
    parts.gradients.biases.push_back(c.accumulated({width}));
  }
  parts.device.gain = parts.gain.tensor;
  parts.ref.gain = parts.gain.base;
  parts.device.norm_bias = parts.norm_bias.tensor;
  parts.ref.norm_bias = parts.norm_bias.base;
  parts.gradients.gain = c.accumulated({width});
  parts.gradients.norm_bias = c.accumulated({width});
  return parts;
}
MlpSaved make_saved(Case& c, int64_t rows, bool save_hidden) {
  const int64_t width = c.scale().width;
  MlpSaved saved;
  for (int layer = 1; layer < kLayers; ++layer)
    saved.pre_activations.push_back(save_hidden ? c.written({rows, width}, c.storage()) : Tensor());
  if (!save_hidden) saved.pre_activations.clear();
  if (save_hidden) saved.pre_norm = c.written({rows, width}, c.storage());
  return saved;
}
void expect_mlp_gradients(Case& checked, const MlpParts& parts, const reference::MlpGradients& g,
                          int64_t terms, double at_least) {
  checked.expect_total("d_first_bias", parts.gradients.first_bias, g.d_first_bias, terms, at_least);
  for (size_t i = 0; i < parts.weights.size(); ++i) {
    checked.expect_total("d_weight", parts.gradients.weights[i], g.d_weights[i], terms, at_least);
    checked.expect_total("d_bias", parts.gradients.biases[i], g.d_biases[i], terms, at_least);
  }
  checked.expect_total("d_gain", parts.gradients.gain, g.d_gain, terms, at_least);
  checked.expect_total("d_norm_bias", parts.gradients.norm_bias, g.d_norm_bias, terms, at_least);
}

/// The node update's MLP, of two inputs and with a residual, over as many rows as there are edges.
Workload mlp_work(const std::shared_ptr<Case>& c, Pass what) {
  const int64_t base = kBaseEdges * c->scale().period, rows = c->scale().edges(), width = c->scale().width;
  const auto parts = std::make_shared<MlpParts>(make_mlp(*c));
  const std::vector<Input> x = {c->rows(base, width), c->rows(base, width)};
  const std::vector<Input> w = {c->weight(width, width), c->weight(width, width)};
  parts->ref.first_weights = {w[0].base, w[1].base};
  Runtime& runtime = c->runtime();
  MlpForward forward{.rows = rows,
                     .inputs = {{x[0].tensor, w[0].tensor}, {x[1].tensor, w[1].tensor}},
                     .weights = parts->device,
                     .residual = x[0].tensor,
                     .out = c->written({rows, width}, c->storage()),
                     .saved = {}};
  const int64_t terms = 2 * width * kLayers;
  if (what == Pass::forward) {
    return finish(
        c, sizes(*c, rows), work_of(forward), {},
        [&runtime, forward] { kernels::mlp_forward(forward, runtime, runtime.stream()); },
        [=](Case& checked) {
          const Matrix y = reference::mlp(parts->ref, {x[0].base, x[1].base}).out;
          checked.expect("out", forward.out, reference::sum(x[0].base, y), terms);
        });
  }
  const bool saves = what == Pass::backward && kernels::saves_hidden(forward);
  forward.saved = make_saved(*c, rows, saves);
  const Input d_out = c->rows(base, width);
  const MlpBackward args{
      .rows = rows,
      .inputs = forward.inputs,
      .weights = parts->device,
      .saved = forward.saved,
      .d_out = d_out.tensor,
      .d_inputs = {c->written({rows, width}, c->storage()), c->written({rows, width}, c->storage())},
      .accumulate = {false, false},
      .d_first_weights = {c->accumulated({width, width}), c->accumulated({width, width})},
      .d_weights = parts->gradients};
  return finish(
      c, sizes(*c, rows), work_of(args),
      [&runtime, forward] { kernels::mlp_forward(forward, runtime, runtime.stream()); },
      [&runtime, args] { kernels::mlp_backward(args, runtime, runtime.stream()); },
      [=](Case& checked) {
        const reference::MlpGradients g =
            reference::mlp_backward(parts->ref, {x[0].base, x[1].base}, {}, d_out.base);
        double largest = 1.0;
        for (const Matrix& m : g.d_first_weights)
          for (const double v : m.v) largest = std::max(largest, std::abs(v));
        for (size_t i = 0; i < 2; ++i) {
          checked.expect("d_input", args.d_inputs[i], g.d_inputs[i], terms, 1.0);
          checked.expect_total("d_first_weight", args.d_first_weights[i], g.d_first_weights[i], base,
                               largest);
        }
        expect_mlp_gradients(checked, *parts, g, base, 1.0);
      });
}

/// One block's edge update. Backward starts from the gradients of both outputs, aggregate and edges.
Workload edge_work(const std::shared_ptr<Case>& c, Pass what) {
  const int64_t width = c->scale().width, period = c->scale().period;
  const int64_t nodes = c->scale().nodes(), edges = c->scale().edges();
  const auto parts = std::make_shared<MlpParts>(make_mlp(*c));
  const auto mesh = std::make_shared<Mesh>(make_mesh(c->runtime(), c->scale()));
  const Input h = c->rows(period, width), e = c->rows(kBaseEdges * period, width);
  const Input w_s = c->weight(width, width), w_r = c->weight(width, width), w_e = c->weight(width, width);
  parts->ref.first_weights = {w_e.base};
  const reference::EdgeUpdate update{parts->ref, true, false};
  const reference::NodeTerms ref_terms{h.base, w_s.base, w_r.base};
  const std::string description = fmt::format("{} nodes, {} edges, width {}", nodes, edges, width);
  const int64_t terms = 3 * width * kLayers;
  Runtime& runtime = c->runtime();
  EdgeUpdateForward forward{.graph = &mesh->graph,
                            .terms = {h.tensor, w_s.tensor, w_r.tensor},
                            .edges = {e.tensor, w_e.tensor},
                            .weights = parts->device,
                            .edges_out = c->written({edges, width}, c->storage()),
                            .aggregate = c->written({nodes, width}, c->storage()),
                            .saved = {}};
  if (what == Pass::forward) {
    return finish(
        c, description, work_of(forward), {},
        [&runtime, forward, mesh] { kernels::edge_update_forward(forward, runtime, runtime.stream()); },
        [=](Case& checked) {
          const auto result = reference::edge_update(update, mesh->base, ref_terms, e.base);
          checked.expect("edges_out", forward.edges_out, result.edges_out, terms);
          checked.expect("aggregate", forward.aggregate, result.aggregate, terms);
        });
  }
  const bool saves = what == Pass::backward && kernels::saves_hidden(forward);
  forward.saved = make_saved(*c, edges, saves);
  const Input d_e = c->rows(kBaseEdges * period, width), d_aggregate = c->rows(period, width);
  const EdgeUpdateBackward args{.graph = &mesh->graph,
                                .terms = forward.terms,
                                .edges = forward.edges,
                                .weights = parts->device,
                                .saved = forward.saved,
                                .d_edges_out = d_e.tensor,
                                .d_aggregate = d_aggregate.tensor,
                                .d_edges = c->written({edges, width}, c->storage()),
                                .d_nodes = c->written({nodes, width}, c->storage()),
                                .d_sender_weight = c->accumulated({width, width}),
                                .d_receiver_weight = c->accumulated({width, width}),
                                .d_edge_weight = c->accumulated({width, width}),
                                .d_weights = parts->gradients};
  return finish(
      c, description, work_of(args),
      [&runtime, forward, mesh] { kernels::edge_update_forward(forward, runtime, runtime.stream()); },
      [&runtime, args, mesh] { kernels::edge_update_backward(args, runtime, runtime.stream()); },
      [=](Case& checked) {
        const auto g = reference::edge_update_backward(update, mesh->base, ref_terms, e.base, d_e.base,
                                                       d_aggregate.base);
        const int64_t base = kBaseEdges * period;
        checked.expect("d_edges", args.d_edges, g.d_edges, terms, 1.0);
        checked.expect("d_nodes", args.d_nodes, g.d_nodes, terms * kBaseEdges, 1.0);
        checked.expect_total("d_sender_weight", args.d_sender_weight, g.d_sender_weight, base, 1.0);
        checked.expect_total("d_receiver_weight", args.d_receiver_weight, g.d_receiver_weight, base, 1.0);
        checked.expect_total("d_edge_weight", args.d_edge_weight, g.d_edge_weight, base, 1.0);
        expect_mlp_gradients(checked, *parts, g.mlp, base, 1.0);
      });
}

}  // namespace

std::vector<Family> matrix_families() {
  const auto mlp = [](Pass what) { return [=](const auto& c) { return mlp_work(c, what); }; };
  const auto edge_update = [](Pass what) { return [=](const auto& c) { return edge_work(c, what); }; };
  return {
      {"linear/forward", "linear_forward", [](const auto& c) { return linear_work(c, false); }},
      {"linear/backward", "linear_backward", [](const auto& c) { return linear_work(c, true); }},
      {"mlp/forward", "mlp_forward", mlp(Pass::forward)},
      {"mlp/backward", "mlp_backward", mlp(Pass::backward)},
      {"mlp/backward_recomputing", "mlp_backward", mlp(Pass::backward_recomputing)},
      {"edge_update/forward", "edge_update_forward", edge_update(Pass::forward)},
      {"edge_update/backward", "edge_update_backward", edge_update(Pass::backward)},
      {"edge_update/backward_recomputing", "edge_update_backward", edge_update(Pass::backward_recomputing)}};
}

}  // namespace meshgrad::bench
