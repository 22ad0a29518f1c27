// SPDX-License-Identifier: Apache-2.0
// One MLP twice, for the reference implementation and for the kernels, with the same stored values. For the
// tests of mlp and message_passing.
#pragma once
#include <utility>

#include "support.h"

namespace meshgrad::test {

struct MlpShape {
  std::vector<int64_t> inputs;
  int64_t hidden = 16;  ///< unused with one layer
  int64_t layers = 2;
  int64_t out = 16;
  Activation activation = Activation::relu;
  Norm norm = Norm::none;
  std::string text() const;
};

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

struct MlpCase {
  MlpCase(Runtime& runtime, RandomMatrices& random, const MlpShape& shape, int64_t rows, DType dtype);

  MlpShape shape;
  int64_t rows;
  DType dtype;
  reference::Mlp ref;
  std::vector<Matrix> input_values;
  MlpWeights weights;
  std::vector<MlpInput> inputs;

  /// Width of z_1.
  int64_t first_width() const { return shape.layers == 1 ? shape.out : shape.hidden; }
  /// Number of terms summed for an element of the last layer, for tolerance().
  int64_t terms() const;
  /// relu has a kink and matrix multiplication rounds. Where it matters, values and weights are multiples of
  /// powers of two with few digits, so that the first sums are exact even in 16 bits and rounding cannot move
  /// one across 0.
  bool exact() const { return shape.activation == Activation::relu || shape.activation == Activation::none; }
  /// True if a GPU's fused kernels handle calls that save nothing: they round in other places than the
  /// general kernels, so the two agree within tolerance, not bit for bit.
  bool fused(const Backend& backend) const;
  /// Values of the kind that this case's activation is tested with, as they are stored.
  Matrix values(RandomMatrices& random, int64_t value_rows, int64_t cols) const;
  /// A weight [in, out] of the same kind, for sums over `fan_in` terms.
  Matrix weight_values(RandomMatrices& random, int64_t in, int64_t out, int64_t fan_in) const;
  /// Unwritten tensors for what forward can save; with `keep_hidden` false without pre-activations.
  MlpSaved saved(Runtime& runtime, bool keep_hidden) const;
};

/// Gradients with initial values that are not zero, since kernels add to them.
struct StartedGradients {
  StartedGradients(Runtime& runtime, RandomMatrices& random, const MlpCase& mlp);

  std::vector<Tensor> first_weights;
  MlpWeightGradients weights;
  /// Name, tensor and initial value, in a fixed order.
  NamedTensors named() const;
  std::vector<Matrix> start;
  DType made_of;  ///< storage type of the values that they are summed from
};

/// Checks what forward saved for backward: with relu either z or max(z, 0).
void check_saved(const MlpSaved& saved, const reference::Mlp& mlp, const reference::MlpResult& ref,
                 int64_t terms);

/// The reference's gradients, in the order of StartedGradients::named().
std::vector<Matrix> in_order(const MlpCase& mlp, const reference::MlpGradients& gradients);

/// Checks every gradient against start + reference; `at_least` as difference() takes it.
void check_gradients(const StartedGradients& actual, const std::vector<Matrix>& ref, int64_t terms,
                     double at_least = 0.0);

/// Checks that two runs gave the same bits.
void check_equal_bits(const NamedTensors& a, const NamedTensors& b);

}  // namespace meshgrad::test
