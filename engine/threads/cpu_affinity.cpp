// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/threads/cpu_affinity.h>

#include <sched.h>

#include <climits>
#include <cstddef>

namespace meshgrad {

std::vector<int> allowed_cpus() {
  using Word = unsigned long;  // bit i of all words together is CPU i
  constexpr size_t kWordBits = sizeof(Word) * CHAR_BIT;
  constexpr size_t kMaxWords = 4096;
  // The system refuses a mask that is too short for the machine; cpu_set_t alone ends at 1024 CPUs.
  for (size_t words = 16; words <= kMaxWords; words *= 4) {
    std::vector<Word> mask(words);
    if (sched_getaffinity(0, words * sizeof(Word), reinterpret_cast<cpu_set_t*>(mask.data())) != 0) continue;
    std::vector<int> cpus;
    for (size_t cpu = 0; cpu < words * kWordBits; ++cpu) {
      if ((mask[cpu / kWordBits] >> (cpu % kWordBits) & 1U) != 0) cpus.push_back(static_cast<int>(cpu));
    }
    return cpus;
  }
  return {};
}

}  // namespace meshgrad
