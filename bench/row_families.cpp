// SPDX-License-Identifier: Apache-2.0
// Rows of the row-wise families: sums by receiver and by graph, gathers, activations, norms and losses. They
// are bound by memory: what counts are bytes.
#include <meshgrad/kernels/class_loss.h>
#include <meshgrad/kernels/elementwise.h>
#include <meshgrad/kernels/graph_pool.h>
#include <meshgrad/kernels/reduction.h>
#include <meshgrad/kernels/segment_sum.h>
#include <meshgrad/kernels/world_edges.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "families.h"
#include "reference/training.h"

namespace meshgrad::bench {
namespace {

Workload segment_sum_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const auto mesh = std::make_shared<Mesh>(make_mesh(c->runtime(), c->scale()));
  const Input x = c->rows(n.base, n.width);
  const int64_t nodes = c->scale().nodes();
  const SegmentSum args{.segments = nodes,
                        .offsets = mesh->graph.receiver_offsets,
                        .order = {},
                        .x = x.tensor,
                        .out = c->written({nodes, n.width}, c->storage())};
  const Stream& stream = c->stream();
  return row_workload(
      c, work_of(args), [&stream, args] { kernels::segment_sum(args, stream); },
      [=](Case& checked) {
        checked.expect("out", args.out,
                       reference::scatter_add(x.base, mesh->base.receivers, mesh->base.nodes), 6);
      });
}

/// Rows of nodes by sender, weighted: a product with a sparse matrix.
Workload weighted_sum_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const auto mesh = std::make_shared<Mesh>(make_mesh(c->runtime(), c->scale()));
  const Input x = c->rows(c->scale().period, n.width);
  const int64_t nodes = c->scale().nodes();
  const std::vector<float> halves(static_cast<size_t>(mesh->graph.edges), 0.5f);
  const SegmentSum args{.segments = nodes,
                        .offsets = mesh->graph.receiver_offsets,
                        .order = {},
                        .x = x.tensor,
                        .out = c->written({nodes, n.width}, c->storage()),
                        .index = mesh->graph.senders,
                        .weights = Tensor::from<float>(c->runtime(), halves, {mesh->graph.edges}, Tag::data)};
  const Stream& stream = c->stream();
  return row_workload(
      c, work_of(args), [&stream, args] { kernels::segment_sum(args, stream); },
      [=](Case& checked) {
        Matrix expected = reference::scatter_add(reference::gather(x.base, mesh->base.senders),
                                                 mesh->base.receivers, mesh->base.nodes);
        for (double& value : expected.v) value *= 0.5;
        checked.expect("out", args.out, expected, 6);
      });
}

Workload gather_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const auto mesh = std::make_shared<Mesh>(make_mesh(c->runtime(), c->scale()));
  const Input x = c->rows(c->scale().period, n.width);
  const Gather args{.rows = n.rows,
                    .index = mesh->graph.senders,
                    .x = x.tensor,
                    .out = c->written({n.rows, n.width}, c->storage())};
  const Stream& stream = c->stream();
  return row_workload(
      c, work_of(args), [&stream, args] { kernels::gather(args, stream); },
      [=](Case& checked) {
        checked.expect("out", args.out, reference::gather(x.base, mesh->base.senders), 1);
      });
}

/// Graphs of 48 nodes, whose last one in each copy of the base rows may be smaller.
std::vector<int32_t> graphs_of(int64_t base, int64_t copies) {
  constexpr int64_t kNodes = 48;
  std::vector<int32_t> starts{0};
  for (int64_t copy = 0; copy < copies; ++copy)
    for (int64_t end = kNodes; end < base + kNodes; end += kNodes)
      starts.push_back(static_cast<int32_t>(copy * base + std::min(end, base)));
  return starts;
}

Workload graph_pool_work(const std::shared_ptr<Case>& c, GraphPool pool, bool backward) {
  const RowSizes n(*c);
  const std::vector<int32_t> base = graphs_of(n.base, 1), all = graphs_of(n.base, c->scale().copies);
  const int64_t graphs = std::ssize(all) - 1;
  const Input x = c->rows(n.base, n.width);
  Runtime& runtime = c->runtime();
  GraphPoolForward args{.pool = pool,
                        .graphs = graphs,
                        .starts = Tensor::from<int32_t>(runtime, all, {graphs + 1}, Tag::data),
                        .x = x.tensor,
                        .out = c->written({graphs, n.width}, c->storage())};
  if (pool == GraphPool::max) args.index = Tensor::zeros(runtime, {graphs, n.width}, DType::i32, Tag::data);
  const Stream& stream = c->stream();
  if (!backward) {
    return row_workload(
        c, work_of(args), [&stream, args] { kernels::graph_pool_forward(args, stream); },
        [=](Case& checked) {
          checked.expect("out", args.out, reference::graph_pool(pool, x.base, base).out, 48);
        });
  }
  const Input d_out = c->rows(std::ssize(base) - 1, n.width);
  const GraphPoolBackward back{.pool = pool,
                               .nodes = n.rows,
                               .graphs = args.graphs,
                               .starts = args.starts,
                               .d_out = d_out.tensor,
                               .d_x = c->written({n.rows, n.width}, c->storage()),
                               .index = args.index};
  Workload work = row_workload(
      c, work_of(back), [&stream, back] { kernels::graph_pool_backward(back, stream); },
      [=](Case& checked) {
        checked.expect("d_x", back.d_x, reference::graph_pool_backward(pool, x.base, base, d_out.base), 1);
      });
  work.check = [&stream, args, check = work.check] {
    kernels::graph_pool_forward(args, stream);  // whose index backward reads
    return check();
  };
  return work;
}

Workload activation_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const Input x = c->rows(n.base, n.width);
  const ActivationForward args{
      .activation = Activation::relu, .x = x.tensor, .y = c->written({n.rows, n.width}, c->storage())};
  const Stream& stream = c->stream();
  return row_workload(
      c, work_of(args), [&stream, args] { kernels::activation_forward(args, stream); },
      [=](Case& checked) {
        checked.expect("y", args.y, reference::activation(Activation::relu, x.base), 1);
      });
}

Workload activation_backward_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const Input x = c->rows(n.base, n.width), d_y = c->rows(n.base, n.width);
  const ActivationBackward args{.activation = Activation::relu,
                                .x = x.tensor,
                                .d_y = d_y.tensor,
                                .d_x = c->written({n.rows, n.width}, c->storage())};
  const Stream& stream = c->stream();
  return row_workload(
      c, work_of(args), [&stream, args] { kernels::activation_backward(args, stream); },
      [=](Case& checked) {
        checked.expect("d_x", args.d_x, reference::activation_backward(Activation::relu, x.base, d_y.base),
                       1);
      });
}

Workload norm_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const Input x = c->rows(n.base, n.width), gain = c->vector(n.width, 1.0), bias = c->vector(n.width);
  const NormForward args{.norm = Norm::layer,
                         .rows = n.rows,
                         .x = x.tensor,
                         .gain = gain.tensor,
                         .bias = bias.tensor,
                         .y = c->written({n.rows, n.width}, c->storage())};
  Runtime& runtime = c->runtime();
  return row_workload(
      c, work_of(args), [&runtime, args] { kernels::norm_forward(args, runtime, runtime.stream()); },
      [=](Case& checked) {
        checked.expect("y", args.y, reference::norm(Norm::layer, x.base, gain.base, bias.base, args.epsilon),
                       n.width);
      });
}

Workload norm_backward_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const Input x = c->rows(n.base, n.width), d_y = c->rows(n.base, n.width), gain = c->vector(n.width, 1.0);
  const NormBackward args{.norm = Norm::layer,
                          .rows = n.rows,
                          .x = x.tensor,
                          .gain = gain.tensor,
                          .d_y = d_y.tensor,
                          .d_x = c->written({n.rows, n.width}, c->storage()),
                          .d_gain = c->accumulated({n.width}),
                          .d_bias = c->accumulated({n.width})};
  Runtime& runtime = c->runtime();
  return row_workload(
      c, work_of(args), [&runtime, args] { kernels::norm_backward(args, runtime, runtime.stream()); },
      [=](Case& checked) {
        const auto g = reference::norm_backward(Norm::layer, x.base, gain.base, d_y.base, args.epsilon);
        checked.expect("d_x", args.d_x, g.d_x, n.width, 1.0);
        checked.expect_total("d_gain", args.d_gain, g.d_gain, n.base, 1.0);
        checked.expect_total("d_bias", args.d_bias, g.d_bias, n.base, 1.0);
      });
}

/// y = a x + b y: in place, so the check sees one step and the timing runs on what became of y.
Workload axpby_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const Input x = c->rows(n.base, n.width), y = c->rows(n.base, n.width);
  const Axpby args{.a = 0.5, .x = x.tensor, .b = 0.5, .y = y.tensor};
  const Stream& stream = c->stream();
  return row_workload(
      c, work_of(args), [&stream, args] { kernels::axpby(args, stream); },
      [=](Case& checked) {
        Matrix expected = reference::sum(x.base, y.base);
        for (double& value : expected.v) value *= 0.5;
        checked.expect("y", args.y, expected, 1);
      });
}

/// From the accumulation type to storage, as parameters are rounded for a forward pass.
Workload cast_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const Input from = c->rows(n.base, n.width, c->accumulator());
  const Cast args{.from = from.tensor, .to = c->written({n.rows, n.width}, c->storage())};
  const Stream& stream = c->stream();
  return row_workload(
      c, work_of(args), [&stream, args] { kernels::cast(args, stream); },
      [=](Case& checked) { checked.expect("to", args.to, from.base, 1); });
}

/// The loss of predictions of two components; targets are in the accumulation type. `formed`: Huber's, with
/// weights, here all 1.
Workload loss_work(const std::shared_ptr<Case>& c, bool backward, bool formed) {
  const RowSizes n(*c);
  const Input prediction = c->rows(n.base, kOutputs), target = c->rows(n.base, kOutputs, c->accumulator());
  const std::vector<uint8_t> ones(static_cast<size_t>(n.rows), 1);
  const std::vector<uint8_t> base_mask(static_cast<size_t>(n.base), 1);
  const Tensor mask = Tensor::from<uint8_t>(c->runtime(), ones, {n.rows}, Tag::data);
  const Tensor sum = Tensor::zeros(c->runtime(), {1}, DType::f64, Tag::data);
  const Tensor weight = Tensor::zeros(c->runtime(), {1}, DType::f64, Tag::data);
  Runtime& runtime = c->runtime();
  LossForm form;
  const reference::Form base_form{.kind = formed ? LossKind::huber : LossKind::squared,
                                  .delta = form.delta,
                                  .factor = form.factor,
                                  .rows = std::vector<double>(base_mask.size(), 1.0),
                                  .columns = std::vector<double>(kOutputs, 1.0)};
  if (formed) {
    form.kind = base_form.kind;
    const std::vector<float> weights(static_cast<size_t>(std::max<int64_t>(n.rows, kOutputs)), 1.0f);
    const auto first = [&](int64_t count) {
      const auto values = std::span<const float>(weights).first(static_cast<size_t>(count));
      return Tensor::from<float>(runtime, values, {count}, Tag::data);
    };
    form.row_weights = first(n.rows);
    form.column_weights = first(kOutputs);
  }
  if (!backward) {
    const MaskedLossForward args{.rows = n.rows,
                                 .prediction = prediction.tensor,
                                 .target = target.tensor,
                                 .mask = mask,
                                 .sum = sum,
                                 .weight = weight,
                                 .form = form};
    return row_workload(
        c, work_of(args), [&runtime, args] { kernels::masked_loss_forward(args, runtime, runtime.stream()); },
        [=](Case& checked) {
          const reference::Loss loss =
              reference::formed_loss(prediction.base, target.base, base_mask, base_form);
          checked.expect_total("sum", sum, Matrix(1, 1, loss.sum), n.base);
          checked.expect_total("weight", weight, Matrix(1, 1, loss.weight), n.base);
        });
  }
  constexpr double kLossSeed = 0.25;
  const std::vector<double> seed = {kLossSeed};
  const MaskedLossBackward args{.rows = n.rows,
                                .prediction = prediction.tensor,
                                .target = target.tensor,
                                .mask = mask,
                                .seed = Tensor::from<double>(c->runtime(), seed, {1}, Tag::data),
                                .d_prediction = c->written({n.rows, kOutputs}, c->storage()),
                                .form = form};
  return row_workload(
      c, work_of(args), [&runtime, args] { kernels::masked_loss_backward(args, runtime.stream()); },
      [=](Case& checked) {
        checked.expect(
            "d_prediction", args.d_prediction,
            reference::formed_loss_backward(prediction.base, target.base, base_mask, base_form, kLossSeed),
            2);
      });
}

/// The cross entropy of eight classes; the labels are 0 to 7 in turn.
Workload class_loss_work(const std::shared_ptr<Case>& c, bool backward) {
  constexpr int64_t kClasses = 8;
  const RowSizes n(*c);
  const Input logits = c->rows(n.base, kClasses);
  std::vector<int32_t> labels(static_cast<size_t>(n.rows));
  for (size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<int32_t>(i % static_cast<size_t>(n.base) % kClasses);
  const std::vector<int32_t> base_labels(labels.begin(), labels.begin() + n.base);
  const std::vector<uint8_t> ones(labels.size(), 1), base_ones(base_labels.size(), 1);
  Runtime& runtime = c->runtime();
  const ClassLossForward forward{.rows = n.rows,
                                 .logits = logits.tensor,
                                 .labels = Tensor::from<int32_t>(runtime, labels, {n.rows}, Tag::data),
                                 .mask = Tensor::from<uint8_t>(runtime, ones, {n.rows}, Tag::data),
                                 .sum = Tensor::zeros(runtime, {1}, DType::f64, Tag::data),
                                 .weight = Tensor::zeros(runtime, {1}, DType::f64, Tag::data)};
  if (!backward) {
    return row_workload(
        c, work_of(forward),
        [&runtime, forward] { kernels::class_loss_forward(forward, runtime, runtime.stream()); },
        [=](Case& checked) {
          const reference::Loss loss = reference::class_loss(logits.base, base_labels, base_ones);
          checked.expect_total("sum", forward.sum, Matrix(1, 1, loss.sum), n.base);
          checked.expect_total("weight", forward.weight, Matrix(1, 1, loss.weight), n.base);
        });
  }
  constexpr double kClassSeed = 0.25;
  const std::vector<double> seed = {kClassSeed};
  const ClassLossBackward args{.rows = n.rows,
                               .logits = forward.logits,
                               .labels = forward.labels,
                               .mask = forward.mask,
                               .seed = Tensor::from<double>(runtime, seed, {1}, Tag::data),
                               .d_logits = c->written({n.rows, kClasses}, c->storage())};
  return row_workload(
      c, work_of(args), [&runtime, args] { kernels::class_loss_backward(args, runtime.stream()); },
      [=](Case& checked) {
        checked.expect("d_logits", args.d_logits,
                       reference::class_loss_backward(logits.base, base_labels, base_ones, kClassSeed),
                       kClasses, kClassSeed);
      });
}

/// Gradients are in the accumulation type whatever activations are stored in.
Workload sum_of_squares_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const Input x = c->rows(n.base, n.width, c->accumulator());
  const SumOfSquares args{.x = x.tensor.reshaped({n.rows * n.width}),
                          .sum = Tensor::zeros(c->runtime(), {1}, DType::f64, Tag::data),
                          .non_finite = {}};
  Runtime& runtime = c->runtime();
  const auto run = [&runtime, args] { kernels::sum_of_squares(args, runtime, runtime.stream()); };
  Workload work = row_workload(c, work_of(args), run, [=](Case& checked) {
    checked.expect_total("sum", args.sum, Matrix(1, 1, reference::sum_of_squares(x.base.v)),
                         n.base * n.width);
  });
  work.check = [&runtime, args, check = work.check] {
    fill_zero(args.sum, runtime.stream());
    return check();
  };
  return work;
}

/// The nodes of the mesh on the squares of a board: those side by side and on one diagonal are joined by the
/// mesh, and world edges join those on the other diagonal.
Workload world_edges_work(const std::shared_ptr<Case>& c) {
  Runtime& runtime = c->runtime();
  const Mesh mesh = make_mesh(runtime, c->scale());
  const int64_t nodes = c->scale().nodes(), side = c->scale().side();
  std::vector<int32_t> senders = mesh.whole.senders;
  const std::vector<int32_t>& receivers = mesh.whole.receivers;
  auto own = receivers.begin();
  std::vector<float> positions;
  std::vector<double> rows;
  for (int64_t node = 0; node < nodes; ++node) {
    const auto first = own;
    own = std::upper_bound(first, receivers.end(), node);
    std::sort(senders.begin() + (first - receivers.begin()), senders.begin() + (own - receivers.begin()));
    positions.insert(positions.end(), {static_cast<float>(node % side), static_cast<float>(node / side)});
    for (const int64_t sign : {-1, 1}) {
      const int64_t sender = node + sign * (side - 1);
      if (sender < 0 || sender >= nodes || sender % side != node % side - sign) continue;
      rows.insert(rows.end(), {static_cast<double>(-sign), static_cast<double>(sign), std::sqrt(2.0)});
    }
  }
  const int64_t edges = std::ssize(rows) / 3;
  const auto index = [&](int64_t count) {
    return Tensor::empty(runtime, {count}, DType::i32, Tag::data, "world edges");
  };
  FindWorldEdges args{.mesh = mesh.graph,
                      .positions = Tensor::from<float>(runtime, positions, {nodes, 2}, Tag::data),
                      .labels = Tensor::zeros(runtime, {3, nodes}, DType::i32, Tag::data),
                      .radius = 1.5};
  args.mesh.senders = Tensor::from<int32_t>(runtime, senders, {mesh.graph.edges}, Tag::data);
  args.scale =
      Tensor::from<double>(runtime, std::vector<double>{0.0, 0.0, 0.0, 1.0, 1.0, 1.0}, {2, 3}, Tag::data);
  args.found.nodes = args.found.owned_nodes = nodes;
  args.found.edges = edges;
  args.found.senders = index(edges), args.found.receivers = index(edges);
  args.found.sender_order = index(edges);
  args.found.receiver_offsets = index(nodes + 1), args.found.sender_offsets = index(nodes + 1);
  args.found.counts = Tensor::empty(runtime, {3}, DType::i64, Tag::data, "world edges");
  args.features = c->written({edges, 3}, c->storage());
  args.missing = Tensor::empty(runtime, {1}, DType::i64, Tag::data, "world edges");
  Workload work = row_workload(
      c, work_of(args), [&runtime, args] { kernels::find_world_edges(args, runtime, runtime.stream()); },
      [=](Case& checked) {
        Matrix features(edges, 3);
        features.v = rows;
        checked.expect("features", args.features, features, 1);
      });
  work.description = fmt::format("{} nodes, {} world edges", nodes, edges);
  return work;
}

}  // namespace

std::vector<Family> row_families() {
  return {
      {"segment_sum", "segment_sum", segment_sum_work},
      {"segment_sum/weighted", "segment_sum", weighted_sum_work},
      {"gather", "gather", gather_work},
      {"graph_pool/mean", "graph_pool_forward",
       [](const auto& c) { return graph_pool_work(c, GraphPool::mean, false); }},
      {"graph_pool/max", "graph_pool_forward",
       [](const auto& c) { return graph_pool_work(c, GraphPool::max, false); }},
      {"graph_pool/max_backward", "graph_pool_backward",
       [](const auto& c) { return graph_pool_work(c, GraphPool::max, true); }},
      {"activation/relu", "activation_forward", activation_work},
      {"activation/relu_backward", "activation_backward", activation_backward_work},
      {"norm/layer", "norm_forward", norm_work},
      {"norm/layer_backward", "norm_backward", norm_backward_work},
      {"axpby", "axpby", axpby_work},
      {"cast", "cast", cast_work},
      {"masked_loss/forward", "masked_loss_forward",
       [](const auto& c) { return loss_work(c, false, false); }},
      {"masked_loss/backward", "masked_loss_backward",
       [](const auto& c) { return loss_work(c, true, false); }},
      {"masked_loss/huber", "masked_loss_forward", [](const auto& c) { return loss_work(c, false, true); }},
      {"masked_loss/huber_backward", "masked_loss_backward",
       [](const auto& c) { return loss_work(c, true, true); }},
      {"class_loss/forward", "class_loss_forward", [](const auto& c) { return class_loss_work(c, false); }},
      {"class_loss/backward", "class_loss_backward", [](const auto& c) { return class_loss_work(c, true); }},
      {"sum_of_squares", "sum_of_squares", sum_of_squares_work, true},
      {"world_edges", "find_world_edges", world_edges_work}};
}

}  // namespace meshgrad::bench
