// SPDX-License-Identifier: Apache-2.0
// solver_arrays: makes a model's inputs from a host application's arrays, and its fields from a prediction,
// where these arrays live. Computed in f64 as the host computes them, so that both give the same bits: no
// product and sum become one operation. Throws InvalidArgument for a shape or dtype that does not fit.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/work.h>

#include <array>

namespace meshgrad {

/// Columns of one array into another: to[r, to_column + c] = ((from[r, from_column + c] - minus[r,
/// minus_column + c]) - scale[c, 0]) * scale[c, 1]. With `minus` the first difference is rounded to
/// accumulator_of(to), and to 16 bits the result is rounded through f32.
struct MapColumns {
  Rows rows;
  int64_t columns = 0;
  Tensor from;  ///< f32 or f64 [rows, ..], or [1, ..], which all rows get
  int64_t from_column = 0;
  Tensor minus;  ///< [rows, ..], dtype as `from`; undefined: 0
  int64_t minus_column = 0;
  Tensor scale;  ///< f64 [columns, 2]: what is subtracted, and the factor; undefined: 0 and 1
  Tensor kept;   ///< u8 [rows]: rows that stay as they are where it is not 0; undefined: none
  Tensor to;     ///< [rows, ..], written
  int64_t to_column = 0;
};

/// A step of the state: next = base + prediction * deviation + mean where mask != 0, else current. The base
/// is `current`, or 2 current - before where that is given, or 0 in columns whose value is predicted.
struct AdvanceState {
  Rows rows;
  Tensor prediction;  ///< [rows, width], normalised
  Tensor scale;       ///< f64 [width, 2]: mean and standard deviation
  Tensor values;      ///< u8 [width]: not 0 where the value is predicted
  Tensor mask;        ///< u8 [rows]
  Tensor current;     ///< f32 [rows, width]
  Tensor before;      ///< f32 [rows, width]; undefined: changes are predicted, not second changes
  Tensor next;        ///< f32 [rows, width], written
};

/// Features of edges: positions of the sender less those of the receiver, to the nearest image, and the
/// length, each less scale[c, 0] and times scale[c, 1].
struct EdgeDisplacements {
  Rows edges;
  Tensor senders, receivers;       ///< i32 [edges], rows of `positions`
  Tensor positions;                ///< f32 [nodes, dim], dim 2 or 3
  std::array<double, 3> period{};  ///< 0: not periodic
  Tensor scale;                    ///< f64 [dim + 1, 2]
  Tensor features;                 ///< [edges, ..], written from column `column` on
  int64_t column = 0;
};

Work work_of(const MapColumns& args);
Work work_of(const AdvanceState& args);
Work work_of(const EdgeDisplacements& args);

struct SolverArrayKernels {
  void (*map_columns)(const MapColumns&, const Stream&);
  void (*advance_state)(const AdvanceState&, const Stream&);
  void (*edge_displacements)(const EdgeDisplacements&, const Stream&);
};

namespace kernels {
void map_columns(const MapColumns& args, const Stream& stream);
void advance_state(const AdvanceState& args, const Stream& stream);
void edge_displacements(const EdgeDisplacements& args, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
