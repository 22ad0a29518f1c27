// SPDX-License-Identifier: Apache-2.0
// Which instructions the CPU's kernels run in: the best of these that the machine has, or those that the
// environment names in MESHGRAD_CPU_ISA, so that each of them can be tested and timed.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace meshgrad::cpu {

enum class Isa : uint8_t {
  scalar,
  avx2,
  avx512,
  avx512_bf16,  ///< AVX-512, and bfloat16 products in its own instruction
  amx,          ///< the same, and bfloat16 products in AMX where their rows fill its registers
};
std::string_view name_of(Isa isa);

/// Those of this machine, narrowest first.
const std::vector<Isa>& machine_isas();

/// The one in use, settled by the first call: Highway then chooses no better one for tile.cpp. Throws
/// ConfigError when MESHGRAD_CPU_ISA names none of machine_isas().
Isa isa();

}  // namespace meshgrad::cpu
