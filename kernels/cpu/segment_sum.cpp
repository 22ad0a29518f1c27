// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cpu/row_ops.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>

namespace meshgrad::cpu {
namespace {

constexpr int64_t kRowsPerTask = 256;  // of out: enough to outweigh starting a task

/// Calls body(row) for every row, kRowsPerTask to a task.
template <class Body>
void over_rows(const Stream& stream, int64_t rows, Body&& body) {
  stream.parallel_for((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    for (int64_t i = task * kRowsPerTask; i < std::min(rows, (task + 1) * kRowsPerTask); ++i) body(i);
  });
}

/// One output row a segment; its sum stays in registers (RowOps::sum_rows) and is rounded once.
template <class S, class To>
void segment_sum_of(const SegmentSum& args, const Stream& stream) {
  const int32_t* offsets = args.offsets.data_or_null<int32_t>();
  const RowSum sum{.accumulate = args.accumulate,
                   .mean = args.mean,
                   .order = args.order.data_or_null<int32_t>(),
                   .index = args.index.data_or_null<int32_t>(),
                   .weights = args.weights.data_or_null<float>()};
  const int64_t width = args.out.width();
  const int64_t stride = args.x.width();
  const S* x = args.x.data<S>() + args.x_column;
  const RowOps<S>& ops = row_ops<S>();
  over_rows(stream, args.segments.value(), [&](int64_t segment) {
    const int64_t begin = offsets != nullptr ? offsets[segment] : segment;
    const int64_t end = offsets != nullptr ? offsets[segment + 1] : segment + 1;
    To* const out = args.out.data<To>() + segment * width;
    if constexpr (std::is_same_v<S, To>) {
      ops.sum_rows(sum, begin, end, width, x, stride, out);
    } else {
      ops.sum_rows_wide(sum, begin, end, width, x, stride, out);
    }
  });
}

/// Copies bits: T only says how many.
template <class T>
void gather_of(const Gather& args, const Stream& stream) {
  const int32_t* index = args.index.data_or_null<int32_t>();
  const int64_t width = args.x.width();
  over_rows(stream, args.rows.value(), [&](int64_t i) {
    std::copy_n(args.x.data<T>() + (index != nullptr ? index[i] : i) * width, width,
                args.out.data<T>() + i * args.out.width() + args.out_column);
  });
}

}  // namespace

const SegmentSumKernels segment_sum_kernels{
    .segment_sum =
        [](const SegmentSum& args, const Stream& stream) {
          dispatch_cpu_storage(args.x.dtype(), [&]<class S>() {
            if (args.out.dtype() == args.x.dtype()) {
              segment_sum_of<S, S>(args, stream);
            } else {
              segment_sum_of<S, Accumulator<S>>(args, stream);
            }
          });
        },
    .gather =
        [](const Gather& args, const Stream& stream) {
          dispatch_cpu_storage(args.out.dtype(), [&]<class T>() { gather_of<T>(args, stream); });
        },
};

}  // namespace meshgrad::cpu
