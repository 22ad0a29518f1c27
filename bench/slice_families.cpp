// SPDX-License-Identifier: Apache-2.0
// Rows of slice attention: one graph of all nodes, 8 heads, 64 slices.
#include <meshgrad/kernels/slice_attention.h>

#include <fmt/format.h>

#include <algorithm>

#include "families.h"
#include "reference/slice_attention.h"

namespace meshgrad::bench {
namespace {

constexpr int64_t kSliceHeads = 8;
constexpr int64_t kSlices = 64;
constexpr int64_t kSliceTerms = 64;       // an exponential's relative error is a few of its own roundings
constexpr double kSliceMagnitude = 16.0;  // of scores, divided by a temperature of 0.4

/// The soft weights, for the kernels and for the reference of one copy.
struct SliceWork {
  std::shared_ptr<Case> c;
  SliceWeights weights;
  reference::Slices ref;
  std::string text;

  explicit SliceWork(const std::shared_ptr<Case>& of) : c(of) {
    const Scale& scale = c->scale();
    const int64_t columns = scale.width / kSliceHeads;
    const Input keys = c->rows(scale.period, scale.width), weight = c->weight(columns, kSlices);
    const Input bias = c->vector(kSlices), temperatures = c->vector(kSliceHeads, 0.5);
    const std::vector<int32_t> starts{0, static_cast<int32_t>(scale.nodes())};
    weights = {.heads = kSliceHeads,
               .nodes = scale.nodes(),
               .starts = Tensor::from<int32_t>(c->runtime(), starts, {2}, Tag::data),
               .keys = keys.tensor,
               .weight = weight.tensor,
               .bias = bias.tensor,
               .temperatures = temperatures.tensor};
    ref = {.heads = kSliceHeads,
           .starts = {0, static_cast<int32_t>(scale.period)},
           .keys = keys.base,
           .weight = weight.base,
           .bias = bias.base,
           .temperatures = temperatures.base};
    text = fmt::format("{} nodes, {} heads of {}, {} slices", scale.nodes(), kSliceHeads, columns, kSlices);
  }
  /// Tokens of the graph, which do not repeat.
  Input tokens() const {
    Input made = c->rows(weights.tokens(), weights.columns());
    made.tensor = made.tensor.row_range(0, weights.tokens());
    return made;
  }
  Tensor like_nodes() const { return c->written(weights.keys.shape(), c->storage()); }
  Tensor like_tokens() const { return c->written({weights.tokens(), weights.columns()}, c->storage()); }
  SliceWeightGradients gradients() const {
    return {.d_keys = like_nodes(),
            .d_weight = c->accumulated(weights.weight.shape()),
            .d_bias = c->accumulated(weights.bias.shape()),
            .d_temperatures = c->accumulated(weights.temperatures.shape())};
  }
  static void expect(Case& checked, const SliceWeightGradients& d, const reference::SliceGradients& of) {
    checked.expect("d_keys", d.d_keys, of.d_keys, kSliceTerms, kSliceMagnitude);
    const auto total = [&](const char* what, const Tensor& actual, const Matrix& expected) {
      checked.expect_total(what, actual, expected, kSliceTerms, kSliceMagnitude);
    };
    total("d_weight", d.d_weight, of.d_weight);
    total("d_bias", d.d_bias, of.d_bias);
    total("d_temperatures", d.d_temperatures, of.d_temperatures);
  }
};

Workload described(Workload work, const std::string& text) {
  work.description = text;
  return work;
}

Workload tokens_forward_work(const std::shared_ptr<Case>& c) {
  const SliceWork w(c);
  const Input values = c->rows(c->scale().period, c->scale().width);
  const SliceTokensForward args{.weights = w.weights,
                                .values = values.tensor,
                                .tokens = w.like_tokens(),
                                .sizes = c->written({w.weights.tokens()}, c->accumulator())};
  Runtime& runtime = c->runtime();
  return described(row_workload(
                       c, work_of(args),
                       [&runtime, args] { kernels::slice_tokens_forward(args, runtime, runtime.stream()); },
                       [=](Case& checked) {
                         const reference::SliceTokens made = reference::slice_tokens(w.ref, values.base);
                         checked.expect("tokens", args.tokens, made.tokens, kSliceTerms, kSliceMagnitude);
                         checked.expect_total("sizes", args.sizes, made.sizes, kSliceTerms, kSliceMagnitude);
                       }),
                   w.text);
}

Workload tokens_backward_work(const std::shared_ptr<Case>& c) {
  const SliceWork w(c);
  const Input values = c->rows(c->scale().period, c->scale().width), d_tokens = w.tokens();
  const SliceTokensForward forward{.weights = w.weights,
                                   .values = values.tensor,
                                   .tokens = w.like_tokens(),
                                   .sizes = c->written({w.weights.tokens()}, c->accumulator())};
  const SliceTokensBackward args{.weights = w.weights,
                                 .values = values.tensor,
                                 .tokens = forward.tokens,
                                 .sizes = forward.sizes,
                                 .d_tokens = d_tokens.tensor,
                                 .d_values = w.like_nodes(),
                                 .gradients = w.gradients()};
  Runtime& runtime = c->runtime();
  const auto prepare = [&runtime, forward] {
    kernels::slice_tokens_forward(forward, runtime, runtime.stream());
  };
  const auto run = [&runtime, args] { kernels::slice_tokens_backward(args, runtime, runtime.stream()); };
  const auto expected = [=](Case& checked) {
    Matrix share = d_tokens.base;  // a copy's nodes are in the mean of all
    for (double& value : share.v) value /= static_cast<double>(checked.scale().copies);
    const auto g = reference::slice_tokens_backward(w.ref, values.base, share);
    checked.expect("d_values", args.d_values, g.d_other, kSliceTerms, kSliceMagnitude);
    SliceWork::expect(checked, args.gradients, g);
  };
  Workload work = described(row_workload(c, work_of(args), run, expected), w.text);
  work.check = [=] { return c->check(prepare, run, expected); };
  work.randomise = [=] {
    c->randomise();
    prepare();
  };
  return work;
}

Workload spread_work(const std::shared_ptr<Case>& c, bool backward) {
  const SliceWork w(c);
  const Input tokens = w.tokens();
  Runtime& runtime = c->runtime();
  if (!backward) {
    const SliceSpreadForward args{.weights = w.weights, .tokens = tokens.tensor, .out = w.like_nodes()};
    return described(row_workload(
                         c, work_of(args),
                         [&runtime, args] { kernels::slice_spread_forward(args, runtime, runtime.stream()); },
                         [=](Case& checked) {
                           checked.expect("out", args.out, reference::slice_spread(w.ref, tokens.base),
                                          kSliceTerms, kSliceMagnitude);
                         }),
                     w.text);
  }
  const Input d_out = c->rows(c->scale().period, c->scale().width);
  const SliceSpreadBackward args{.weights = w.weights,
                                 .tokens = tokens.tensor,
                                 .d_out = d_out.tensor,
                                 .d_tokens = w.like_tokens(),
                                 .gradients = w.gradients()};
  return described(row_workload(
                       c, work_of(args),
                       [&runtime, args] { kernels::slice_spread_backward(args, runtime, runtime.stream()); },
                       [=](Case& checked) {
                         const auto g = reference::slice_spread_backward(w.ref, tokens.base, d_out.base);
                         checked.expect_total("d_tokens", args.d_tokens, g.d_other, kSliceTerms,
                                              kSliceMagnitude);
                         SliceWork::expect(checked, args.gradients, g);
                       }),
                   w.text);
}

/// The tokens of one graph, or of fewer heads where the mesh has fewer copies.
Workload token_attention_work(const std::shared_ptr<Case>& c, bool backward) {
  const int64_t groups = std::min(c->scale().copies, kSliceHeads);
  const int64_t columns = c->scale().width / kSliceHeads;
  const auto rows = [&] {
    Input made = c->rows(kSlices, columns);
    made.tensor = made.tensor.row_range(0, groups * kSlices);
    return made;
  };
  const Input queries = rows(), keys = rows(), values = rows(), d_out = rows();
  const reference::Tokens ref{kSlices, queries.base, keys.base, values.base};
  const auto written = [&] { return c->written(queries.tensor.shape(), c->storage()); };
  const std::string text = fmt::format("{} heads of {}, {} slices", groups, columns, kSlices);
  Runtime& runtime = c->runtime();
  if (!backward) {
    const TokenAttentionForward args{.slices = kSlices,
                                     .queries = queries.tensor,
                                     .keys = keys.tensor,
                                     .values = values.tensor,
                                     .out = written()};
    return described(
        row_workload(
            c, work_of(args),
            [&runtime, args] { kernels::token_attention_forward(args, runtime, runtime.stream()); },
            [=](Case& checked) {
              checked.expect("out", args.out, reference::token_attention(ref), kSliceTerms, 1.0);
            }),
        text);
  }
  const TokenAttentionBackward args{.slices = kSlices,
                                    .queries = queries.tensor,
                                    .keys = keys.tensor,
                                    .values = values.tensor,
                                    .d_out = d_out.tensor,
                                    .d_queries = written(),
                                    .d_keys = written(),
                                    .d_values = written()};
  return described(
      row_workload(
          c, work_of(args),
          [&runtime, args] { kernels::token_attention_backward(args, runtime, runtime.stream()); },
          [=](Case& checked) {
            const auto g = reference::token_attention_backward(ref, d_out.base);
            checked.expect("d_queries", args.d_queries, g.d_queries, kSliceTerms, 4.0);
            checked.expect("d_keys", args.d_keys, g.d_keys, kSliceTerms, 4.0);
            checked.expect("d_values", args.d_values, g.d_values, kSliceTerms, 4.0);
          }),
      text);
}

}  // namespace

std::vector<Family> slice_families() {
  return {
      {"slice_tokens/forward", "slice_tokens_forward", tokens_forward_work},
      {"slice_tokens/backward", "slice_tokens_backward", tokens_backward_work},
      {"slice_spread/forward", "slice_spread_forward", [](const auto& c) { return spread_work(c, false); }},
      {"slice_spread/backward", "slice_spread_backward", [](const auto& c) { return spread_work(c, true); }},
      {"token_attention/forward", "token_attention_forward",
       [](const auto& c) { return token_attention_work(c, false); }},
      {"token_attention/backward", "token_attention_backward",
       [](const auto& c) { return token_attention_work(c, true); }}};
}

}  // namespace meshgrad::bench
