// SPDX-License-Identifier: Apache-2.0
// Work: the least that a kernel call does, and the least time that a device takes for it. The header of each
// family has work_of(args) for every entry of its table; benchmarks and plans call that.
#pragma once
#include <meshgrad/engine/tensor.h>

#include <string_view>
#include <vector>

namespace meshgrad {

namespace gpu {
struct Card;  // engine/gpu_card.h
}

/// Of one call, whose rows count with their capacity. Without saved activations a backward call recomputes
/// them, which counts.
struct Work {
  double flops = 0.0;  ///< sums and products, a multiply-add as two; not exponentials, roots and comparisons
  double bytes = 0.0;  ///< of memory: each value read once and written once, also what several rows read
  Work& operator+=(const Work& other) {
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
};

/// Of rows times a weight, [in, out].
inline double product_flops(int64_t rows, const Tensor& weight) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(weight.elements());
}
/// Bytes of tensors; of an undefined one 0.
template <class... Tensors>
double bytes_of(const Tensors&... tensors) {
  return (static_cast<double>(tensors.defined() ? tensors.bytes() : 0) + ... + 0.0);
}
/// Bytes that an output takes: added to, it is read and written.
inline double bytes_added(const Tensor& output, bool accumulate = true) {
  return (accumulate ? 2.0 : 1.0) * bytes_of(output);
}

/// Collects the work of the calling thread's kernel calls while it lives. In a dry run, too: that is how a
/// plan knows a step's work. One at a time per thread; without one a kernel call computes no work.
class WorkTrace {
 public:
  struct Call {
    std::string_view kernel;  ///< as visit_kernels (tables.h) names it
    Work work;
  };

  WorkTrace();
  ~WorkTrace();
  WorkTrace(const WorkTrace&) = delete;
  WorkTrace& operator=(const WorkTrace&) = delete;

  /// In the order of the calls.
  const std::vector<Call>& calls() const { return calls_; }

  /// The thread's trace, or null.
  static WorkTrace* current();
  void add(std::string_view kernel, const Work& work) { calls_.push_back({kernel, work}); }

 private:
  std::vector<Call> calls_;
};

/// Tells the thread's WorkTrace of a call that was made: some arguments say only afterwards what was done.
template <class Args>
void note_work(std::string_view kernel, const Args& args) {
  if (WorkTrace* const trace = WorkTrace::current()) trace->add(kernel, work_of(args));
}

/// The roofline's bound of one call: the longer of the time for its bytes and for its FLOPs at the card's
/// peaks, with tensors stored in `storage`. `tf32`: as RuntimeOptions::tf32. Williams, Waterman, Patterson
/// (2009), "Roofline: an insightful visual performance model for multicore architectures".
double least_seconds(const Work& work, const gpu::Card& card, DType storage, bool tf32 = false);

}  // namespace meshgrad
