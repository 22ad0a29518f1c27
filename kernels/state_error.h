// SPDX-License-Identifier: Apache-2.0
// unroll: what carries a state from one prediction of a model to the next. The state is held as its deviation
// from the data, in the unit of a normalised prediction and, beside predictions in 16 bits, in f32: so it
// stays exact where the prediction is good.
#pragma once
#include <meshgrad/engine/tensor.h>

namespace meshgrad {

/// after = before + prediction - target where mask != 0, else 0.
struct DeviationForward {
  Rows rows;
  Tensor before;      ///< [rows, width], of accumulator_of(prediction); undefined: 0
  Tensor prediction;  ///< [rows, width]
  Tensor target;      ///< as `before`
  Tensor mask;        ///< u8 [rows]
  Tensor after;       ///< as `before`, written
};
/// d_before = d_prediction = d_after where mask != 0, else 0; each is written or added to, and may be
/// undefined.
struct DeviationBackward {
  Rows rows;
  Tensor d_after;  ///< [rows, width], of accumulator_of(d_prediction)
  Tensor mask;     ///< u8 [rows]
  Tensor d_before;
  bool accumulate_d_before = false;
  Tensor d_prediction;
  bool accumulate_d_prediction = false;
};
/// shifted[r][c] = given[r][c] + ratio[c] * shift[r][source[c]], or given[r][c] where source[c] < 0.
struct ShiftForward {
  Rows rows;
  Tensor given;    ///< [rows, columns]
  Tensor shift;    ///< [rows, width], of accumulator_of(given)
  Tensor source;   ///< i32 [columns], each below width: checked on the CPU, the caller's promise on a GPU
  Tensor ratio;    ///< [columns], as `shift`
  Tensor shifted;  ///< [rows, columns], written
};
/// d_shift[r][s] = sum over the columns c of source s, in order, of ratio[c] * d_shifted[r][c].
struct ShiftBackward {
  Rows rows;
  Tensor d_shifted;  ///< [rows, columns]
  Tensor source, ratio;
  Tensor d_shift;  ///< [rows, width], written or added to
  bool accumulate = false;
};

struct StateErrorKernels {
  void (*deviation_forward)(const DeviationForward&, const Stream&);
  void (*deviation_backward)(const DeviationBackward&, const Stream&);
  void (*shift_forward)(const ShiftForward&, const Stream&);
  void (*shift_backward)(const ShiftBackward&, const Stream&);
};

void deviation_forward(const DeviationForward& args, const Stream& stream);
void deviation_backward(const DeviationBackward& args, const Stream& stream);
void shift_forward(const ShiftForward& args, const Stream& stream);
void shift_backward(const ShiftBackward& args, const Stream& stream);

}  // namespace meshgrad
