// SPDX-License-Identifier: Apache-2.0
// One kernel template for elementwise operations: an Op has `elements` and `template at<kElements>(i)`, which
// processes elements i .. i + kElements - 1. Indices are 64-bit: E x W passes 2^31 at 16M edges of width 128.
#pragma once
#include <meshgrad/kernels/cuda/row_access.h>

namespace meshgrad::cuda {

template <class Op, int kElements>
__global__ void map(Op op) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t vectors = op.elements / kElements;
  for (int64_t i = thread; i < vectors; i += int64_t{gridDim.x} * blockDim.x)
    op.template at<kElements>(i * kElements);
  if constexpr (kElements > 1) {  // fewer than kElements are left: the first threads take one each
    const int64_t i = vectors * kElements + thread;
    if (i < op.elements) op.template at<1>(i);
  }
}

/// kElements at a time where all `addresses` are 16-byte aligned, else one at a time.
template <int kElements, class Op>
void launch_map(const char* name, const Op& op, std::initializer_list<const void*> addresses,
                const Stream& stream) {
  constexpr int kThreads = 256;
  bool aligned = true;
  for (const void* address : addresses) aligned = aligned && reinterpret_cast<uintptr_t>(address) % 16 == 0;
  const int64_t per_block = kThreads * (aligned ? kElements : 1);
  const LaunchShape shape{persistent_blocks(stream, op.elements, per_block, 8), kThreads, 0};
  if (aligned) {
    launch(name, map<Op, kElements>, shape, stream, op);
  } else {
    launch(name, map<Op, 1>, shape, stream, op);
  }
}

}  // namespace meshgrad::cuda
