// SPDX-License-Identifier: Apache-2.0
// Traces of allocations in each of their formats.
#include <meshgrad/train/tools/extras/replay/trace.h>

#include <vector>

#include "fuzz/fuzz.h"

using namespace meshgrad;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::expect_value_or_error([&] {
    const MemoryTrace trace = parse_memory_trace(text, "trace", 0.5);
    std::vector<bool> used(trace.slots);
    for (const MemoryTrace::Event& event : trace.events) {
      if (event.stream >= trace.streams && event.allocates()) __builtin_trap();
      if (event.name >= trace.names.size() || used.at(event.slot) == event.allocates()) __builtin_trap();
      used[event.slot] = event.allocates();
    }
  });
  return 0;
}
