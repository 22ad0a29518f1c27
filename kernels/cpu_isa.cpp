// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/kernels/cpu/targets.h>

#include <meshgrad/engine/error.h>
#include <meshgrad/kernels/cpu_dispatch.h>
#include <meshgrad/kernels/cpu_isa.h>

#include <algorithm>
#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace meshgrad::cpu {

std::string_view name_of(Isa isa) {
  constexpr std::string_view kNames[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
  return kNames[static_cast<size_t>(isa)];
}

namespace {

#if defined(__x86_64__)
/// Whether the CPU has AMX for bfloat16, and Linux lets this process use it: the registers are 8 KiB of state
/// that a process has to ask for (Documentation/arch/x86/xstate.rst).
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kTile = 1u << 24, kBf16 = 1u << 22;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTile) == 0 || (d & kBf16) == 0) return false;
#if defined(__linux__)
  constexpr long kRequestState = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
#else
  return false;
#endif
}
#endif

}  // namespace

const std::vector<Isa>& machine_isas() {
  static const std::vector<Isa> found = [] {
    std::vector<Isa> isas{Isa::scalar};
#if defined(__x86_64__)
    const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;  // of the machine, and compiled
    if ((targets & HWY_AVX2) != 0) isas.push_back(Isa::avx2);
    if ((targets & HWY_AVX3) != 0) isas.push_back(Isa::avx512);
    if ((targets & HWY_AVX3) == 0 || !__builtin_cpu_supports("avx512bf16")) return isas;
    isas.push_back(Isa::avx512_bf16);
    if (has_amx()) isas.push_back(Isa::amx);
#endif
    return isas;
  }();
  return found;
}

namespace {

Isa chosen_isa() {
  const std::vector<Isa>& found = machine_isas();
  const char* const wanted = std::getenv("MESHGRAD_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return found.back();
  const auto named =
      std::find_if(found.begin(), found.end(), [&](Isa isa) { return name_of(isa) == wanted; });
  if (named != found.end()) return *named;
  std::vector<std::string_view> names;
  for (const Isa isa : found) names.push_back(name_of(isa));
  throw config_error("MESHGRAD_CPU_ISA", fmt::format("{} on this CPU", fmt::join(names, ", ")), wanted,
                     "name one of these, or leave the variable unset");
}

}  // namespace

Isa isa() {
  static const Isa chosen = [] {
    const Isa best = chosen_isa();
    cap_dispatch(best);
    return best;
  }();
  return chosen;
}

}  // namespace meshgrad::cpu
