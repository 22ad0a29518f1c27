// SPDX-License-Identifier: Apache-2.0
// linear: matrix products of rows with a weight, the op-by-op path and the node-level terms of the split
// first layer. Weights lie in memory as [in, out]. All tensors of a call share one storage dtype (f32,
// f16 or bf16; f64 on the CPU), but for biases and weight gradients, which have its accumulator's (f32, f64
// for f64); products are summed in that. Operands that a call makes itself (hidden activations and their
// gradients) may be rounded to the storage dtype before they are multiplied. Deterministic: the order of
// every sum depends on the sizes and the device alone, not on threads. No two arguments overlap unless said
// so. Throws InvalidArgument on a shape or dtype that does not fit.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/activation.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// y = x W + b.
struct LinearForward {
  Rows rows;
  Tensor x;                 ///< [rows, in]
  Tensor weight;            ///< [in, out]
  Tensor bias;              ///< [out], or undefined
  Tensor y;                 ///< [rows, out]
  bool accumulate = false;  ///< y += instead of y =
};

/// dx = dy W^T, dW += x^T dy, db += column sums of dy. Each output may be undefined: it is then not computed.
struct LinearBackward {
  Rows rows;
  Tensor d_y;                   ///< [rows, out]
  Tensor x;                     ///< [rows, in]; needed for d_weight
  Tensor weight;                ///< [in, out]; always needed, as it says the sizes
  Tensor d_x;                   ///< [rows, in]
  bool accumulate_d_x = false;  ///< d_x += instead of d_x =
  Tensor d_weight;              ///< [in, out], always accumulated into
  Tensor d_bias;                ///< [out], always accumulated into
};

struct LinearKernels {
  void (*forward)(const LinearForward&, Runtime&, const Stream&);
  void (*backward)(const LinearBackward&, Runtime&, const Stream&);
};
namespace cpu {
extern const LinearKernels linear_kernels;
}

void linear_forward(const LinearForward& args, Runtime& runtime, const Stream& stream);
void linear_backward(const LinearBackward& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad
#pragma GCC visibility pop
