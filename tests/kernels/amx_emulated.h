// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <meshgrad/kernels/cpu/gemm.h>

namespace meshgrad::cpu {

/// The matrix products of bf16 by AMX, with its unit in plain code; null without AVX-512.
const Products<bfloat16>* emulated_amx_products();

}  // namespace meshgrad::cpu
