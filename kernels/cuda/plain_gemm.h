// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication by this project's own kernels, where cuBLASLt has no algorithm: any sizes, addresses
// and dtypes, in f32, each sum in the order of k. Slower than the library by an order of magnitude.
#pragma once
#include <meshgrad/kernels/cuda/gemm.h>

namespace meshgrad::cuda {

/// As gemm, for calls that have products.
void plain_gemm(const Gemm& args, const Stream& stream);

/// c = bias in each row; c += bias when accumulating. With the product added to it, that is c = a b + bias.
void start_with_bias(const Gemm& args, const Stream& stream);

}  // namespace meshgrad::cuda
