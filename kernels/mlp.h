// SPDX-License-Identifier: Apache-2.0
// mlp: a multi-layer perceptron with an optional norm and residual, fused: a tile of rows passes through all
// layers before the next tile starts, so hidden activations stay in cache (CPU) or on chip (GPU).
//
//   z_1 = sum_i x_i W_1i + b_1 (+ gathered terms), h_k = act(z_k), z_{k+1} = h_k W_{k+1} + b_{k+1},
//   y = norm(z_last) * gain + bias, out = residual + y
//
// The first layer takes several inputs, each with its own row range of the first weight, so their
// concatenation is never materialised. dtypes as in linear.h; norm statistics and every sum are in the
// accumulation dtype. Pre-activations are rounded to storage whether they are saved for backward or
// recomputed, so both give the same bits. Deterministic for any number of threads.
#pragma once
#include <meshgrad/engine/inline_vector.h>
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/activation.h>

#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

inline constexpr int kMaxMlpInputs = 8;
inline constexpr int kMaxMlpLayers = 8;

/// Lists with one element per input, and per layer.
template <class T>
using PerInput = InlineVector<T, kMaxMlpInputs>;
template <class T>
using PerLayer = InlineVector<T, kMaxMlpLayers>;

/// One MLP's weights. The first layer's weight is given with the inputs (see MlpInput).
struct MlpWeights {
  Tensor first_bias;         ///< [hidden] (or [out] with a single layer)
  PerLayer<Tensor> weights;  ///< layers 1..: [in, out]
  PerLayer<Tensor> biases;   ///< layers 1..: [out]
  Activation activation = Activation::relu;
  Norm norm = Norm::none;
  Tensor gain;            ///< [out]; undefined with Norm::none
  Tensor norm_bias;       ///< [out]; undefined with Norm::none and Norm::rms
  double epsilon = 1e-5;  ///< added to the variance (layer) or mean square (rms)
  int layers() const { return 1 + static_cast<int>(weights.size()); }
};

/// Gradients of MlpWeights, of the same shapes, added to. An undefined one is not computed. The lists must be
/// as long as those of the weights.
struct MlpWeightGradients {
  Tensor first_bias;
  PerLayer<Tensor> weights;
  PerLayer<Tensor> biases;
  Tensor gain;
  Tensor norm_bias;
};

/// One input of the first layer: z_1 += x W.
struct MlpInput {
  Tensor x;       ///< [rows, in_i]
  Tensor weight;  ///< [in_i, hidden]: a row range of the first weight
};

/// Activations that forward saves for backward. Backward recomputes those that are undefined, bit for bit.
/// With relu a kernel may save max(z, 0) instead of z: that is the layer's output, and its sign gives the
/// derivative.
struct MlpSaved {
  PerLayer<Tensor> pre_activations;  ///< z_1 .. z_{last-1}, or their max(z, 0): [rows, hidden] each
  Tensor pre_norm;                   ///< z_last: [rows, out]; only with a norm
};

/// The node terms of the edge update that reads an MLP's output next (message_passing.h), made in the launch
/// that writes the output: S = out W_s, R = out W_r.
struct NodeTermsAhead {
  Tensor sender_weight, receiver_weight;  ///< W_s and W_r: [out, hidden]
  /// Allocated and written by mlp_forward: [rows, hidden] each, and words that the edge update counts with.
  /// Undefined where the device's kernel does not make them; the edge update then does.
  Tensor sender, receiver, tickets;
};

struct MlpForward {
  Rows rows;
  PerInput<MlpInput> inputs;  ///< at least one
  MlpWeights weights;
  Tensor residual;                       ///< [rows, out], or undefined; may be one of the inputs
  Tensor out;                            ///< [rows, out]
  MlpSaved saved;                        ///< tensors to write, or undefined: nothing is saved
  NodeTermsAhead* node_terms = nullptr;  ///< null: not wanted
};

struct MlpBackward {
  Rows rows;
  PerInput<MlpInput> inputs;
  MlpWeights weights;
  MlpSaved saved;  ///< as forward wrote it, or undefined: recomputed
  Tensor d_out;    ///< [rows, out]
  /// Per input: [rows, in_i], or undefined: not computed. `d_inputs[i]` may alias `d_out` when input i is
  /// also the residual: with accumulate[i] = true the residual's gradient is then included without a copy.
  PerInput<Tensor> d_inputs;
  PerInput<bool> accumulate;         ///< per input: d_x += instead of d_x =
  PerInput<Tensor> d_first_weights;  ///< per input: [in_i, hidden], added to; or undefined
  MlpWeightGradients d_weights;
};

struct MlpKernels {
  bool (*saves_hidden)(const MlpForward&);
  void (*forward)(const MlpForward&, Runtime&, const Stream&);
  void (*backward)(const MlpBackward&, Runtime&, const Stream&);
};

namespace kernels {
void mlp_forward(const MlpForward& args, Runtime& runtime, const Stream& stream);
void mlp_backward(const MlpBackward& args, Runtime& runtime, const Stream& stream);

/// Whether the device's kernel for these arguments uses saved activations. False for the fused GPU kernels,
/// which always recompute them: saving would cost memory and select slower kernels. `args.saved` is not read.
bool saves_hidden(const MlpForward& args);
}  // namespace kernels

/// True when `saved` holds everything that backward needs, so nothing is recomputed.
bool saved_is_complete(const MlpWeights& weights, const MlpSaved& saved);

/// Argument checks shared with message_passing. Throws InvalidArgument unless weights and saved tensors fit
/// each other and a first layer of width `hidden`. Returns the output width.
int64_t check_mlp_weights(std::string_view op, const MlpWeights& weights, const MlpSaved& saved, int64_t rows,
                          int64_t hidden, DType dtype);
/// Throws InvalidArgument unless every gradient has its weight's shape and dtype, or is undefined.
void check_mlp_gradients(std::string_view op, const MlpWeights& weights, const MlpWeightGradients& gradients);

}  // namespace meshgrad
#pragma GCC visibility pop

namespace meshgrad {

struct Work;  // work.h
Work work_of(const MlpForward& args);
Work work_of(const MlpBackward& args);

/// What the layers after the first and the norm add, and the saved tensors: shared with message_passing.
Work layers_forward_work(int64_t rows, const MlpWeights& weights, const MlpSaved& saved);
Work layers_backward_work(int64_t rows, const MlpWeights& weights, const MlpSaved& saved,
                          const MlpWeightGradients& gradients);

}  // namespace meshgrad
