// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/device.h>

#include "planted.h"

namespace meshgrad::cuda::planted {
namespace {

constexpr unsigned kAll = 0xffffffffu;

__global__ void missing_barrier(Data data) {
  MESHGRAD_SHARED(float, s, 64);
  s[threadIdx.x] = data.in[threadIdx.x];
  data.out[threadIdx.x] = s[63 - threadIdx.x];
}

__global__ void missing_barrier_before_write(Data data) {
  MESHGRAD_SHARED(float, s, 64);
  s[threadIdx.x] = data.in[threadIdx.x];
  __syncthreads();
  const float x = s[(threadIdx.x + 1) % 64];
  s[threadIdx.x] = x;
  __syncthreads();
  data.out[threadIdx.x] = s[threadIdx.x];
}

__global__ void missing_warp_barrier(Data data) {
  MESHGRAD_SHARED(float, s, 64);
  s[threadIdx.x] = data.in[threadIdx.x];
  const float unrelated = warp_sum(data.in[threadIdx.x]);  // shuffles order no memory
  data.out[threadIdx.x] = s[threadIdx.x ^ 1] + unrelated;
}

__global__ void warp_barrier_for_block(Data data) {
  MESHGRAD_SHARED(float, s, 64);
  s[threadIdx.x] = data.in[threadIdx.x];
  __syncwarp();
  data.out[threadIdx.x] = s[threadIdx.x ^ 32];
}

__global__ void half_a_warp_barrier(Data data) {
  MESHGRAD_SHARED(float, s, 64);
  s[threadIdx.x] = data.in[threadIdx.x];
  __syncwarp(threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u);
  data.out[threadIdx.x] = s[threadIdx.x ^ 16];
}

__global__ void divergent_barrier(Data data) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    data.out[threadIdx.x] = 0;
    __syncthreads();
  }
}

__global__ void exit_before_barrier(Data data) {
  if (threadIdx.x == 5) return;
  __syncthreads();
  data.out[threadIdx.x] = 0;
}

__global__ void barrier_against_shuffle(Data data) {
  float x = data.in[threadIdx.x];
  if (threadIdx.x < 7) {
    __syncthreads();
  } else {
    x = warp_sum(x);
  }
  data.out[threadIdx.x] = x;
}

__global__ void divergent_lanes(Data data) {
  float x = data.in[threadIdx.x];
  if (threadIdx.x % 2 == 0) {
    x += __shfl_xor_sync(kAll, x, 1);
  } else {
    x -= __shfl_xor_sync(kAll, x, 1);
  }
  data.out[threadIdx.x] = x;
}

__global__ void shuffle_from_exited_lane(Data data) {
  if (threadIdx.x % 32 == 31) return;
  data.out[threadIdx.x] = __shfl_down_sync(kAll, data.in[threadIdx.x], 1);
}

__global__ void shuffle_from_outside_the_mask(Data data) {
  if (threadIdx.x % 32 < 16) data.out[threadIdx.x] = __shfl_xor_sync(0xffffu, data.in[threadIdx.x], 16);
}

__global__ void caller_outside_its_mask(Data data) {
  data.out[threadIdx.x] = static_cast<float>(__ballot_sync(0x7fffffffu, data.in[threadIdx.x] > 0));
}

__global__ void race_in_a_block(Data data) { data.out[threadIdx.x / 2] = 1; }
__global__ void race_of_blocks(Data data) { data.out[threadIdx.x + blockIdx.x] = 1; }
__global__ void read_of_another_block(Data data) {
  data.out[threadIdx.x + 64 * blockIdx.x] = 1;
  data.in[threadIdx.x + 64 * blockIdx.x] = data.out[threadIdx.x + 64 * (blockIdx.x ^ 1)];
}
__global__ void write_of_what_another_block_read(Data data) {
  data.out[threadIdx.x + 64 * blockIdx.x] = data.in[threadIdx.x];
  if (blockIdx.x == 0) data.in[threadIdx.x] = 0;
}
__global__ void plain_beside_atomic(Data data) {
  if (threadIdx.x == 7) {
    *data.counter = 0;
  } else {
    atomicAdd(data.counter, 1);
  }
}

__global__ void read_past_the_end(Data data) {
  for (unsigned i = threadIdx.x; i <= kFloats; i += 64) data.out[i % kFloats] = data.in[i];
}
__global__ void write_past_the_end(Data data) {
  for (unsigned i = threadIdx.x; i <= kFloats; i += 64) data.out[i] = 0;
}
__global__ void read_before_the_begin(Data data) {
  data.out[threadIdx.x] = data.in[static_cast<int>(threadIdx.x) - 1];
}
__global__ void vector_past_the_end(Data data) {
  const auto* vectors = reinterpret_cast<const Vector<float>*>(data.in + 4);
  data.out[threadIdx.x] = vectors[threadIdx.x].v[3];
}
__global__ void past_fixed_array(Data data) {
  MESHGRAD_SHARED(float, s, 64);
  s[threadIdx.x + 1] = data.in[threadIdx.x];
  __syncthreads();
  data.out[threadIdx.x] = s[threadIdx.x + 1];
}
__global__ void past_dynamic_memory(Data data) {
  float* s = dynamic_shared<float>();
  s[threadIdx.x + 256 - 31] = data.in[threadIdx.x];
}
__global__ void past_local_array(Data data) {
  Vector<float> v{};
  for (unsigned i = 0; i <= threadIdx.x % 8; ++i) v.v[i] = data.in[i];
  data.out[threadIdx.x] = v.v[0] + v.v[3];
}
__global__ void null_pointer(Data data) {
  const float* nothing = data.counter == nullptr ? data.in : nullptr;
  data.out[threadIdx.x] = nothing[threadIdx.x];
}

__global__ void uninitialised(Data data) {
  MESHGRAD_SHARED(float, s, 64);
  if (threadIdx.x != 9) s[threadIdx.x] = data.in[threadIdx.x];
  __syncthreads();
  data.out[threadIdx.x] = s[threadIdx.x];
}
/// Nothing is left of the block before.
__global__ void left_by_another_block(Data data) {
  MESHGRAD_SHARED(float, s, 64);
  if (blockIdx.x == 0) s[threadIdx.x] = data.in[threadIdx.x];
  __syncthreads();
  data.out[threadIdx.x + 64 * blockIdx.x] = s[threadIdx.x];
}

__global__ void copy_without_wait(Data data) {
  Vector<float>* s = dynamic_shared<Vector<float>>();
  copy_async_16(&s[threadIdx.x], data.in + 4 * threadIdx.x);
  copy_async_commit();
  data.out[threadIdx.x] = s[threadIdx.x].v[0];
}
__global__ void copy_waits_for_too_few(Data data) {
  Vector<float>* s = dynamic_shared<Vector<float>>();
  copy_async_16(&s[threadIdx.x], data.in);
  copy_async_commit();
  copy_async_16(&s[threadIdx.x + 32], data.in);
  copy_async_commit();
  copy_async_wait<1>();
  data.out[threadIdx.x] = s[threadIdx.x].v[0] + s[threadIdx.x + 32].v[0];
}
__global__ void copy_without_commit(Data data) {
  Vector<float>* s = dynamic_shared<Vector<float>>();
  copy_async_16(&s[threadIdx.x], data.in);
  copy_async_wait<0>();
  data.out[threadIdx.x] = s[threadIdx.x].v[0];
}
__global__ void copy_without_barrier(Data data) {
  Vector<float>* s = dynamic_shared<Vector<float>>();
  copy_async_16(&s[threadIdx.x], data.in);
  copy_async_commit();
  copy_async_wait<0>();
  data.out[threadIdx.x] = s[threadIdx.x ^ 1].v[0];
}
__global__ void copy_over_what_is_read(Data data) {
  Vector<float>* s = dynamic_shared<Vector<float>>();
  s[threadIdx.x].v[0] = data.in[threadIdx.x];
  __syncthreads();
  data.out[threadIdx.x] = s[threadIdx.x ^ 1].v[0];
  copy_async_16(&s[threadIdx.x], data.in);
}
__global__ void misaligned_copy(Data data) {
  copy_async_16(dynamic_shared<float>() + 8 * threadIdx.x, data.in + 1);
}

/// The last block to finish adds the partial sums of the others. 1: no fence before the atomic; 2: none after
/// it; 3: no barrier before it, so that only thread 0's own value is sure to be there.
template <int bug>
__global__ void ticket(Data data) {
  MESHGRAD_SHARED(unsigned, place, 1);
  data.out[threadIdx.x + 32 * blockIdx.x] = data.in[threadIdx.x];
  if (bug != 3) __syncthreads();
  if (threadIdx.x == 0) {
    if (bug != 1) __threadfence();
    *place = atomicAdd(data.counter, 1);
  }
  __syncthreads();
  if (*place + 1 < gridDim.x) return;
  if (bug != 2) __threadfence();
  float sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) sum += data.out[threadIdx.x + 32 * b];
  data.in[threadIdx.x + 32] = sum;
}

template <void (*kernel)(Data)>
constexpr Bug bug(const char* name, const char* message) {
  return {name, message, [](const Stream& stream, const Data& data) {
            launch("planted", kernel, {.blocks = 2, .threads = 64, .shared_bytes = 0}, stream, data);
          }};
}
/// A row of three floats, read as if rows began at multiples of 16 bytes.
__global__ void misaligned_vector(Data data) {
  const auto vector = *reinterpret_cast<const Vector<float>*>(data.in + 3 * threadIdx.x % 128);
  data.out[threadIdx.x] = vector.v[0] + vector.v[3];
}

struct alignas(8) Pair {
  float first, second;
};
__global__ void misaligned_pair(Data data) {
  *reinterpret_cast<Pair*>(data.out + 2 * threadIdx.x + 1) = {data.in[threadIdx.x], 0.0f};
}

/// One block of one warp with 1 KiB of dynamic shared memory.
template <void (*kernel)(Data)>
constexpr Bug small_bug(const char* name, const char* message) {
  return {name, message, [](const Stream& stream, const Data& data) {
            launch("planted", kernel, {.blocks = 1, .threads = 32, .shared_bytes = 1024}, stream, data);
          }};
}

}  // namespace

const std::vector<Bug>& bugs() {
  static const std::vector<Bug> kBugs = {
      bug<missing_barrier>("missing barrier", "the shared array of planted_bugs.cu"),
      bug<missing_barrier_before_write>("missing barrier before a write", "a race"),
      bug<missing_warp_barrier>("missing warp barrier", "a race"),
      bug<warp_barrier_for_block>("a warp barrier where the block needs one", "a race"),
      bug<half_a_warp_barrier>("barriers of half warps", "a race"),
      bug<divergent_barrier>("divergent barrier", "a divergent barrier"),
      bug<exit_before_barrier>("exit before a barrier", "a divergent barrier"),
      bug<barrier_against_shuffle>("barrier against shuffle", "a divergent barrier"),
      bug<divergent_lanes>("divergent lanes", "divergent lanes"),
      bug<shuffle_from_exited_lane>("shuffle from an exited lane", "lane 31, which has exited"),
      bug<shuffle_from_outside_the_mask>("shuffle from outside the mask", "which is not in the mask"),
      bug<caller_outside_its_mask>("a caller outside its mask", "the calling lane"),
      bug<race_in_a_block>("two threads write one value", "a race"),
      bug<race_of_blocks>("two blocks write one value", "of another block wrote"),
      bug<read_of_another_block>("read of what another block writes", "of another block"),
      bug<write_of_what_another_block_read>("write of what another block reads", "of another block"),
      bug<plain_beside_atomic>("a plain write beside atomic ones", "a race"),
      bug<read_past_the_end>("read past the end", "reads 4 bytes at byte 1024 of device memory"),
      bug<write_past_the_end>("write past the end", "writes 4 bytes at byte 1024 of device memory"),
      bug<read_before_the_begin>("read before the begin", "byte -4 of device memory"),
      bug<vector_past_the_end>("a vector past the end", "inside of an allocation"),
      bug<past_fixed_array>("past a fixed array", "byte 256 of the shared array"),
      small_bug<past_dynamic_memory>("past dynamic memory", "byte 1024 of dynamic shared memory"),
      bug<past_local_array>("past a local array", "index 4 at"),
      bug<null_pointer>("a null pointer", "accesses to device memory"),
      bug<uninitialised>("uninitialised shared memory", "never written"),
      bug<left_by_another_block>("shared memory of another block", "never written"),
      small_bug<copy_without_wait>("a copy without a wait", "in flight"),
      small_bug<copy_waits_for_too_few>("a wait for too few groups", "in flight"),
      small_bug<copy_without_commit>("a copy without a commit", "in flight"),
      small_bug<copy_without_barrier>("a copy without a barrier", "dynamic shared memory"),
      small_bug<copy_over_what_is_read>("a copy over what is being read", "dynamic shared memory"),
      small_bug<misaligned_copy>("a misaligned copy", "16-byte aligned"),
      bug<misaligned_vector>("a vector of an odd row", "for 16 bytes at"),
      bug<misaligned_pair>("a pair of an odd column", "for 8 bytes at"),
      bug<ticket<1>>("a ticket without a fence before", "a race"),
      bug<ticket<2>>("a ticket without a fence after it", "a race"),
      bug<ticket<3>>("a ticket without a barrier", "a race"),
  };
  return kBugs;
}

}  // namespace meshgrad::cuda::planted
