// SPDX-License-Identifier: Apache-2.0
// Copies of boxes: right ones, and each mistake that the simulated device must find.
#include <meshgrad/kernels/cuda/bulk_copy.h>

#include "planted.h"

namespace meshgrad::cuda::planted {
namespace {

enum class Mistake : uint8_t {
  none,
  no_maker_fence,
  no_bytes,
  few_bytes,
  many_bytes,
  no_wait,
  other_parity,
  one_waits,
  no_barrier,
  own_write,
  own_source,
  misaligned,
  not_awaited,
  two_arrivals,
  made_twice
};

constexpr int kRows = 8, kThreads = 64;
constexpr int kBoxBytes = kRows * kBoxColumns * 2;

struct CopyArgs {
  TensorMap map;
  half* source;
  float* out;  ///< [out_rows, kBoxColumns]
  int column, row;
  int out_rows = kRows;
};

/// Two phases of a barrier: in each a box comes twice, and the second phase overwrites the first one's place.
template <Mistake mistake>
__device__ void copies(const CopyArgs& args, half* boxes, CopyBarrier* barrier) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    barrier_init(barrier, 1);
    if (mistake == Mistake::made_twice) barrier_init(barrier, 1);
    if (mistake != Mistake::no_maker_fence) fence_shared_for_products();
  }
  if (mistake == Mistake::own_write) boxes[thread] = half{};
  if (mistake == Mistake::own_source) args.source[thread] = half{};
  __syncthreads();
  if (mistake == Mistake::misaligned) boxes += 8;
  for (int phase = 0; phase < 2; ++phase) {
    if (thread == 0) {
      constexpr int kBytes = mistake == Mistake::no_bytes     ? 0
                             : mistake == Mistake::few_bytes  ? kBoxBytes
                             : mistake == Mistake::many_bytes ? 3 * kBoxBytes
                                                              : 2 * kBoxBytes;
      arrive_and_expect(barrier, kBytes);
      if (mistake == Mistake::two_arrivals) arrive_and_expect(barrier, 0);
      copy_box_async(boxes, &args.map, args.column, args.row, barrier);
      copy_box_async(boxes + kBoxBytes / 2, &args.map, args.column, args.row, barrier);
    }
    if (mistake == Mistake::not_awaited) return;
    if (mistake == Mistake::no_wait || mistake == Mistake::other_parity) __syncthreads();
    const bool waits = mistake != Mistake::no_wait && (mistake != Mistake::one_waits || thread == 0);
    if (waits) wait_for_phase(barrier, mistake == Mistake::other_parity ? 1 - phase : phase);
    if (mistake == Mistake::one_waits) __syncthreads();
    for (int row = 0; row < args.out_rows; ++row) {
      const int at = row * kBoxColumns + ((thread / 8) ^ row) * 8 + thread % 8;
      args.out[row * kBoxColumns + thread] =
          0.5f * to_float(boxes[at]) + 0.5f * to_float(boxes[kBoxBytes / 2 + at]);
    }
    if (mistake != Mistake::no_barrier) __syncthreads();
  }
}

template <Mistake mistake>
__global__ void copies_kernel(const __grid_constant__ CopyArgs args) {
  MESHGRAD_SHARED(CopyBarrier, barrier, 1);
  copies<mistake>(args, aligned_shared<half>(), barrier);
}

template <Mistake mistake>
void start(const Stream& stream, CopyArgs args, int64_t rows, int64_t columns) {
  make_tensor_map(args.map, args.source, rows, columns, kRows);
  launch("planted", copies_kernel<mistake>,
         {.blocks = 1, .threads = kThreads, .shared_bytes = 2 * kBoxBytes + kSwizzleBytes}, stream, args);
}

template <Mistake mistake>
Bug bug(const char* name, const char* message) {
  return {name, message, [](const Stream& stream, const Data& data) {
            const CopyArgs args{.source = reinterpret_cast<half*>(data.in), .out = data.out, .out_rows = 4};
            start<mistake>(stream, args, 2, 64);
          }};
}

}  // namespace

const std::vector<Bug>& copy_bugs() {
  static const std::vector<Bug> kBugs = {
      bug<Mistake::no_maker_fence>("a barrier without a fence", "made and has not fenced"),
      bug<Mistake::no_bytes>("no expected bytes", "is in flight"),
      bug<Mistake::few_bytes>("the bytes of one of two boxes", "is in flight"),
      bug<Mistake::many_bytes>("the bytes of three boxes", "1024 of the expected bytes"),
      bug<Mistake::no_wait>("boxes without a wait", "is in flight"),
      bug<Mistake::other_parity>("a wait for the phase before", "is in flight"),
      bug<Mistake::one_waits>("a wait by one thread", "has come unseen"),
      bug<Mistake::no_barrier>("a box over one that is read", "a race"),
      bug<Mistake::own_write>("a box over a thread's write", "wrote and has not fenced"),
      bug<Mistake::own_source>("a box of a thread's write", "wrote and has not fenced"),
      bug<Mistake::misaligned>("a box between multiples of 128 bytes", "at a multiple of 128 bytes"),
      bug<Mistake::not_awaited>("a block that ends before its boxes come", "in flight at the end of block"),
      bug<Mistake::two_arrivals>("two arrivals instead of one", "as many arrivals in a phase"),
      bug<Mistake::made_twice>("a barrier made twice", "one barrier_init for each barrier"),
  };
  return kBugs;
}

void copy_box(const Stream& stream, half* source, float* out, int rows, int columns, int row, int column) {
  start<Mistake::none>(stream, {.source = source, .out = out, .column = column, .row = row}, rows, columns);
}

}  // namespace meshgrad::cuda::planted
