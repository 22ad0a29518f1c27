// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/recompute/checkpoint.h>

#include <algorithm>

namespace meshgrad {
namespace {

constexpr std::string_view kOps[] = {"linear",         "activation",     "norm",          "add",
                                     "concat",         "segment_sum",    "mlp",           "edge_update",
                                     "halo_exchange",  "weighted_sum",   "graph_pool",    "add_bias",
                                     "dropout",        "mean_of_heads",  "embedding",     "maximum",
                                     "edge_attention", "head_scores",    "sample_latent", "slice_tokens",
                                     "slice_spread",   "token_attention"};

uint32_t bit_of(std::string_view op) {
  const auto* const found = std::find(std::begin(kOps), std::end(kOps), op);
  return found == std::end(kOps) ? 0 : 1U << (found - std::begin(kOps));
}

}  // namespace

std::span<const std::string_view> SavePolicy::names() { return kOps; }

SavePolicy SavePolicy::outputs_of(std::string_view op) {
  const uint32_t bit = bit_of(op);
  if (bit != 0) return SavePolicy(bit);
  std::string known;
  for (const std::string_view name : kOps) known += (known.empty() ? "" : ", ") + std::string(name);
  throw invalid_argument("SavePolicy", "an op: " + known, std::string(op));
}

bool SavePolicy::covers(const OpUse& use) const {
  if (ops_ == 0) return false;
  return (use.matmul && (ops_ & kMatmuls) != 0) || (ops_ & bit_of(use.op)) != 0;
}

}  // namespace meshgrad
