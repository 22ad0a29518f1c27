// SPDX-License-Identifier: Apache-2.0
// Gradient checks: the list of all differentiable ops, and their gradients against finite differences.
#pragma once
#include <meshgrad/autograd/ops.h>

#include <string>
#include <vector>

namespace meshgrad {

/// An op on sample inputs: calls it on the tape and returns all its floating outputs.
struct OpSample {
  std::string op;                ///< the name the op records
  std::string variant;           ///< "relu", "layer, residual", ...
  std::vector<Variable> inputs;  ///< leaves whose gradients are checked
  std::vector<Weight> weights;   ///< weights whose gradients are checked
  std::function<std::vector<Variable>(Tape&)> run;
};

/// Samples of every op in ops.h, stored in `dtype` on the CPU, with inputs drawn from `seed`: values of so
/// few digits that every dtype holds the same. A graph used by a sample lives as long as its `run`.
std::vector<OpSample> all_op_samples(Runtime& runtime, uint64_t seed, DType dtype = DType::f64);

/// Gradients of sum_k c_k y_k, with fixed random c: of the sample's inputs, then of its weights. One that
/// nothing reached is undefined.
std::vector<Tensor> gradients_of(Runtime& runtime, const OpSample& sample, uint64_t seed);

struct GradientCheck {
  double largest_error = 0.0;  ///< largest |analytic - central difference| over (1 + |analytic|)
  std::string worst;           ///< "input 0, element 5"
  int64_t elements = 0;        ///< how many derivatives were compared
};

/// Compares gradients_of a sample in f64 to central differences of step 1e-6 in every element of every input
/// and weight: errors are near 1e-9 for smooth functions.
GradientCheck check_gradients(Runtime& runtime, const OpSample& sample, uint64_t seed);

}  // namespace meshgrad
