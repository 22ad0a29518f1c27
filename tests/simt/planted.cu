// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/tile_receivers.h>

#include "planted.h"

namespace meshgrad::cuda::planted {
namespace {

struct Rows {
  const float* in;
  float* out;
  int rows;
  int width;
};

/// A warp a row.
__global__ void layer_norm_kernel(Rows args) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  if (row >= args.rows) return;
  const float* in = args.in + static_cast<int64_t>(row) * args.width;
  float sum = 0;
  for (int i = lane; i < args.width; i += 32) sum += in[i];
  const float mean = warp_sum(sum) / static_cast<float>(args.width);
  float squares = 0;
  for (int i = lane; i < args.width; i += 32) squares += (in[i] - mean) * (in[i] - mean);
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(args.width) + 1e-5f);
  float* out = args.out + static_cast<int64_t>(row) * args.width;
  for (int i = lane; i < args.width; i += 32) out[i] = (in[i] - mean) * scale;
}

struct Sum {
  const float* in;
  float* partial;
  float* out;
  unsigned* counter;
  int count;
};

__global__ void tree_kernel(Sum args) {
  MESHGRAD_SHARED(float, s, 256);
  const unsigned t = threadIdx.x;
  s[t] = args.in[t];
  __syncthreads();
  for (unsigned step = 128; step > 0; step /= 2) {
    if (t < step) s[t] += s[t + step];
    __syncthreads();
  }
  if (t == 0) args.out[0] = s[0];
}

__global__ void ticket_kernel(Sum args) {
  MESHGRAD_SHARED(float, s, 4);
  MESHGRAD_SHARED(unsigned, place, 1);
  const unsigned t = threadIdx.x;
  float sum = 0;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + t); i < args.count;
       i += static_cast<int>(gridDim.x * blockDim.x))
    sum += args.in[i];
  sum = warp_sum(sum);
  if (t % 32 == 0) s[t / 32] = sum;
  __syncthreads();
  if (t == 0) {
    args.partial[blockIdx.x] = s[0] + s[1] + s[2] + s[3];
    __threadfence();
    *place = atomicAdd(args.counter, 1);
  }
  __syncthreads();
  if (*place + 1 != gridDim.x || t != 0) return;
  __threadfence();
  float total = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) total += args.partial[b];
  args.out[0] = total;
  *args.counter = 0;
}

struct Gemm {
  const half* a;
  const half* b;
  float* c;
  int m, n, k;
  bool swapped;
};

/// A warp for 16 rows and 8 columns, 16 terms at a time; two stages of copies.
__global__ void gemm_kernel(Gemm args) {
  half* shared = dynamic_shared<half>();
  const int lane = static_cast<int>(threadIdx.x);
  const int row0 = static_cast<int>(blockIdx.x) / (args.n / 8) * 16;
  const int col0 = static_cast<int>(blockIdx.x) % (args.n / 8) * 8;
  constexpr int kStage = 16 * 16 + 16 * 8;  // a row-major, b row-major
  const auto fetch = [&](int stage, int k0) {
    half* a = shared + stage * kStage;
    half* b = a + 256;
    const int r = lane / 2;
    copy_async_16(a + r * 16 + lane % 2 * 8,
                  args.a + static_cast<int64_t>(row0 + r) * args.k + k0 + lane % 2 * 8);
    if (lane < 16) copy_async_16(b + lane * 8, args.b + static_cast<int64_t>(k0 + lane) * args.n + col0);
    copy_async_commit();
  };
  float d[4] = {0, 0, 0, 0};
  fetch(0, 0);
  for (int k0 = 0; k0 < args.k; k0 += 16) {
    const int stage = k0 / 16 % 2;
    if (k0 + 16 < args.k) {
      fetch(1 - stage, k0 + 16);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncwarp();
    const half* a = shared + stage * kStage;
    const half* b = a + 256;
    uint32_t fragment[4];
    uint32_t both[4];
    // Matrices of a: rows 0-7, 8-15 of columns 0-7, then of columns 8-15. Of b: rows 0-7, 8-15, twice.
    load_matrices(fragment, a + lane % 16 * 16 + lane / 16 * 8);
    load_matrices_transposed(both, b + lane % 16 * 8);
    if (args.swapped) {
      const uint32_t other = fragment[1];
      fragment[1] = fragment[2];
      fragment[2] = other;
    }
    const uint32_t columns[2] = {both[0], both[1]};
    multiply_add<half>(d, fragment, columns);
    __syncwarp();
  }
  float* c = args.c + static_cast<int64_t>(row0 + lane / 4) * args.n + col0 + 2 * (lane % 4);
  c[0] = d[0];
  c[1] = d[1];
  c[8 * args.n] = d[2];
  c[8 * args.n + 1] = d[3];
}

__global__ void reverse_kernel(Rows args) {
  MESHGRAD_SHARED(float, s, 128);
  const unsigned warp = threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  float* mine = s + warp * 32;
  for (int row = static_cast<int>(blockIdx.x * 4 + warp); row < args.rows;
       row += static_cast<int>(gridDim.x * 4)) {
    mine[lane] = args.in[row * 32 + static_cast<int>(lane)];
    __syncwarp();
    args.out[row * 32 + static_cast<int>(lane)] = mine[31 - lane];
    __syncwarp();
  }
}

struct Histogram {
  const int* values;
  int* counts;
  unsigned* lanes;
  unsigned* even;
  int count;
};

__global__ void histogram_kernel(Histogram args) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const unsigned mask = __ballot_sync(0xffffffffu, i < args.count);
  if (i >= args.count) return;
  const int value = args.values[i];
  atomicAdd(&args.counts[value], 1);
  args.lanes[i] = __match_any_sync(mask, value);
  const unsigned even = __ballot_sync(mask, value % 2 == 0);
  if (threadIdx.x % 32 == 0) args.even[i / 32] = even;
}

struct EdgeRanges {
  EdgeList list;
  int* ranges;
};
__global__ void edge_ranges_kernel(EdgeRanges args) {
  const EdgeRange range = edge_range(args.list);
  if (lane_index() != 0) return;
  args.ranges[2 * edge_part()] = range.edge_begin;
  args.ranges[2 * edge_part() + 1] = range.edge_end;
}

struct AddOne {
  const float* in;
  float* out;
  int count;
};
__global__ void add_one_kernel(AddOne args) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < args.count) args.out[i] = args.in[i] + 1;
}

__global__ void wrong_second_round_kernel(AddOne args) {
  MESHGRAD_SHARED(float, slots, 128);
  const int thread = static_cast<int>(threadIdx.x), step = static_cast<int>(gridDim.x * blockDim.x);
  int round = 0;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x) + thread; i < args.count; i += step, ++round) {
    slots[round % 2 * 64 + thread] = args.in[i];
    args.out[i] = slots[thread] + 1;
  }
}

__global__ void sum_of_half_a_warp_kernel(AddOne args) {
  float values[4];
  for (int i = 0; i < (threadIdx.x % 32 < 16 ? 4 : 2); ++i) values[i] = args.in[threadIdx.x];
  args.out[threadIdx.x] = warp_sum(values[args.count / 32]);
}

}  // namespace

void layer_norm(const Stream& stream, const float* in, float* out, int rows, int width) {
  launch("layer_norm", layer_norm_kernel, {.blocks = blocks_for(rows, 4), .threads = 128}, stream,
         Rows{in, out, rows, width});
}

void tree_sum(const Stream& stream, const float* in, float* out) {
  launch("tree_sum", tree_kernel, {.blocks = 1, .threads = 256}, stream, Sum{in, nullptr, out, nullptr, 256});
}

void ticket_sum(const Stream& stream, const float* in, float* partial, float* out, unsigned* counter,
                int count) {
  launch("ticket_sum", ticket_kernel, {.blocks = persistent_blocks(stream, count, 128, 2), .threads = 128},
         stream, Sum{in, partial, out, counter, count});
}

void gemm(const Stream& stream, const half* a, const half* b, float* c, int m, int n, int k, bool swapped) {
  constexpr int kShared = 2 * 2 * (16 * 16 + 16 * 8);
  launch("gemm", gemm_kernel, {.blocks = int64_t{m} / 16 * (n / 8), .threads = 32, .shared_bytes = kShared},
         stream, Gemm{a, b, c, m, n, k, swapped});
}

void reverse_rows(const Stream& stream, const float* in, float* out, int rows) {
  launch("reverse_rows", reverse_kernel, {.blocks = 2, .threads = 128}, stream, Rows{in, out, rows, 32});
}

void histogram(const Stream& stream, const int* values, int* counts, unsigned* lanes, unsigned* even,
               int count) {
  launch("histogram", histogram_kernel, {.blocks = blocks_for(count, 64), .threads = 64}, stream,
         Histogram{values, counts, lanes, even, count});
}

void edge_ranges(const Stream& stream, const int* receivers, const int* offsets, int edges, int nodes,
                 int* ranges, int blocks) {
  const EdgeList list{nullptr, receivers, offsets, nullptr, nullptr, edges, nodes, nullptr, nullptr};
  launch("edge_ranges", edge_ranges_kernel, {.blocks = blocks, .threads = kFusedThreads}, stream,
         EdgeRanges{list, ranges});
}

void wrong_second_round(const Stream& stream, const float* in, float* out, int count) {
  launch("wrong_second_round", wrong_second_round_kernel,
         {.blocks = persistent_blocks(stream, count, 64, 1), .threads = 64}, stream, AddOne{in, out, count});
}

void sum_of_half_a_warp(const Stream& stream, const float* in, float* out, int count) {
  launch("sum_of_half_a_warp", sum_of_half_a_warp_kernel, {.blocks = 1, .threads = count}, stream,
         AddOne{in, out, count});
}

void add_one(const Stream& stream, const float* in, float* out, int count) {
  launch("add_one", add_one_kernel, {.blocks = blocks_for(count, 64), .threads = 64}, stream,
         AddOne{in, out, count});
}

}  // namespace meshgrad::cuda::planted
