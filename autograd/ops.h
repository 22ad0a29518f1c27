// SPDX-License-Identifier: Apache-2.0
// The differentiable ops. Each runs a kernel family forward, and records what its backward needs. Shapes,
// dtypes and errors are those of the kernels they call. Every op here is in gradcheck's list.
#pragma once
#include <meshgrad/autograd/tape.h>
#include <meshgrad/kernels/graph.h>
#include <meshgrad/kernels/mlp.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// y = x W + b; `bias` may be absent.
Variable linear(Tape& tape, const Variable& x, const Weight& weight, const Weight& bias);

/// y = act(x)
Variable activation(Tape& tape, const Variable& x, Activation kind);

/// y = norm(x) * gain + bias, row by row; `bias` is absent with rms.
Variable norm(Tape& tape, const Variable& x, Norm kind, const Weight& gain, const Weight& bias,
              double epsilon);

/// a + b, of one shape.
Variable add(Tape& tape, const Variable& a, const Variable& b);

/// One part of a concatenation: the columns of x, or of x's rows picked by the graph.
struct ConcatPart {
  enum class Rows : uint8_t { own, sender, receiver };
  Variable x;
  Rows rows = Rows::own;
};
/// [rows, sum of the parts' widths]: the parts side by side. With sender and receiver parts, rows are the
/// graph's edges, and the graph must outlive the tape's entries.
Variable concat(Tape& tape, const PerInput<ConcatPart>& parts, const Graph* graph = nullptr);

/// out[r] = sum over the edges of receiver r: [edges, width] -> [owned_nodes, width].
Variable segment_sum(Tape& tape, const Variable& x, const Graph& graph);

/// An MLP's weights as the ops take them: `first` holds, per input, a row range of the first weight.
struct MlpParameters {
  PerInput<Weight> first;
  Weight first_bias;
  PerLayer<Weight> weights;  ///< layers 1..
  PerLayer<Weight> biases;
  Activation activation = Activation::relu;
  Norm norm = Norm::none;
  Weight gain, norm_bias;
  double epsilon = 1e-5;
};

/// The fused MLP over several inputs: out = residual + mlp(inputs). `residual` may be absent. With
/// `keep_hidden` false, backward recomputes hidden activations in the tile: same bits, less memory.
Variable mlp(Tape& tape, const PerInput<Variable>& inputs, const MlpParameters& parameters,
             const Variable& residual, bool keep_hidden);

struct EdgeUpdateOptions {
  bool aggregate_after_residual = false;
  bool keep_hidden = true;
  bool edges_out_needed = true;  ///< false: nobody reads the new edges (the last block)
};
struct EdgeUpdate {
  Variable edges;      ///< [edges, width]; absent when not needed
  Variable aggregate;  ///< [owned_nodes, width]
};
/// The fused edge half of a block: `parameters.first` = {sender, receiver, edge} row ranges of the first
/// weight. The graph must outlive the tape's entries.
EdgeUpdate edge_update(Tape& tape, const Graph& graph, const Variable& nodes, const Variable& edges,
                       const MlpParameters& parameters, const EdgeUpdateOptions& options);

/// Sum of squared errors over the rows whose mask is not 0, and how many those are: both f64 [1]. Where a
/// segment is run again for its backward, the weight is not written.
struct LossSum {
  Variable sum;
  Tensor weight;
};
LossSum masked_loss(Tape& tape, const Variable& prediction, const Tensor& target, const Tensor& mask);
/// The sum of the squares of errors that are there already, those of several predictions together, added to
/// `before`, another loss's sum, which may be absent. The weight is that of these errors alone, which are
/// kMaxMlpInputs at most.
LossSum masked_loss(Tape& tape, const Variable& before, const PerInput<Variable>& errors, const Tensor& mask);

/// before + prediction - target where mask is not 0, else 0, in the accumulator of the prediction's dtype:
/// how far a state that was `before` off is off after the prediction. `before` may be absent, `target`
/// undefined: 0.
Variable deviation(Tape& tape, const Variable& before, const Variable& prediction, const Tensor& target,
                   const Tensor& mask);

/// `given` with shift[:, source[c]] * ratio[c] added to each column c whose source is not -1: a model's
/// inputs from the data, moved to its own state.
Variable shift_columns(Tape& tape, const Tensor& given, const Variable& shift, const Tensor& source,
                       const Tensor& ratio);

}  // namespace meshgrad
#pragma GCC visibility pop
