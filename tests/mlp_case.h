// SPDX-License-Identifier: Apache-2.0
// One MLP twice: as the judge takes it and as the kernels do, with the same stored values. For the tests of
// mlp and message_passing.
#pragma once
#include <utility>

#include "support.h"

namespace meshgrad::test {

struct MlpShape {
  std::vector<int64_t> inputs;
  int64_t hidden = 16;  ///< of no use with one layer
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
  reference::Mlp judge;
  std::vector<Matrix> input_values;
  MlpWeights weights;
  std::vector<MlpInput> inputs;

  /// Width of the first layer's sum.
  int64_t first_width() const { return shape.layers == 1 ? shape.out : shape.hidden; }
  /// Terms that a value of the last layer has behind it.
  int64_t terms() const;
  /// relu has a kink and a matrix product rounds: where it counts, values and weights are multiples of powers
  /// of two, so few that first sums are exact, also in 16 bits, and no sum falls on the other side of 0 than
  /// the judge's.
  bool exact() const { return shape.activation == Activation::relu || shape.activation == Activation::none; }
  /// True where a GPU's fused kernels take calls that save nothing: they round elsewhere than the general
  /// path, so that the two agree within tolerance, not bit for bit.
  bool fused(const Backend& backend) const;
  /// Values of the kind that this case's activation is tested with, as they are stored.
  Matrix values(RandomMatrices& random, int64_t value_rows, int64_t cols) const;
  /// A weight [in, out] of the same kind, for sums over `fan_in` terms.
  Matrix weight_values(RandomMatrices& random, int64_t in, int64_t out, int64_t fan_in) const;
  /// Unwritten tensors for what forward can keep; `keep_hidden` false leaves the pre-activations out.
  MlpSaved saved(Runtime& runtime, bool keep_hidden) const;
};

/// Gradients that already hold something, since kernels add to them.
struct StartedGradients {
  StartedGradients(Runtime& runtime, RandomMatrices& random, const MlpCase& mlp);

  std::vector<Tensor> first_weights;
  MlpWeightGradients weights;
  /// Name, tensor, and what it held at the start; in a fixed order.
  NamedTensors named() const;
  std::vector<Matrix> start;
  DType made_of;  ///< what the gradients are summed from
};

/// Checks what forward kept for backward: of relu, either z or max(z, 0).
void check_saved(const MlpSaved& saved, const reference::Mlp& mlp, const reference::MlpResult& judge,
                 int64_t terms);

/// The judge's gradients, in the order of StartedGradients::named().
std::vector<Matrix> in_order(const MlpCase& mlp, const reference::MlpGradients& gradients);

/// Checks every gradient against start + judge; `at_least` as difference() takes it.
void check_gradients(const StartedGradients& actual, const std::vector<Matrix>& judge, int64_t terms,
                     double at_least = 0.0);

/// Checks that two runs left the same bits.
void check_equal_bits(const NamedTensors& a, const NamedTensors& b);

}  // namespace meshgrad::test
