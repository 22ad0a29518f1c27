// SPDX-License-Identifier: Apache-2.0
// What a model on graphs chooses: how edges are scored (attention.h), and how nodes become one row a graph
// (graph_pool.h).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace meshgrad {

enum class AttentionScore : uint8_t { gat, gatv2, dot };
inline constexpr int64_t kMaxHeads = 16;  ///< of an attention

// Of slice attention (slice_attention.h).
inline constexpr int64_t kMaxSlices = 128;
inline constexpr int64_t kMaxSliceColumns = 128;   ///< of a head
inline constexpr int64_t kMaxSliceProduct = 4096;  ///< of both: what a thread block holds in shared memory
constexpr bool slices_fit(int64_t slices, int64_t columns) {
  return slices >= 1 && slices <= kMaxSlices && columns >= 1 && columns <= kMaxSliceColumns &&
         slices * columns <= kMaxSliceProduct;
}
/// What slices_fit takes, in words.
inline std::string slices_that_fit() {
  return "1 to " + std::to_string(kMaxSlices) + " slices of 1 to " + std::to_string(kMaxSliceColumns) +
         " columns a head, of which at most " + std::to_string(kMaxSliceProduct) + " together";
}

enum class GraphPool : uint8_t { sum, mean, max };
constexpr std::string_view name_of(GraphPool pool) {
  constexpr std::string_view kNames[] = {"sum", "mean", "max"};
  return kNames[static_cast<int>(pool)];
}

}  // namespace meshgrad
#pragma GCC visibility pop
