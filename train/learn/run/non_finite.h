// SPDX-License-Identifier: Apache-2.0
// Where a number first is not finite as a batch is computed: what the report of a failed run is made of.
#pragma once
#include <meshgrad/train/learn/run/batch_loader.h>

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

/// Runs a batch's forward pass, loss, and backward pass from `seed` = loss scale / window weight, and
/// searches what is given, what each op writes, and the weights' gradients after each op. Synchronises with
/// the device after each op. Gradients are added to the parameters', and segments are recomputed, as in a
/// step.
std::optional<NonFinite> find_non_finite(Runtime& runtime, const Task& task, const Model& model,
                                         const Batch& batch, double seed,
                                         const Recomputation& recomputation = {});

/// The same over the batches of the window of an optimizer step, from zeroed gradients.
std::optional<NonFinite> find_non_finite_in_window(Runtime& runtime, const Config& config, const Task& task,
                                                   Model& model, BatchLoader& loader, int64_t step,
                                                   double loss_scale, Normalizers& normalizers,
                                                   const Recomputation& recomputation);

}  // namespace meshgrad
