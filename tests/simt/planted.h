// SPDX-License-Identifier: Apache-2.0
// Kernels for the test of the simulated device: right ones, and ones with a bug that it must find.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/stream.h>

#include <vector>

namespace meshgrad::cuda::planted {

/// Device memory of kFloats floats each; `counter` is zero.
inline constexpr int kFloats = 256;
struct Data {
  float* in = nullptr;
  float* out = nullptr;
  unsigned* counter = nullptr;
};

struct Bug {
  const char* name;
  const char* message;  ///< part of the runner's message
  void (*start)(const Stream& stream, const Data& data);
};
const std::vector<Bug>& bugs();

/// out = in of `rows` rows, normalised: mean 0, variance 1.
void layer_norm(const Stream& stream, const float* in, float* out, int rows, int width);
/// Sum by a tree in shared memory; 256 values.
void tree_sum(const Stream& stream, const float* in, float* out);
/// Sums of blocks, added in order by the block that comes last.
void ticket_sum(const Stream& stream, const float* in, float* partial, float* out, unsigned* counter,
                int count);
/// c = a b, [m, k] [k, n], m a multiple of 16, n of 8, k of 16; `swapped` exchanges two fragments of a.
void gemm(const Stream& stream, const half* a, const half* b, float* c, int m, int n, int k, bool swapped);
/// Every row of 32 turned around within its warp, by shared memory and __syncwarp.
void reverse_rows(const Stream& stream, const float* in, float* out, int rows);
/// counts[v] += 1 for each value; lanes[i] = lanes of the warp with the value of i; even[i / 32] of even
/// ones.
void histogram(const Stream& stream, const int* values, int* counts, unsigned* lanes, unsigned* even,
               int count);
/// The edges that each warp of a fused edge kernel takes, of `blocks` blocks: ranges[2 warp] up to before
/// ranges[2 warp + 1]. `receivers` are sorted; receiver r has those from offsets[r] on.
void edge_ranges(const Stream& stream, const int* receivers, const int* offsets, int edges, int nodes,
                 int* ranges, int blocks);
/// out[i] = in[i] + 1, by blocks of 64 threads that take turns in two slots of shared memory and, from the
/// second round on, in the wrong one.
void wrong_second_round(const Stream& stream, const float* in, float* out, int count);
/// out[i] = the sum of in over the warp of i, to which only the first 16 lanes have put a value.
void sum_of_half_a_warp(const Stream& stream, const float* in, float* out, int count);
/// out[i] = in[i] + 1.
void add_one(const Stream& stream, const float* in, float* out, int count);

}  // namespace meshgrad::cuda::planted
