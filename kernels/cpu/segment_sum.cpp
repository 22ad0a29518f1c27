// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cpu/tile.h>
#include <meshgrad/kernels/segment_sum.h>

#include <algorithm>
#include <vector>

namespace meshgrad::cpu {
namespace {

constexpr int64_t kRowsPerTask = 256;

/// Calls body(row, a row of scratch) for every row.
template <class T, class Body>
void over_rows(const Stream& stream, int64_t rows, int64_t width, Body&& body) {
  stream.parallel_for((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    std::vector<T> scratch(static_cast<size_t>(width));
    for (int64_t i = task * kRowsPerTask; i < std::min(rows, (task + 1) * kRowsPerTask); ++i)
      body(i, scratch.data());
  });
}

template <class S>
void segment_sum_of(const SegmentSum& args, const Stream& stream) {
  using T = Accumulator<S>;
  const TileOps<S>& ops = tile_ops<S>();
  const int32_t* offsets = args.offsets.data_or_null<int32_t>();
  const int32_t* order = args.order.data_or_null<int32_t>();
  const int64_t width = args.out.width();
  const int64_t stride = args.x.width();
  const S* x = args.x.data<S>() + args.x_column;
  over_rows<T>(stream, args.segments.value(), width, [&](int64_t segment, T* sum) {
    S* out = args.out.data<S>() + segment * width;
    if (args.accumulate) {
      ops.load(1, width, out, 0, sum, 0);
    } else {
      std::fill_n(sum, width, T(0));
    }
    const int64_t begin = offsets != nullptr ? offsets[segment] : segment;
    const int64_t end = offsets != nullptr ? offsets[segment + 1] : segment + 1;
    for (int64_t i = begin; i < end; ++i) {
      ops.add(1, width, x + (order != nullptr ? order[i] : i) * stride, 0, sum, 0);
    }
    ops.store(1, width, sum, 0, out, 0);
  });
}

template <class T>
void gather_of(const Gather& args, const Stream& stream) {
  const int32_t* index = args.index.data_or_null<int32_t>();
  const int64_t width = args.x.width();
  over_rows<T>(stream, args.rows.value(), 0, [&](int64_t i, T*) {
    std::copy_n(args.x.data<T>() + (index != nullptr ? index[i] : i) * width, width,
                args.out.data<T>() + i * args.out.width() + args.out_column);
  });
}

}  // namespace

const SegmentSumKernels segment_sum_kernels{
    .segment_sum =
        [](const SegmentSum& args, const Stream& stream) {
          dispatch_cpu_storage(args.out.dtype(), [&]<class S>() { segment_sum_of<S>(args, stream); });
        },
    .gather =
        [](const Gather& args, const Stream& stream) {
          dispatch_cpu_storage(args.out.dtype(), [&]<class T>() { gather_of<T>(args, stream); });
        },
};

}  // namespace meshgrad::cpu
