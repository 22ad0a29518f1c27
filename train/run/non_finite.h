// SPDX-License-Identifier: Apache-2.0
// Where a number first is not finite as a batch is computed: what the report of a failed run is made of.
#pragma once
#include <meshgrad/train/planning/recompute.h>

#include <optional>
#include <vector>

namespace meshgrad {

struct NonFinite {
  enum class Phase : uint8_t { given, forward, backward };
  Phase phase = Phase::given;
  std::string scope;   ///< the block: "processor.3"; of what was given, "batch" or "parameters"
  std::string op;      ///< "edge_update"; empty for what was given
  std::string tensor;  ///< "aggregate", "gradient of edges", or a parameter's name
  int64_t row = 0;     ///< the first that holds one
  double value = 0.0;  ///< the first one
  int64_t count = 0;   ///< how many there are
  int64_t elements = 0;

  /// All of that in a line.
  std::string text() const;
  /// What a user who trains in `precision` can do about it.
  std::string fix(DType precision) const;
};

/// Computes a batch's forward pass, loss, and backward pass from `seed` = loss scale / window weight, and
/// looks at what is given, at what each op writes, and at the weights' gradients behind each op. Waits for
/// the device all the time. Gradients are added to the parameters', and parts are computed again, as in a
/// step.
std::optional<NonFinite> find_non_finite(Runtime& runtime, const MeshGraphNet& model, const Batch& batch,
                                         double seed, const Recomputation& recomputation = {});

}  // namespace meshgrad
