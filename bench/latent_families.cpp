// SPDX-License-Identifier: Apache-2.0
// Rows of latent values and of the links that they predict: a list of pairs, and all pairs of graphs that
// have as many nodes as a period.
#include <meshgrad/kernels/latent.h>
#include <meshgrad/kernels/pair_loss.h>

#include <fmt/format.h>

#include "families.h"
#include "reference/latent.h"

namespace meshgrad::bench {
namespace {

constexpr int64_t kLatent = 16;
constexpr double kLatentSeed = 0.25;
constexpr double kExponential = 8.0;  // a bound of what values between -1 and 1 lead to

Tensor seed_of(Runtime& runtime) {
  return Tensor::from<double>(runtime, std::vector<double>{kLatentSeed}, {1}, Tag::data);
}

Workload sample_work(const std::shared_ptr<Case>& c, bool backward) {
  const RowSizes n(*c);
  const Input moments = c->rows(n.base, 2 * kLatent), d_z = c->rows(n.base, kLatent);
  std::vector<int64_t> keys(static_cast<size_t>(n.rows));
  for (int64_t i = 0; i < n.rows; ++i) keys[static_cast<size_t>(i)] = i % n.base;
  const NoiseKey key{.row_keys = Tensor::from<int64_t>(c->runtime(), keys, {n.rows}, Tag::data)};
  const Stream& stream = c->stream();
  if (!backward) {
    const SampleLatentForward args{.rows = n.rows,
                                   .moments = moments.tensor,
                                   .z = c->written({n.rows, kLatent}, c->storage()),
                                   .key = key};
    return row_workload(
        c, work_of(args), [&stream, args] { kernels::sample_latent_forward(args, stream); },
        [=](Case& checked) {
          const Matrix noise = reference::latent_noise(0, 0, {}, n.base, kLatent);
          checked.expect("z", args.z, reference::sample_latent(moments.base, noise), 2, kExponential);
        });
  }
  const SampleLatentBackward args{.rows = n.rows,
                                  .moments = moments.tensor,
                                  .d_z = d_z.tensor,
                                  .d_moments = c->written({n.rows, 2 * kLatent}, c->storage()),
                                  .key = key};
  return row_workload(
      c, work_of(args), [&stream, args] { kernels::sample_latent_backward(args, stream); },
      [=](Case& checked) {
        const Matrix noise = reference::latent_noise(0, 0, {}, n.base, kLatent);
        checked.expect("d_moments", args.d_moments,
                       reference::sample_latent_backward(moments.base, noise, d_z.base), 2, kExponential);
      });
}

Workload latent_loss_work(const std::shared_ptr<Case>& c, bool backward) {
  const RowSizes n(*c);
  const Input moments = c->rows(n.base, 2 * kLatent);
  Runtime& runtime = c->runtime();
  const std::vector<float> ones(static_cast<size_t>(n.rows), 1.0F), base(static_cast<size_t>(n.base), 1.0F);
  const Tensor weights = Tensor::from<float>(runtime, ones, {n.rows}, Tag::data);
  if (!backward) {
    const LatentLossForward args{.rows = n.rows,
                                 .moments = moments.tensor,
                                 .weights = weights,
                                 .sum = Tensor::zeros(runtime, {1}, DType::f64, Tag::data)};
    return row_workload(
        c, work_of(args), [&runtime, args] { kernels::latent_loss_forward(args, runtime, runtime.stream()); },
        [=](Case& checked) {
          checked.expect_total("sum", args.sum, Matrix(1, 1, reference::latent_loss(moments.base, base)),
                               n.base * kLatent);
        });
  }
  const LatentLossBackward args{.rows = n.rows,
                                .moments = moments.tensor,
                                .weights = weights,
                                .seed = seed_of(runtime),
                                .d_moments = c->written({n.rows, 2 * kLatent}, c->storage())};
  return row_workload(
      c, work_of(args), [&runtime, args] { kernels::latent_loss_backward(args, runtime.stream()); },
      [=](Case& checked) {
        checked.expect("d_moments", args.d_moments,
                       reference::latent_loss_backward(moments.base, base, kLatentSeed), 2, kExponential);
      });
}

/// Graphs of one size, whose nodes each have a pair with the one before and the one after.
reference::Pairs rings(int64_t graphs, int64_t size, bool all) {
  reference::Pairs pairs{
      .starts = {0}, .offsets = {0}, .others = {}, .linked = {}, .weights = {}, .all = all};
  for (int64_t graph = 0; graph < graphs; ++graph) {
    const int64_t begin = graph * size;
    pairs.starts.push_back(static_cast<int32_t>(begin + size));
    pairs.weights.insert(pairs.weights.end(), {0.5F, 0.25F});
    for (int64_t i = 0; i < size; ++i) {
      for (const int64_t step : {int64_t{1}, size - 1}) {
        pairs.others.push_back(static_cast<int32_t>(begin + (i + step) % size));
        if (!all) pairs.linked.push_back(static_cast<uint8_t>((i + (step == 1 ? 0 : size - 1)) % size % 2));
      }
      pairs.offsets.push_back(static_cast<int32_t>(std::ssize(pairs.others)));
    }
  }
  return pairs;
}

Workload pair_work(const std::shared_ptr<Case>& c, bool all, bool backward) {
  const int64_t nodes = c->scale().nodes(), size = c->scale().period;
  const Input z = c->rows(size, kLatent);
  const reference::Pairs whole = rings(nodes / size, size, all), base = rings(1, size, all);
  Runtime& runtime = c->runtime();
  const auto index = [&](const std::vector<int32_t>& values) {
    return Tensor::from<int32_t>(runtime, values, {std::ssize(values)}, Tag::data);
  };
  NodePairs pairs{.graph_starts = index(whole.starts),
                  .offsets = index(whole.offsets),
                  .others = index(whole.others),
                  .weights = Tensor::from<float>(runtime, whole.weights, {nodes / size, 2}, Tag::data),
                  .all_pairs = all};
  if (!all)
    pairs.linked = Tensor::from<uint8_t>(runtime, whole.linked, {std::ssize(whole.linked)}, Tag::data);
  const int64_t terms = (all ? size : 2) * kLatent;
  Workload work;
  if (!backward) {
    const PairLossForward args{.rows = nodes,
                               .z = z.tensor,
                               .pairs = pairs,
                               .sum = Tensor::zeros(runtime, {1}, DType::f64, Tag::data)};
    work = row_workload(
        c, work_of(args), [&runtime, args] { kernels::pair_loss_forward(args, runtime, runtime.stream()); },
        [=](Case& checked) {
          checked.expect_total("sum", args.sum, Matrix(1, 1, reference::pair_loss(z.base, base)),
                               size * terms);
        });
  } else {
    const PairLossBackward args{.rows = nodes,
                                .z = z.tensor,
                                .pairs = pairs,
                                .seed = seed_of(runtime),
                                .d_z = c->written({nodes, kLatent}, c->storage())};
    work = row_workload(
        c, work_of(args), [&runtime, args] { kernels::pair_loss_backward(args, runtime, runtime.stream()); },
        [=](Case& checked) {
          checked.expect("d_z", args.d_z, reference::pair_loss_backward(z.base, base, kLatentSeed), terms,
                         1.0);
        });
  }
  work.description = fmt::format("{} nodes of {}, {} a graph", nodes, kLatent, size);
  return work;
}

}  // namespace

std::vector<Family> latent_families() {
  return {
      {"sample_latent/forward", "sample_latent_forward", [](const auto& c) { return sample_work(c, false); }},
      {"sample_latent/backward", "sample_latent_backward",
       [](const auto& c) { return sample_work(c, true); }},
      {"latent_loss/forward", "latent_loss_forward",
       [](const auto& c) { return latent_loss_work(c, false); }},
      {"latent_loss/backward", "latent_loss_backward",
       [](const auto& c) { return latent_loss_work(c, true); }},
      {"pair_loss/list", "pair_loss_forward", [](const auto& c) { return pair_work(c, false, false); }},
      {"pair_loss/list_backward", "pair_loss_backward",
       [](const auto& c) { return pair_work(c, false, true); }},
      {"pair_loss/all", "pair_loss_forward", [](const auto& c) { return pair_work(c, true, false); }},
      {"pair_loss/all_backward", "pair_loss_backward",
       [](const auto& c) { return pair_work(c, true, true); }}};
}

}  // namespace meshgrad::bench
