// SPDX-License-Identifier: Apache-2.0
// segment_sum and gather, each the other's transpose; the op-by-op path's scatter-add and concatenation.
// Sums run in the order of the index, in the accumulation type; a GPU cuts long segments in slabs of fixed
// length, whose sums it adds in order. Deterministic, no atomics.
// x and out share one storage dtype (f32, f16 or bf16; f64 on the CPU). Throws InvalidArgument on a shape or
// dtype that does not fit.
#pragma once
#include <meshgrad/engine/tensor.h>

namespace meshgrad {

/// out[s] = sum over i in offsets[s] .. offsets[s+1] of x[order[i]]; without an order, of x[i]. Without
/// offsets, segment s is row s alone: columns of x taken out.
struct SegmentSum {
  Rows segments;
  Tensor offsets;           ///< i32 [segments + 1], or undefined
  Tensor order;             ///< i32 [items], or undefined
  Tensor x;                 ///< [items, width]
  Tensor out;               ///< [segments, width]
  bool accumulate = false;  ///< out += instead of out =
  int64_t x_column = 0;     ///< the columns [x_column, x_column + width(out)) of x are summed
};

/// out[i, column ..] = x[index[i]]: rows of x into a column range of out.
struct Gather {
  Rows rows;
  Tensor index;  ///< i32 [rows]; undefined: row i itself
  Tensor x;      ///< [items, width]
  Tensor out;    ///< [rows, >= out_column + width]
  int64_t out_column = 0;
};

struct SegmentSumKernels {
  void (*segment_sum)(const SegmentSum&, const Stream&);
  void (*gather)(const Gather&, const Stream&);
};

void segment_sum(const SegmentSum& args, const Stream& stream);
void gather(const Gather& args, const Stream& stream);

}  // namespace meshgrad
