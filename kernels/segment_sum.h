// SPDX-License-Identifier: Apache-2.0
// segment_sum and gather, each the other's transpose: scatter-add and concatenation of the op-by-op path.
// Sums run in index order, in the accumulation dtype; a GPU splits long segments into slabs of fixed length
// and adds their sums in order. Deterministic, no atomics. x and out share one storage dtype (f32, f16 or
// bf16; f64 on the CPU). Throws InvalidArgument for a shape or dtype that does not fit.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/work.h>

namespace meshgrad {

/// out[s] = sum over i in offsets[s] .. offsets[s+1] - 1 of weights[k] x[index[k]], with k = order[i].
/// Without `order`: k = i. Without `index`: x[k]. Without `weights`: 1. Without `offsets`, segment s is only
/// row s, which copies a range of columns.
struct SegmentSum {
  Rows segments;
  Tensor offsets;           ///< i32 [segments + 1], or undefined
  Tensor order;             ///< i32 [items], or undefined
  Tensor x;                 ///< [items, width]; with an index of any number of rows
  Tensor out;               ///< [segments, width]; may be in the accumulation dtype
  bool accumulate = false;  ///< out += instead of out =
  int64_t x_column = 0;     ///< sums the columns [x_column, x_column + width(out)) of x
  Tensor index = {};        ///< i32 [items], or undefined
  Tensor weights = {};      ///< f32 [items], or undefined
  bool mean = false;        ///< divides a sum by the number of its items; not with `accumulate`
};

/// out[i, out_column ..] = x[index[i]]: copies rows of x into a column range of out.
struct Gather {
  Rows rows;
  Tensor index;  ///< i32 [rows]; undefined: index[i] = i
  Tensor x;      ///< [items, width]
  Tensor out;    ///< [rows, >= out_column + width]
  int64_t out_column = 0;
};

Work work_of(const SegmentSum& args);
Work work_of(const Gather& args);

struct SegmentSumKernels {
  void (*segment_sum)(const SegmentSum&, const Stream&);
  void (*gather)(const Gather&, const Stream&);
};

namespace kernels {
void segment_sum(const SegmentSum& args, const Stream& stream);
void gather(const Gather& args, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
