// SPDX-License-Identifier: Apache-2.0
// What a model on graphs chooses: how edges are scored (attention.h), and how nodes become one row a graph
// (graph_pool.h).
#pragma once
#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)
namespace meshgrad {

enum class AttentionScore : uint8_t { gat, gatv2, dot };
inline constexpr int64_t kMaxHeads = 16;  ///< of an attention

enum class GraphPool : uint8_t { sum, mean, max };
constexpr std::string_view name_of(GraphPool pool) {
  constexpr std::string_view kNames[] = {"sum", "mean", "max"};
  return kNames[static_cast<int>(pool)];
}

}  // namespace meshgrad
#pragma GCC visibility pop
