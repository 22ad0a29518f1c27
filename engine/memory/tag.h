// SPDX-License-Identifier: Apache-2.0
// Tag: what a piece of memory is for. Every allocation carries one, and statistics and reports add up by tag.
#pragma once
#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)
namespace meshgrad {

enum class Tag : uint8_t {
  parameters,     ///< weights: FP32 master weights and their copies in the storage dtype
  embed,          ///< of them, tables of identifiers
  gradients,      ///< of parameters
  optimizer,      ///< moments, averages, step counters
  activations,    ///< values of the forward pass, and gradients with respect to them
  recompute,      ///< values of a segment's second run (activation recomputation)
  workspace,      ///< scratch memory of one kernel call
  data,           ///< batches, graphs, normalisation statistics
  communication,  ///< buffers of collectives between processes
  host            ///< anything else
};
inline constexpr int kTagCount = 10;
/// "parameters", "gradients", ...
std::string_view name_of(Tag tag);

}  // namespace meshgrad
#pragma GCC visibility pop
