// SPDX-License-Identifier: Apache-2.0
// Which stages of a model are computed again in the backward pass: what the keys recompute.* stand for.
#pragma once
#include <meshgrad/train/batch_memory.h>
#include <meshgrad/train/config.h>

namespace meshgrad {

struct Recomputation {
  std::vector<RecomputedStages> stages;
  bool check = false;     ///< compare what is computed again, bit for bit
  int64_t predicted = 0;  ///< bytes that a batch takes, if that was asked for
};

/// The stages that recompute.include names, in order. Throws ConfigError for a name that fits none.
std::vector<bool> included_stages(const Config& config, const MeshGraphNet& model);

/// Segments of recompute.mode = "block", "every" or "sqrt"; none when it is "off". One that ends the model is
/// left out: its backward pass comes at once. Encoder and decoder are segments of their own.
std::vector<RecomputedStages> uniform_segments(const Config& config, const MeshGraphNet& model);

/// What recompute.* make of a model, for batches of up to `largest` on the runtime's device. "budget" and
/// "auto" run blocks on it, to measure them. Throws ConfigError when a budget cannot be kept to.
Recomputation choose_recomputation(Runtime& runtime, const Config& config, const BatchSizes& largest,
                                   const MeshGraphNet& model);

/// For people; empty when nothing is computed again.
std::string describe(const Recomputation& recomputation, const MeshGraphNet& model);

}  // namespace meshgrad
