// SPDX-License-Identifier: Apache-2.0
// mlp: a multi-layer perceptron with an optional norm and residual, fused: tile by tile through all layers.
//
//   z_1 = sum_i x_i W_1i + b_1 (+ gathered terms), h_k = act(z_k), z_{k+1} = h_k W_{k+1} + b_{k+1},
//   y = norm(z_last) * gain + bias, out = residual + y
//
// The first layer takes several inputs, each with its own row range of the first weight, so that a
// concatenation is never written. LayerNorm: Ba, Kiros, Hinton 2016; RMSNorm: Zhang, Sennrich 2019. Storage
// and accumulation as in linear.h; norm statistics and every sum are in the accumulation type. What can be
// saved for backward is rounded to storage whether it is saved or not. Deterministic for any thread count.
#pragma once
#include <meshgrad/engine/inline_vector.h>
#include <meshgrad/kernels/linear.h>

#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

inline constexpr int kMaxMlpInputs = 8;
inline constexpr int kMaxMlpLayers = 8;

/// One of something for each input, and for each layer.
template <class T>
using PerInput = InlineVector<T, kMaxMlpInputs>;
template <class T>
using PerLayer = InlineVector<T, kMaxMlpLayers>;

/// One MLP's weights. Layer 0's weight is held by the inputs (see MlpInput).
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

/// Gradients of MlpWeights, same shapes, accumulated into; an undefined one is not wanted. The lists are as
/// long as the weights'.
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

/// What forward leaves for backward. Where the tensors are undefined, backward
/// recomputes them in the tile, bit for bit. A kernel may keep max(z, 0) instead of z where the activation is
/// relu: that is the layer's output, and where it is positive tells the slope.
struct MlpSaved {
  PerLayer<Tensor> pre_activations;  ///< z_1 .. z_{last-1}, or their max(z, 0): [rows, hidden] each
  Tensor pre_norm;                   ///< z_last: [rows, out]; only with a norm
};

struct MlpForward {
  Rows rows;
  PerInput<MlpInput> inputs;  ///< at least one
  MlpWeights weights;
  Tensor residual;  ///< [rows, out], or undefined; may be one of the inputs
  Tensor out;       ///< [rows, out]
  MlpSaved saved;   ///< tensors to fill, or undefined
};

struct MlpBackward {
  Rows rows;
  PerInput<MlpInput> inputs;
  MlpWeights weights;
  MlpSaved saved;
  Tensor d_out;  ///< [rows, out]
  /// Per input: where dx goes (may be undefined) and whether it is added. `d_inputs[i]` may alias `d_out`
  /// when the input is also the residual: then the residual's share is added with accumulate = true and costs
  /// no copy.
  PerInput<Tensor> d_inputs;
  PerInput<bool> accumulate;         ///< per input: dx += instead of dx =
  PerInput<Tensor> d_first_weights;  ///< per input: [in_i, hidden], accumulated into
  MlpWeightGradients d_weights;
};

struct MlpKernels {
  bool (*saving_helps)(const MlpForward&);
  void (*forward)(const MlpForward&, Runtime&, const Stream&);
  void (*backward)(const MlpBackward&, Runtime&, const Stream&);
};
namespace cpu {
extern const MlpKernels mlp_kernels;
}

void mlp_forward(const MlpForward& args, Runtime& runtime, const Stream& stream);
void mlp_backward(const MlpBackward& args, Runtime& runtime, const Stream& stream);

/// False where the device's kernels compute hidden activations anew in any case (the fused ones on tensor
/// cores): room for them would cost memory, and the faster kernels. `args.saved` is undefined.
bool saving_helps(const MlpForward& args);

/// True when `saved` holds all that backward would otherwise recompute.
bool saved_is_complete(const MlpWeights& weights, const MlpSaved& saved);

/// Contract checks that message_passing shares. Throws InvalidArgument unless weights and saved tensors fit
/// each other and a first layer of width `hidden`; returns the width of the output.
int64_t check_mlp_weights(std::string_view op, const MlpWeights& weights, const MlpSaved& saved, int64_t rows,
                          int64_t hidden, DType dtype);
/// Throws InvalidArgument unless every gradient has its weight's shape and dtype, or is undefined.
void check_mlp_gradients(std::string_view op, const MlpWeights& weights, const MlpWeightGradients& gradients);

}  // namespace meshgrad
#pragma GCC visibility pop
