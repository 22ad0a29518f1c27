// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu_card.h>
#include <meshgrad/kernels/work.h>

#include <algorithm>

namespace meshgrad {
namespace {

WorkTrace*& current_work_trace() {
  thread_local WorkTrace* trace = nullptr;
  return trace;
}

}  // namespace

WorkTrace::WorkTrace() {
  check_internal(current_work_trace() == nullptr, "one work trace at a time");
  current_work_trace() = this;
}

WorkTrace::~WorkTrace() { current_work_trace() = nullptr; }

WorkTrace* WorkTrace::current() { return current_work_trace(); }

double least_seconds(const Work& work, const gpu::Card& card, DType storage, bool tf32) {
  return std::max(work.bytes / card.bytes_per_s, work.flops / card.flops_per_s(storage, tf32));
}

}  // namespace meshgrad
