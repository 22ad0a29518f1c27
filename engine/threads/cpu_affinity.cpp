// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/threads/cpu_affinity.h>

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>
#include <system_error>

namespace meshgrad {
namespace {

using Mask = std::vector<unsigned long>;  // of the kernel: bit i of all words together is CPU i
constexpr int kWordBits = static_cast<int>(sizeof(unsigned long)) * CHAR_BIT;
constexpr size_t kMostWords = 4096;

cpu_set_t* set_of(Mask& mask) { return reinterpret_cast<cpu_set_t*>(mask.data()); }

std::vector<int> cpus_of_thread() {
  // A mask that is too short for the machine is an error, not cut.
  for (size_t words = 16; words <= kMostWords; words *= 4) {
    Mask mask(words);
    if (sched_getaffinity(0, words * sizeof mask[0], set_of(mask)) != 0) continue;
    std::vector<int> cpus;
    for (int cpu = 0; cpu < static_cast<int>(words) * kWordBits; ++cpu) {
      if ((mask[static_cast<size_t>(cpu / kWordBits)] >> (cpu % kWordBits) & 1U) != 0) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}

/// What this thread was allowed before it was pinned; pins may be nested.
struct Pinned {
  int depth = 0;
  std::vector<int> before;
};
thread_local Pinned pinned;

}  // namespace

std::vector<int> allowed_cpus() { return pinned.depth > 0 ? pinned.before : cpus_of_thread(); }

namespace {

/// 0, or why not.
int try_affinity(std::thread::native_handle_type thread, const std::vector<int>& cpus) {
  if (cpus.empty()) return EINVAL;
  Mask mask(static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end()) / kWordBits + 1));
  for (const int cpu : cpus) mask[static_cast<size_t>(cpu / kWordBits)] |= 1UL << (cpu % kWordBits);
  return pthread_setaffinity_np(thread, mask.size() * sizeof mask[0], set_of(mask));
}

}  // namespace

bool set_affinity(std::thread::native_handle_type thread, const std::vector<int>& cpus) {
  return try_affinity(thread, cpus) == 0;
}

void pin_thread(std::thread::native_handle_type thread, int cpu) {
  const int error = try_affinity(thread, {cpu});
  if (error == 0) return;
  throw ThreadsRefused(ThreadsRefused::Asked::pin,
                       "a system that keeps a thread on CPU " + std::to_string(cpu),
                       std::generic_category().message(error));
}

PinnedThread::PinnedThread(int cpu) : thread_(std::this_thread::get_id()) {
  if (pinned.depth == 0) pinned.before = cpus_of_thread();
  pin_thread(pthread_self(), cpu);
  ++pinned.depth;
}

PinnedThread::~PinnedThread() {
  if (std::this_thread::get_id() != thread_) return;
  if (--pinned.depth == 0) set_affinity(pthread_self(), pinned.before);
}

}  // namespace meshgrad
