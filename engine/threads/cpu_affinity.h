// SPDX-License-Identifier: Apache-2.0
// Which CPUs threads run on.
#pragma once
#include <thread>
#include <vector>

namespace meshgrad {

/// The CPUs that the calling thread may run on, ascending; while a PinnedThread holds it, those from before.
/// Empty where the system does not say.
std::vector<int> allowed_cpus();

/// Lets a thread run on these CPUs alone; false where the system does not allow it.
bool set_affinity(std::thread::native_handle_type thread, const std::vector<int>& cpus);
/// Keeps it on one CPU. Throws ThreadsRefused where the system does not allow it.
void pin_thread(std::thread::native_handle_type thread, int cpu);

/// Keeps the thread that makes it on one CPU, until the same thread destroys it. Throws what pin_thread
/// throws.
class PinnedThread {
 public:
  explicit PinnedThread(int cpu);
  ~PinnedThread();
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;

 private:
  std::thread::id thread_;
};

}  // namespace meshgrad
