// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <meshgrad/kernels/cpu/gemm.h>

namespace meshgrad::cpu {

/// The bf16 table of AMX with the unit emulated in C++, for machines without it; null without AVX-512.
const GemmOps<bfloat16>* emulated_amx_gemm();

}  // namespace meshgrad::cpu
