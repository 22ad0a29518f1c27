// SPDX-License-Identifier: Apache-2.0
// linear: y = x W + b and its gradients, for the op-by-op path and for the node terms of the split first
// layer (message_passing.h). Tensors are row-major; weights are [in, out].
//
// dtypes: the tensors of a call share one storage dtype (f32, f16 or bf16; f64 on the CPU), except biases and
// weight gradients, which have its accumulation dtype (f32; f64 for f64). Sums run in the accumulation dtype.
// Intermediate operands (hidden activations and their gradients) may be rounded to the storage dtype before
// they are multiplied.
// Deterministic: the order of every sum depends only on the sizes and the device, not on threads. Arguments
// must not overlap unless stated otherwise. Throws InvalidArgument for a shape or dtype that does not fit.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/activation.h>
#include <meshgrad/kernels/work.h>

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

/// d_x = d_y W^T, d_W += x^T d_y, d_b += column sums of d_y. An undefined output is not computed.
struct LinearBackward {
  Rows rows;
  Tensor d_y;                   ///< [rows, out]
  Tensor x;                     ///< [rows, in]; may be undefined when d_weight is
  Tensor weight;                ///< [in, out]; always required: the sizes are taken from it
  Tensor d_x;                   ///< [rows, in]
  bool accumulate_d_x = false;  ///< d_x += instead of d_x =
  Tensor d_weight;              ///< [in, out], always added to
  Tensor d_bias;                ///< [out], always added to
};

Work work_of(const LinearForward& args);
Work work_of(const LinearBackward& args);

struct LinearKernels {
  void (*forward)(const LinearForward&, Runtime&, const Stream&);
  void (*backward)(const LinearBackward&, Runtime&, const Stream&);
};

namespace kernels {
void linear_forward(const LinearForward& args, Runtime& runtime, const Stream& stream);
void linear_backward(const LinearBackward& args, Runtime& runtime, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
