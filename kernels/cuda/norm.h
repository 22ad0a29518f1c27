// SPDX-License-Identifier: Apache-2.0
// Row-wise norms with the residual of an MLP, one pass over memory each way.
#pragma once
#include <meshgrad/kernels/elementwise.h>

namespace meshgrad::cuda {

/// y = norm(x) * gain + bias + residual. The residual may be undefined and y may lie where it or x does.
void norm_rows(const NormForward& args, const Tensor& residual, const Stream& stream);

/// As norm.backward; d_gain may be undefined too.
void norm_rows_backward(const NormBackward& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
