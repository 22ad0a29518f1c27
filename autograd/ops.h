// SPDX-License-Identifier: Apache-2.0
// The differentiable ops. Each calls a kernel and records its backward function on the tape. Shapes, dtypes
// and errors are those of the kernels' headers. Values are [rows, width] in the storage dtype; Weight values
// [in, out] or [width]. Graphs passed by reference must outlive the tape's entries. tests/gradcheck.cpp lists
// every op here.
#pragma once
#include <meshgrad/autograd/tape.h>
#include <meshgrad/kernels/activation.h>
#include <meshgrad/kernels/dropout_key.h>
#include <meshgrad/kernels/graph.h>
#include <meshgrad/kernels/graph_choices.h>
#include <meshgrad/kernels/loss_form.h>
#include <meshgrad/kernels/mlp.h>
#include <meshgrad/kernels/node_pairs.h>
#include <meshgrad/kernels/noise_key.h>
#include <meshgrad/kernels/teacher_output.h>

#include <memory>

#pragma GCC visibility push(default)
namespace meshgrad {

/// One part of a concatenation: the columns of x, or of rows of x gathered by the graph's senders or
/// receivers.
struct ConcatPart {
  enum class Rows : uint8_t { own, sender, receiver };
  Variable x;
  Rows rows = Rows::own;
};

/// An MLP's weights. The first layer's weight is split by rows, one part per input, so that the inputs need
/// not be concatenated.
struct MlpParameters {
  PerInput<Weight> first;  ///< [width of the input, width of layer 0]
  Weight first_bias;
  PerLayer<Weight> weights;  ///< of layers 1 and up
  PerLayer<Weight> biases;
  Activation activation = Activation::relu;
  Norm norm = Norm::none;  ///< after the last layer
  Weight gain, norm_bias;
  double epsilon = 1e-5;
};

struct Halo;      // halo.h
class HaloRound;  // halo.h

struct EdgeUpdateOptions {
  bool aggregate_after_residual = false;  ///< sum e + mlp(e) at the receivers instead of mlp(e)
  bool keep_hidden = true;                ///< save hidden activations for backward
  bool edges_out_needed = true;           ///< false when the new edges are unused (the last block)
  /// The round in which the nodes' ghosts are exchanged. This op finishes it, and on the CPU computes the
  /// edges of interior nodes meanwhile. Only for the first op that reads the nodes.
  std::shared_ptr<HaloRound> round;
};

struct EdgeUpdate {
  Variable edges;      ///< [edges, width]; absent without edges_out_needed
  Variable aggregate;  ///< [owned_nodes, width]
};

/// What edge_attention computes, in the terms of kernels/attention.h. Absent variables are undefined tensors.
struct AttentionInputs {
  AttentionScore score = AttentionScore::gat;
  int64_t heads = 1;
  bool self_edges = false;
  double slope = kLeakySlope;
  Variable values;                          ///< [nodes, heads * columns of a head]
  Variable sender_scores, receiver_scores;  ///< gat: [nodes, heads] and [owned_nodes, heads], by head_scores
  Variable keys, queries;                   ///< gatv2, dot; without keys the values are the keys
  Weight weight;                            ///< gatv2: [width]
  Variable edge_scores;                     ///< gat, dot: [edges, heads], may be absent
  DropoutKey dropout = {};                  ///< rate 0 where no training step runs
};

/// What makes the soft weights of slice_tokens and slice_spread, in the terms of kernels/slice_attention.h.
struct SliceInputs {
  int64_t heads = 1;
  Tensor graph_starts;        ///< GraphBatch::graph_starts
  Variable keys;              ///< [nodes, heads * columns of a head]
  Weight weight;              ///< [columns of a head, slices]
  Weight bias, temperatures;  ///< [slices], [heads]
};

struct LossSum {
  Variable sum;   ///< f64 [1]: the sum of what errors cost over the rows whose mask is not 0
  Tensor weight;  ///< f64 [1]: the weight of those rows; not written when recomputation skips the op
};

namespace ops {

/// y = x W + b, [rows, in] -> [rows, out]; `bias` may be absent.
Variable linear(Tape& tape, const Variable& x, const Weight& weight, const Weight& bias);

/// y = activation(x), elementwise.
Variable activation(Tape& tape, const Variable& x, Activation kind);

/// y = x + bias, row by row.
Variable add_bias(Tape& tape, const Variable& x, const Weight& bias);

/// y = x / (1 - rate) where the key keeps a value, else 0; x itself with a rate of 0. Nothing is saved: the
/// mask is a function of the key. Throws InvalidArgument for a rate outside [0, 1).
Variable dropout(Tape& tape, const Variable& x, const DropoutKey& key);

/// y = norm(x) * gain + bias, row by row; `bias` is absent for rms. `epsilon` is added to the variance.
Variable norm(Tape& tape, const Variable& x, Norm kind, const Weight& gain, const Weight& bias,
              double epsilon);

/// a + b, of the same shape.
Variable add(Tape& tape, const Variable& a, const Variable& b);

/// The larger of a and b, element by element. Where they are equal, a has the gradient.
Variable maximum(Tape& tape, const Variable& a, const Variable& b);

/// The parts side by side: [rows, sum of widths]. With sender or receiver parts, rows are the graph's
/// edges. Throws InvalidArgument without parts, or when parts gather and there is no graph.
Variable concat(Tape& tape, const PerInput<ConcatPart>& parts, const Graph* graph = nullptr);

/// out[r] = sum over the edges of receiver r: [edges, width] -> [owned_nodes, width].
Variable segment_sum(Tape& tape, const Variable& x, const Graph& graph);

/// out[r] = sum over the edges e of receiver r of weights[e] x[sender of e]: [nodes, width] ->
/// [owned_nodes, width]. `weights`: f32 [edges], in the graph's order, without a gradient. The graph may be
/// bipartite.
Variable weighted_sum(Tape& tape, const Variable& x, const Graph& graph, const Tensor& weights);

/// The sum, mean or maximum of the rows of each graph's nodes: [nodes, width] -> [graphs, width].
/// `graph_starts`: i32 [graphs + 1], as GraphBatch has it. A maximum's gradient goes to the first node that
/// has it.
Variable graph_pool(Tape& tape, const Variable& x, const Tensor& graph_starts, GraphPool pool);

/// The same of the edges of each receiver: [edges, width] -> [owned_nodes, width]; 0 without edges. On a tape
/// it is a graph_pool.
Variable edge_pool(Tape& tape, const Variable& x, const Graph& graph, GraphPool pool);

/// The mean of an attention's heads: [rows, heads * width] -> [rows, width].
Variable mean_of_heads(Tape& tape, const Variable& x, int64_t heads);

/// Rows of a table, [identifiers, width]: out[i] is that of the sender of edge i. `identifiers`: a bipartite
/// graph with an edge for each row of the result, from its identifier.
Variable embedding(Tape& tape, const Weight& table, const Graph& identifiers);

/// Fused MLP over several inputs: out = residual + mlp(inputs). `residual` may be absent. Without
/// `keep_hidden`, backward recomputes hidden activations: the same bits, less memory. `next_edges`: the
/// parameters of the edge_update after this op, where that reads the output as its nodes; a GPU's kernel may
/// then make its node terms in the same launch.
Variable mlp(Tape& tape, const PerInput<Variable>& inputs, const MlpParameters& parameters,
             const Variable& residual, bool keep_hidden, const MlpParameters* next_edges = nullptr);

/// Fused edge half of a message-passing block (kernels/message_passing.h has the formulas):
/// `parameters.first` = {sender, receiver, edge} parts of the first weight. Edges without values, [edges, 0],
/// get their first ones here: e' = mlp(...), without a residual. Throws InvalidArgument for another number of
/// parts.
EdgeUpdate edge_update(Tape& tape, const Graph& graph, const Variable& nodes, const Variable& edges,
                       const MlpParameters& parameters, const EdgeUpdateOptions& options);

/// Weighted means of senders' values by receiver, [owned_nodes, width]; the weights are a softmax of scores
/// over a receiver's edges, head by head. Saves [owned_nodes, heads] of the softmax, and reads its output in
/// backward.
Variable edge_attention(Tape& tape, const Graph& graph, const AttentionInputs& inputs);

/// scores[n, h] = sum over the columns of head h of x * weight, in the accumulator dtype: `weight` is
/// [width].
Variable head_scores(Tape& tape, const Variable& x, const Weight& weight, int64_t heads);

/// Of each graph, head and slice a mean of the nodes' values, [nodes, width], by their soft weights on the
/// slices: [graphs * heads * slices, columns of a head].
Variable slice_tokens(Tape& tape, const SliceInputs& slices, const Variable& values);
/// The inverse: of each node a mean of its graph's tokens, by the same weights: [nodes, width].
Variable slice_spread(Tape& tape, const SliceInputs& slices, const Variable& tokens);
/// Attention of each token over those of its graph and head, which are `slices` rows: softmax(q k / sqrt(D))
/// v.
Variable token_attention(Tape& tape, int64_t slices, const Variable& queries, const Variable& keys,
                         const Variable& values);

/// Squared error of the prediction, [rows, width], where the mask, u8 [rows], is not 0, or what `form` makes
/// of it. Throws InvalidArgument without a target.
LossSum masked_loss(Tape& tape, const Variable& prediction, const Tensor& target, const Tensor& mask,
                    const LossForm& form = {});
/// The same for errors that are already computed: the sum over all `errors` plus `before`, the sum of an
/// earlier loss, which may be absent. The weight counts only the rows of `errors`. At least one error, at
/// most kMaxMlpInputs, or InvalidArgument is thrown.
LossSum masked_loss(Tape& tape, const Variable& before, const PerInput<Variable>& errors, const Tensor& mask,
                    const LossForm& form = {});

/// Cross entropy of the logits, [rows, classes], with the labels, i32 [rows], in the rows whose mask, u8
/// [rows], is not 0, each times the weight of its label, f32 [classes]; 1 where there are no weights. A label
/// of such a row that is not a class makes the loss NaN: check them before. `teacher`: distillation
/// (kernels/teacher_output.h).
LossSum class_loss(Tape& tape, const Variable& logits, const Tensor& labels, const Tensor& mask,
                   const Tensor& class_weights = {}, const TeacherOutput& teacher = {});

/// z = mean + exp(log deviation) noise, [rows, width], of moments [rows, 2 width]: the means, then the
/// logarithms of the standard deviations. The noise is not saved: it is a function of the key.
Variable sample_latent(Tape& tape, const Variable& moments, const NoiseKey& key);

/// before + sum over rows i of weights[i], f32 [rows], times the Kullback-Leibler divergence of the row's
/// normal distributions from the standard one: f64 [1]. `before`, the sum of an earlier loss, may be absent.
Variable latent_loss(Tape& tape, const Variable& before, const Variable& moments, const Tensor& weights);

/// before + the binary cross entropies of linked and other pairs of nodes, whose logit is the inner product
/// of their rows of z, [nodes, width]: f64 [1]. Not a mean: weights are those of `pairs`.
Variable pair_loss(Tape& tape, const Variable& before, const Variable& z, const NodePairs& pairs);

/// State error of an unrolled prediction: before + prediction - target where the mask is not 0, else 0, in
/// the accumulator dtype. `before` is the state error ahead of the prediction and may be absent; an
/// undefined `target` counts as 0.
Variable accumulate_error(Tape& tape, const Variable& before, const Variable& prediction,
                          const Tensor& target, const Tensor& mask);

/// `given` with shift[:, source[c]] * ratio[c] added to each column c whose source is not -1. Moves a
/// model's inputs from the data to the model's own predicted state.
Variable add_columns(Tape& tape, const Tensor& given, const Variable& shift, const Tensor& source,
                     const Tensor& ratio);

/// The rows of owned nodes, [owned, width], with the ghosts' after them, fetched from the neighbours:
/// [owned + ghosts, width]. Backward returns the ghosts' gradients to their owners, which add them in an
/// order that depends only on the halo. A collective call, forward and backward: the ranks of a mesh call
/// the same ops in the same order, recomputed ones too, whatever their parts hold. Waits for the device.
/// Throws InvalidArgument for another number of rows.
Variable halo_exchange(Tape& tape, const Variable& x, const Halo& halo);
/// The same, without waiting for the ghosts: for edge_update with this round, or finish() it. On a GPU it
/// waits.
Variable halo_exchange(Tape& tape, const Variable& x, const std::shared_ptr<HaloRound>& round);

}  // namespace ops
}  // namespace meshgrad
#pragma GCC visibility pop
