// SPDX-License-Identifier: Apache-2.0
// Sums of consecutive rows (CSR offsets), and copies of rows by index. One group of lanes per segment, lanes
// over its columns: neither atomics nor shuffles, and each sum runs in item order. Segments of a mesh are
// about as long as one another (a node has about six edges); only a hub node takes the path of a whole block.
#include <meshgrad/kernels/cuda/row_access.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

constexpr int kSegmentThreads = 128;
/// Longer segments are summed by a whole block, in slabs of kSlab items whose sums are added in order. Both
/// numbers fix the order of a sum and so its bits; neither depends on the device.
constexpr int kLongSegment = 512;
constexpr int kSlab = 64;

/// Without weights there is no index either.
template <class T, class To, bool kWeighted>
struct SumArgs {
  Rows segments;
  const int32_t *offsets, *order, *index;  // null: one row per segment; rows in place
  const float* weights;                    // null: 1
  const T* x;                              // at the first column
  To* out;
  int64_t stride;  // from one row of x to the next
  int width, lanes;
  bool accumulate, mean;
};

/// Adds the kElements columns at `column` of items [begin, end) in order; nothing when begin >= end. Four
/// loads are issued before their values are added, since a segment is a chain of dependent additions that
/// would otherwise wait for memory at every item.
template <class T, class To, bool kWeighted, int kElements>
__device__ void add_items(const SumArgs<T, To, kWeighted>& args, int64_t begin, int64_t end, int column,
                          float (&sums)[kElements]) {
  constexpr int kAtOnce = 4;
  // Of item i; returns its weight. 1 * v + sum is v + sum, rounded once.
  const auto load_item = [&](int64_t i, float(&v)[kElements]) {
    const int64_t k = args.order != nullptr ? int64_t{args.order[i]} : i;
    const int64_t row = kWeighted && args.index != nullptr ? int64_t{args.index[k]} : k;
    load_floats(args.x + row * args.stride + column, v);
    return kWeighted && args.weights != nullptr ? args.weights[k] : 1.0f;
  };
  int64_t i = begin;
  for (; i + kAtOnce <= end; i += kAtOnce) {
    float v[kAtOnce][kElements], weight[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) weight[k] = load_item(i + k, v[k]);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) sums[e] = fmaf(weight[k], v[k][e], sums[e]);
    }
  }
  for (; i < end; ++i) {
    float v[kElements];
    const float weight = load_item(i, v);
#pragma unroll
    for (int e = 0; e < kElements; ++e) sums[e] = fmaf(weight, v[e], sums[e]);
  }
}

template <class T, class To, bool kWeighted, int kElements>
__device__ void write_sum(const SumArgs<T, To, kWeighted>& args, int64_t segment, int column,
                          float (&sums)[kElements]) {
  To* const to = args.out + segment * args.width + column;
  if (args.accumulate) {
    float start[kElements];
    load_floats(to, start);
#pragma unroll
    for (int e = 0; e < kElements; ++e) sums[e] += start[e];
  }
  if (args.mean) {
    const auto items = static_cast<float>(max(args.offsets[segment + 1] - args.offsets[segment], 1));
#pragma unroll
    for (int e = 0; e < kElements; ++e) sums[e] /= items;
  }
  store_floats(to, sums);
}

/// One long segment by the whole block, kSlab items per group and round: each group sums its slab, then the
/// first group adds the slabs' sums in order. `slabs` is [kSegmentThreads, kElements], one row per thread.
template <class T, class To, bool kWeighted, int kElements>
__device__ void sum_long(const SumArgs<T, To, kWeighted>& args, int64_t segment, float (*slabs)[kElements]) {
  const int lane = static_cast<int>(threadIdx.x) % args.lanes;
  const int group = static_cast<int>(threadIdx.x) / args.lanes;
  const int groups = kSegmentThreads / args.lanes;
  const int64_t begin = args.offsets[segment], end = args.offsets[segment + 1];
  for (int first = 0; first < args.width; first += args.lanes * kElements) {
    const int column = first + lane * kElements;
    const bool mine = column < args.width;
    float total[kElements] = {};
    for (int64_t round = begin; round < end; round += int64_t{groups} * kSlab) {
      const int64_t slab = round + int64_t{group} * kSlab;
      float sums[kElements] = {};
      if (mine) add_items(args, slab, min(slab + kSlab, end), column, sums);
#pragma unroll
      for (int e = 0; e < kElements; ++e) slabs[threadIdx.x][e] = sums[e];
      __syncthreads();  // the slabs' sums are complete
      if (group == 0) {
        for (int g = 0; g < groups && round + int64_t{g} * kSlab < end; ++g) {
#pragma unroll
          for (int e = 0; e < kElements; ++e) total[e] += slabs[g * args.lanes + lane][e];
        }
      }
      __syncthreads();  // and read: the next round overwrites them
    }
    if (group == 0 && mine) write_sum(args, segment, column, total);
  }
}

/// Short segments first, one per group; then the block comes together for the long ones among its segments.
template <class T, class To, bool kWeighted, int kElements>
__global__ void segment_sum_kernel(SumArgs<T, To, kWeighted> args) {
  MESHGRAD_SHARED(float, slabs, kSegmentThreads* kElements);
  const int64_t segments = real_rows(args.segments);
  const int lane = static_cast<int>(threadIdx.x) % args.lanes;
  const int group = static_cast<int>(threadIdx.x) / args.lanes;
  const int groups = kSegmentThreads / args.lanes;
  const int64_t step = int64_t{gridDim.x} * groups;
  int has_long = 0;
  for (int64_t segment = int64_t{blockIdx.x} * groups + group; segment < segments; segment += step) {
    const int64_t begin = args.offsets != nullptr ? int64_t{args.offsets[segment]} : segment;
    const int64_t end = args.offsets != nullptr ? int64_t{args.offsets[segment + 1]} : segment + 1;
    if (end - begin > kLongSegment) {
      has_long = 1;
      continue;
    }
    for (int column = lane * kElements; column < args.width; column += args.lanes * kElements) {
      float sums[kElements] = {};
      add_items(args, begin, end, column, sums);
      write_sum(args, segment, column, sums);
    }
  }
  if (__syncthreads_or(has_long) == 0) return;  // the same answer for all threads: sum_long has barriers
  for (int64_t first = int64_t{blockIdx.x} * groups; first < segments; first += step) {
    for (int64_t segment = first; segment < first + groups && segment < segments; ++segment) {
      if (args.offsets[segment + 1] - args.offsets[segment] > kLongSegment)
        sum_long(args, segment, reinterpret_cast<float(*)[kElements]>(slabs));
    }
  }
}

template <class T>
struct GatherArgs {
  Rows rows;
  const int32_t* index;  // null: row i itself
  const T* x;
  T* out;          // at the first column
  int64_t stride;  // from one row of out to the next
  int width, lanes;
};

/// out[row] = x[index[row]], bits unchanged.
template <class T, int kElements>
__global__ void gather_kernel(GatherArgs<T> args) {
  using Access = std::conditional_t<kElements == 1, T, Vector<T>>;
  const int64_t rows = real_rows(args.rows);
  const int lane = static_cast<int>(threadIdx.x) % args.lanes;
  const int group = static_cast<int>(threadIdx.x) / args.lanes;
  const int groups = kSegmentThreads / args.lanes;
  for (int64_t row = int64_t{blockIdx.x} * groups + group; row < rows; row += int64_t{gridDim.x} * groups) {
    const int64_t from = args.index != nullptr ? int64_t{args.index[row]} : row;
    for (int column = lane * kElements; column < args.width; column += args.lanes * kElements) {
      *reinterpret_cast<Access*>(args.out + row * args.stride + column) =
          *reinterpret_cast<const Access*>(args.x + from * args.width + column);
    }
  }
}

/// Calls `body.template operator()<kElements>(lanes, shape)` for rows of this width.
template <class T, class Body>
void dispatch_width(int64_t rows, int64_t width, bool vectors, const Stream& stream, Body&& body) {
  const auto call = [&]<int kElements>() {
    const int lanes = lanes_of(width, kElements);
    body.template operator()<kElements>(
        lanes, LaunchShape{persistent_blocks(stream, rows, kSegmentThreads / lanes, 16), kSegmentThreads, 0});
  };
  if (vectors) {
    call.template operator()<Vector<T>::kSize>();
  } else {
    call.template operator()<1>();
  }
}

/// Vectors if the sum's first column, every row of x and every row of out are at multiples of 16 bytes.
template <class T, class To, bool kWeighted>
void segment_sum_of(const SegmentSum& args, const Stream& stream) {
  const int64_t width = args.out.width(), stride = args.x.width();
  const T* x = args.x.data<T>() + args.x_column;
  const bool vectors = vectors_fit<T>(width, {x, args.out.raw()}) && stride % Vector<T>::kSize == 0;
  dispatch_width<T>(
      args.segments.capacity, width, vectors, stream,
      [&]<int kElements>(int lanes, const LaunchShape& shape) {
        launch("segment_sum", segment_sum_kernel<T, To, kWeighted, kElements>, shape, stream,
               SumArgs<T, To, kWeighted>{
                   args.segments, args.offsets.data_or_null<int32_t>(), args.order.data_or_null<int32_t>(),
                   args.index.data_or_null<int32_t>(), args.weights.data_or_null<float>(), x,
                   args.out.data<To>(), stride, static_cast<int>(width), lanes, args.accumulate, args.mean});
      });
}

void segment_sum(const SegmentSum& args, const Stream& stream) {
  if (args.out.width() == 0) return;
  const bool weighted = args.weights.defined() || args.index.defined();
  dispatch_gpu_storage(args.x.dtype(), [&]<class T>() {
    const bool same = args.out.dtype() == args.x.dtype();
    if (same && weighted) {
      segment_sum_of<T, T, true>(args, stream);
    } else if (same) {
      segment_sum_of<T, T, false>(args, stream);
    } else {
      segment_sum_of<T, float, true>(args, stream);
    }
  });
}

void gather(const Gather& args, const Stream& stream) {
  const int64_t width = args.x.width(), stride = args.out.width();
  if (width == 0) return;
  dispatch_gpu_storage(args.out.dtype(), [&]<class T>() {
    T* out = args.out.data<T>() + args.out_column;
    const bool vectors = vectors_fit<T>(width, {args.x.raw(), out}) && stride % Vector<T>::kSize == 0;
    dispatch_width<T>(args.rows.capacity, width, vectors, stream,
                      [&]<int kElements>(int lanes, const LaunchShape& shape) {
                        launch("gather", gather_kernel<T, kElements>, shape, stream,
                               GatherArgs<T>{args.rows, args.index.data_or_null<int32_t>(), args.x.data<T>(),
                                             out, stride, static_cast<int>(width), lanes});
                      });
  });
}

}  // namespace

const SegmentSumKernels segment_sum_kernels{.segment_sum = segment_sum, .gather = gather};

}  // namespace meshgrad::cuda
