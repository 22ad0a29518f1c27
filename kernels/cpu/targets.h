// SPDX-License-Identifier: Apache-2.0
// The instruction sets that Highway compiles for, before its headers: AVX2, AVX-512 and plain scalar code for
// everything else, whatever later versions of Highway add. Row operations rely on masked loads and stores
// that do not touch memory past the row, which only these targets guarantee.
#pragma once
#ifndef MESHGRAD_UNUSED_ISA
#define MESHGRAD_UNUSED_ISA 0  // with MESHGRAD_NATIVE: the target that this machine does not need
#endif
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SCALAR
#define HWY_DISABLED_TARGETS (~(HWY_AVX3 | HWY_AVX2 | HWY_SCALAR) | MESHGRAD_UNUSED_ISA)
#else
#define HWY_COMPILE_ONLY_SCALAR
#endif
