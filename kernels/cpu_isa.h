// SPDX-License-Identifier: Apache-2.0
// The instruction set of the CPU kernels: the best that the machine supports, or the one named in the
// environment variable MESHGRAD_CPU_ISA, so that each can be tested and timed on one machine.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace meshgrad::cpu {

enum class Isa : uint8_t {
  scalar,
  avx2,
  avx512,
  avx512_bf16,  ///< AVX-512, and bfloat16 dot products (vdpbf16ps)
  amx,          ///< avx512_bf16, and AMX (tdpbf16ps) for matrix multiplications that fill its tile registers
};
std::string_view name_of(Isa isa);

/// Those that this machine supports, narrowest first; never empty.
const std::vector<Isa>& machine_isas();

/// The one in use. The first call decides, and caps what Highway's dispatch may choose. Throws ConfigError
/// when MESHGRAD_CPU_ISA is set and names none of machine_isas().
Isa isa();

}  // namespace meshgrad::cpu
