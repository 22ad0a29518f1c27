// SPDX-License-Identifier: Apache-2.0
// state_error: carries a state through the predictions of an unrolled step. Instead of the state itself it
// carries the state error, predicted state minus data, in units of a normalised prediction and in the
// accumulation dtype (f32 beside 16 bits). Small errors so keep their precision. Throws InvalidArgument for a
// shape or dtype that does not fit.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/work.h>

namespace meshgrad {

/// The error after a frame: after = before + prediction - target where mask != 0, else 0.
struct AccumulateErrorForward {
  Rows rows;
  Tensor before;      ///< [rows, width], of accumulator_of(prediction); undefined: zeros
  Tensor prediction;  ///< [rows, width]
  Tensor target;      ///< as `before`
  Tensor mask;        ///< u8 [rows]
  Tensor after;       ///< as `before`, written
};
/// d_before = d_prediction = d_after where mask != 0, else 0. Each is written or added to, and may be
/// undefined.
struct AccumulateErrorBackward {
  Rows rows;
  Tensor d_after;   ///< [rows, width], of accumulator_of(d_prediction)
  Tensor mask;      ///< u8 [rows]
  Tensor d_before;  ///< [rows, width], as d_after
  bool accumulate_d_before = false;
  Tensor d_prediction;  ///< [rows, width]
  bool accumulate_d_prediction = false;
};
/// Adds scaled columns of the state error to a model's inputs, which were computed from data:
/// shifted[r][c] = given[r][c] + ratio[c] * shift[r][source[c]], or given[r][c] where source[c] < 0.
struct AddColumnsForward {
  Rows rows;
  Tensor given;    ///< [rows, columns]
  Tensor shift;    ///< [rows, width], of accumulator_of(given)
  Tensor source;   ///< i32 [columns], each below width: checked on the CPU, a precondition on a GPU
  Tensor ratio;    ///< [columns], dtype as `shift`: unit of a prediction over unit of the column
  Tensor shifted;  ///< [rows, columns], written
};
/// d_shift[r][s] = sum over the columns c of source s, in order, of ratio[c] * d_shifted[r][c].
struct AddColumnsBackward {
  Rows rows;
  Tensor d_shifted;      ///< [rows, columns]
  Tensor source, ratio;  ///< as in forward
  Tensor d_shift;        ///< [rows, width], written or added to
  bool accumulate = false;
};

Work work_of(const AccumulateErrorForward& args);
Work work_of(const AccumulateErrorBackward& args);
Work work_of(const AddColumnsForward& args);
Work work_of(const AddColumnsBackward& args);

struct StateErrorKernels {
  void (*accumulate_error_forward)(const AccumulateErrorForward&, const Stream&);
  void (*accumulate_error_backward)(const AccumulateErrorBackward&, const Stream&);
  void (*add_columns_forward)(const AddColumnsForward&, const Stream&);
  void (*add_columns_backward)(const AddColumnsBackward&, const Stream&);
};

namespace kernels {
void accumulate_error_forward(const AccumulateErrorForward& args, const Stream& stream);
void accumulate_error_backward(const AccumulateErrorBackward& args, const Stream& stream);
void add_columns_forward(const AddColumnsForward& args, const Stream& stream);
void add_columns_backward(const AddColumnsBackward& args, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
