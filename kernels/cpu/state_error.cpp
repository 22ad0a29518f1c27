// SPDX-License-Identifier: Apache-2.0
// Rows have two or three components, so plain loops: vectors would be mostly empty.
#include <meshgrad/kernels/tables.h>

#include <algorithm>

namespace meshgrad::cpu {
namespace {

/// Calls body(row) for every real row, kSlab rows to a task.
template <class Body>
void for_rows(const Stream& stream, const Rows& rows, Body&& body) {
  constexpr int64_t kSlab = 4096;
  const int64_t real = rows.value();
  stream.parallel_for((real + kSlab - 1) / kSlab, [&](int64_t slab) {
    for (int64_t row = slab * kSlab; row < std::min(real, (slab + 1) * kSlab); ++row) body(row);
  });
}

/// Writes or adds a value to an output that may be absent (null).
template <class S>
void write_optional(S* to, int64_t at, bool accumulate, Accumulator<S> value) {
  if (to == nullptr) return;
  if (accumulate) value += static_cast<Accumulator<S>>(to[at]);
  to[at] = S(value);
}

template <class S>
void accumulate_error_forward_of(const AccumulateErrorForward& args, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t width = args.prediction.width();
  const uint8_t* mask = args.mask.data<uint8_t>();
  const S* prediction = args.prediction.data<S>();
  const A* before = args.before.data_or_null<A>();
  const A* target = args.target.data_or_null<A>();
  A* after = args.after.data<A>();
  for_rows(stream, args.rows, [&](int64_t row) {
    for (int64_t i = row * width; i < (row + 1) * width; ++i) {
      if (mask[row] == 0) {
        after[i] = A(0);
        continue;
      }
      // prediction - target first: both are near each other, and `before` may be larger.
      const A error = static_cast<A>(prediction[i]) - (target != nullptr ? target[i] : A(0));
      after[i] = before != nullptr ? before[i] + error : error;
    }
  });
}

template <class S>
void accumulate_error_backward_of(const AccumulateErrorBackward& args, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t width = args.d_after.width();
  const uint8_t* mask = args.mask.data<uint8_t>();
  const A* d_after = args.d_after.data<A>();
  A* d_before = args.d_before.data_or_null<A>();
  S* d_prediction = args.d_prediction.data_or_null<S>();
  for_rows(stream, args.rows, [&](int64_t row) {
    for (int64_t i = row * width; i < (row + 1) * width; ++i) {
      const A gradient = mask[row] != 0 ? d_after[i] : A(0);
      write_optional(d_before, i, args.accumulate_d_before, gradient);
      write_optional(d_prediction, i, args.accumulate_d_prediction, gradient);
    }
  });
}

template <class S>
void add_columns_forward_of(const AddColumnsForward& args, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t columns = args.given.width(), width = args.shift.width();
  const int32_t* source = args.source.data<int32_t>();
  const A* ratio = args.ratio.data<A>();
  const A* shift = args.shift.data<A>();
  const S* given = args.given.data<S>();
  S* shifted = args.shifted.data<S>();
  for_rows(stream, args.rows, [&](int64_t row) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = row * columns + c;
      shifted[i] =
          source[c] < 0 ? given[i] : S(static_cast<A>(given[i]) + ratio[c] * shift[row * width + source[c]]);
    }
  });
}

/// Sums over columns in ascending order, so the result is deterministic. columns * width is small: a search
/// per output costs less than an inverted index.
template <class S>
void add_columns_backward_of(const AddColumnsBackward& args, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t columns = args.d_shifted.width(), width = args.d_shift.width();
  const int32_t* source = args.source.data<int32_t>();
  const A* ratio = args.ratio.data<A>();
  const S* d_shifted = args.d_shifted.data<S>();
  A* d_shift = args.d_shift.data<A>();
  for_rows(stream, args.rows, [&](int64_t row) {
    for (int64_t s = 0; s < width; ++s) {
      A sum = A(0);
      for (int64_t c = 0; c < columns; ++c)
        if (source[c] == s) sum += ratio[c] * static_cast<A>(d_shifted[row * columns + c]);
      write_optional(d_shift, row * width + s, args.accumulate, sum);
    }
  });
}

}  // namespace

const StateErrorKernels state_error_kernels{
    .accumulate_error_forward =
        [](const AccumulateErrorForward& args, const Stream& stream) {
          dispatch_cpu_storage(args.prediction.dtype(),
                               [&]<class S>() { accumulate_error_forward_of<S>(args, stream); });
        },
    .accumulate_error_backward =
        [](const AccumulateErrorBackward& args, const Stream& stream) {
          const Tensor& stored = args.d_prediction.defined() ? args.d_prediction : args.d_after;
          dispatch_cpu_storage(stored.dtype(),
                               [&]<class S>() { accumulate_error_backward_of<S>(args, stream); });
        },
    .add_columns_forward =
        [](const AddColumnsForward& args, const Stream& stream) {
          dispatch_cpu_storage(args.given.dtype(),
                               [&]<class S>() { add_columns_forward_of<S>(args, stream); });
        },
    .add_columns_backward =
        [](const AddColumnsBackward& args, const Stream& stream) {
          dispatch_cpu_storage(args.d_shifted.dtype(),
                               [&]<class S>() { add_columns_backward_of<S>(args, stream); });
        },
};

}  // namespace meshgrad::cpu
