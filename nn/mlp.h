// SPDX-License-Identifier: Apache-2.0
// Mlp: the layer that every part of a MeshGraphNet is made of.
#pragma once
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/model.h>

namespace meshgrad {

/// Linear, activation, ..., linear, and a norm unless it is the decoder's. `inputs` are the widths of the
/// parts that the first layer takes, in the order in which the model calls them; `file_order` says at which
/// place of the concatenation each stands, and so which rows of the first weight are its own.
struct MlpOptions {
  std::vector<int64_t> inputs;
  std::vector<size_t> file_order;  ///< empty: as called
  int64_t hidden = 128;
  int64_t out = 128;
  int64_t hidden_layers = 2;
  Activation activation = Activation::relu;
  Norm norm = Norm::layer;
};

class Mlp {
 public:
  /// Declares the parameters NAME.linear_K.weight|bias and NAME.norm.weight|bias.
  Mlp(ParameterSet& parameters, const std::string& name, const MlpOptions& options);

  /// The parameters as ops take them; after ParameterSet::allocate.
  MlpParameters parameters(const ParameterSet& set) const;

  /// residual + mlp(inputs); `residual` may be absent. `next_edges`: as ops::mlp has it.
  Variable forward(Tape& tape, const ParameterSet& set, const PerInput<Variable>& inputs,
                   const Variable& residual, ComputePath path, bool keep_hidden,
                   const Mlp* next_edges = nullptr) const;
  /// The op-by-op path on a concatenation that is already written: columns in the file's order.
  Variable forward_concatenated(Tape& tape, const ParameterSet& set, const Variable& x) const;
  /// Calls' inputs in the order of the concatenation.
  const std::vector<size_t>& file_order() const { return order_; }

 private:
  MlpOptions options_;
  std::vector<size_t> order_;       // order_[place in the concatenation] = input
  std::vector<int64_t> first_row_;  // per input: its first row of the first weight
  std::vector<size_t> weights_, biases_;
  size_t gain_ = 0, norm_bias_ = 0;
};

}  // namespace meshgrad
