// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/slab_sums.h>
#include <meshgrad/kernels/step_state.h>

namespace meshgrad::cuda {
namespace {

__global__ void add_slabs_kernel(AddSlabs args) {
  MESHGRAD_SHARED(double, sums, kSumThreads);
  double first = 0.0;
  double second = 0.0;
  for (int64_t slab = threadIdx.x; slab < args.slabs; slab += kSumThreads) {
    first += args.first[slab];
    if (args.second != nullptr) second += args.second[slab];
  }
  first = block_sum(sums, first);
  if (args.second != nullptr) second = block_sum(sums, second);
  if (threadIdx.x != 0) return;
  *args.first_sum = args.add ? *args.first_sum + first : first;
  if (args.second != nullptr) *args.second_sum = args.add ? *args.second_sum + second : second;
  if (args.non_finite != nullptr && !is_finite(first)) *args.non_finite = 1;
}

}  // namespace

void add_slabs(const char* launch_name, const AddSlabs& args, const Stream& stream) {
  launch(launch_name, add_slabs_kernel, {.blocks = 1, .threads = kSumThreads}, stream, args);
}

}  // namespace meshgrad::cuda
