// SPDX-License-Identifier: Apache-2.0
// Rows of attention: 8 heads over the mesh's edges.
#include <meshgrad/kernels/attention.h>

#include <fmt/format.h>

#include "families.h"
#include "reference/attention.h"

namespace meshgrad::bench {
namespace {

constexpr int64_t kHeads = 8;

/// One attention, for the kernels and for the reference.
struct AttentionWork {
  std::shared_ptr<Mesh> mesh;
  EdgeAttention inputs;
  reference::Attention ref;
  Tensor out, log_sums;
  std::string text;

  AttentionWork(const std::shared_ptr<Case>& c, AttentionScore score)
      : mesh(std::make_shared<Mesh>(make_mesh(c->runtime(), c->scale()))) {
    const int64_t nodes = c->scale().nodes(), period = c->scale().period, width = c->scale().width;
    text = fmt::format("{} edges, {} heads of {}", mesh->graph.edges, kHeads, width / kHeads);
    inputs = {.graph = &mesh->graph, .score = score, .heads = kHeads};
    ref.score = score;
    ref.heads = kHeads;
    const auto input = [&](Tensor& tensor, Matrix& base, const Input& made) {
      tensor = made.tensor;
      base = made.base;
    };
    input(inputs.values, ref.values, c->rows(period, width));
    if (score == AttentionScore::gat) {
      input(inputs.sender_scores, ref.sender_scores, c->rows(period, kHeads, c->accumulator()));
      input(inputs.receiver_scores, ref.receiver_scores, c->rows(period, kHeads, c->accumulator()));
    } else {
      input(inputs.queries, ref.queries, c->rows(period, width));
    }
    if (score == AttentionScore::dot) input(inputs.keys, ref.keys, c->rows(period, width));
    if (score == AttentionScore::gatv2) input(inputs.weight, ref.weight, c->vector(width));
    out = c->written({nodes, width}, c->storage());
    log_sums = c->written({nodes, kHeads}, c->accumulator());
  }
};

/// Edges of a node: an exponential's relative error is a few of its own roundings.
constexpr int64_t kTerms = 32;

Workload forward_work(const std::shared_ptr<Case>& c, AttentionScore score) {
  const AttentionWork w(c, score);
  const EdgeAttentionForward args{.inputs = w.inputs, .out = w.out, .log_sums = w.log_sums};
  const Stream& stream = c->stream();
  Workload work = row_workload(
      c, work_of(args), [&stream, args, mesh = w.mesh] { kernels::edge_attention_forward(args, stream); },
      [=](Case& checked) {
        const auto result = reference::attention(w.ref, w.mesh->base);
        checked.expect("out", w.out, result.out, kTerms, 1.0);
        checked.expect("log_sums", w.log_sums, result.log_sums, kTerms, 1.0);
      });
  work.description = w.text;
  return work;
}

Workload backward_work(const std::shared_ptr<Case>& c, AttentionScore score) {
  const AttentionWork w(c, score);
  const Input d_out = c->rows(c->scale().period, c->scale().width);
  const auto like = [&](const Tensor& tensor) {
    return tensor.defined() ? c->written(tensor.shape(), tensor.dtype()) : Tensor();
  };
  const EdgeAttentionForward forward{.inputs = w.inputs, .out = w.out, .log_sums = w.log_sums};
  const EdgeAttentionBackward args{
      .inputs = w.inputs,
      .out = w.out,
      .log_sums = w.log_sums,
      .d_out = d_out.tensor,
      .d_values = like(w.inputs.values),
      .d_sender_scores = like(w.inputs.sender_scores),
      .d_receiver_scores = like(w.inputs.receiver_scores),
      .d_keys = like(w.inputs.keys),
      .d_queries = like(w.inputs.queries),
      .d_weight = w.inputs.weight.defined() ? c->accumulated({c->scale().width}) : Tensor()};
  Runtime& runtime = c->runtime();
  const auto run = [&runtime, args, mesh = w.mesh] {
    kernels::edge_attention_backward(args, runtime, runtime.stream());
  };
  const auto expected = [=](Case& checked) {
    const auto g = reference::attention_backward(w.ref, w.mesh->base, d_out.base);
    const auto expect = [&](const char* what, const Tensor& actual, const Matrix& gradient) {
      if (actual.defined()) checked.expect(what, actual, gradient, kTerms, 16.0);
    };
    expect("d_values", args.d_values, g.d_values);
    expect("d_sender_scores", args.d_sender_scores, g.d_sender_scores);
    expect("d_receiver_scores", args.d_receiver_scores, g.d_receiver_scores);
    expect("d_keys", args.d_keys, g.d_keys);
    expect("d_queries", args.d_queries, g.d_queries);
    if (args.d_weight.defined())
      checked.expect_total("d_weight", args.d_weight, g.d_weight, 6 * checked.scale().period, 16.0);
  };
  Workload work = row_workload(c, work_of(args), run, expected);
  const auto prepare = [&runtime, forward, mesh = w.mesh] {
    kernels::edge_attention_forward(forward, runtime.stream());
  };
  work.check = [=] { return c->check(prepare, run, expected); };
  work.randomise = [=] {
    c->randomise();
    prepare();
  };
  work.description = w.text;
  return work;
}

Workload head_scores_work(const std::shared_ptr<Case>& c, bool backward) {
  const int64_t nodes = c->scale().nodes(), period = c->scale().period, width = c->scale().width;
  const Input x = c->rows(period, width), weight = c->vector(width);
  const std::string text = fmt::format("{} nodes, {} heads of {}", nodes, kHeads, width / kHeads);
  Runtime& runtime = c->runtime();
  Workload work;
  if (!backward) {
    const HeadScoresForward args{.rows = nodes,
                                 .heads = kHeads,
                                 .x = x.tensor,
                                 .weight = weight.tensor,
                                 .scores = c->written({nodes, kHeads}, c->accumulator())};
    work = row_workload(
        c, work_of(args), [&runtime, args] { kernels::head_scores_forward(args, runtime.stream()); },
        [=](Case& checked) {
          checked.expect("scores", args.scores, reference::head_scores(x.base, weight.base, kHeads),
                         width / kHeads);
        });
  } else {
    const Input d_scores = c->rows(period, kHeads, c->accumulator());
    const HeadScoresBackward args{.rows = nodes,
                                  .heads = kHeads,
                                  .x = x.tensor,
                                  .weight = weight.tensor,
                                  .d_scores = d_scores.tensor,
                                  .d_x = c->written({nodes, width}, c->storage()),
                                  .d_weight = c->accumulated({width})};
    work = row_workload(
        c, work_of(args),
        [&runtime, args] { kernels::head_scores_backward(args, runtime, runtime.stream()); },
        [=](Case& checked) {
          const auto g = reference::head_scores_backward(x.base, weight.base, d_scores.base);
          checked.expect("d_x", args.d_x, g.d_x, 2);
          checked.expect_total("d_weight", args.d_weight, g.d_weight, period, 1.0);
        });
  }
  work.description = text;
  return work;
}

}  // namespace

std::vector<Family> attention_families() {
  const auto forward = [](AttentionScore score) {
    return [=](const auto& c) { return forward_work(c, score); };
  };
  const auto backward = [](AttentionScore score) {
    return [=](const auto& c) { return backward_work(c, score); };
  };
  return {{"attention/gat", "edge_attention_forward", forward(AttentionScore::gat)},
          {"attention/gat_backward", "edge_attention_backward", backward(AttentionScore::gat)},
          {"attention/gatv2", "edge_attention_forward", forward(AttentionScore::gatv2)},
          {"attention/gatv2_backward", "edge_attention_backward", backward(AttentionScore::gatv2)},
          {"attention/dot", "edge_attention_forward", forward(AttentionScore::dot)},
          {"attention/dot_backward", "edge_attention_backward", backward(AttentionScore::dot)},
          {"head_scores/forward", "head_scores_forward",
           [](const auto& c) { return head_scores_work(c, false); }},
          {"head_scores/backward", "head_scores_backward",
           [](const auto& c) { return head_scores_work(c, true); }}};
}

}  // namespace meshgrad::bench
