// SPDX-License-Identifier: Apache-2.0
// class_loss: the cross entropy of logits and labels, -log softmax(logits)[label], over the rows of a mask. A
// row's maximum is subtracted first, so that no exponential overflows. Each row is computed in the
// accumulation dtype, and rows are summed in f64 over slabs of fixed size, in order: results depend neither
// on threads nor on the capacity after the real rows. Throws InvalidArgument for a shape or dtype that does
// not fit.
//
// A label of a row in the mask is at least 0 and below the number of classes: a precondition, which
// the host checks where it makes the batch. Any other label reads no memory; it makes the loss and the row's
// gradient NaN.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/teacher_output.h>
#include <meshgrad/kernels/work.h>

namespace meshgrad {

/// sum = sum over rows with mask != 0 of w[labels[i]] (log(sum over c of exp(logits[i, c])) - logits[i,
/// labels[i]]); weight = sum over such rows of w[labels[i]], with w the class weights. Not a mean: the caller
/// divides by the weight of all micro-batches of a step. With a teacher the cross entropy of a row is
/// (1 - share) of its loss.
struct ClassLossForward {
  Rows rows;
  Tensor logits;              ///< [rows, classes]
  Tensor labels;              ///< i32 [rows]; of rows outside the mask anything
  Tensor mask;                ///< u8 [rows]
  Tensor sum;                 ///< f64 scalar [1], written
  Tensor weight;              ///< f64 scalar [1], written
  Tensor class_weights = {};  ///< f32 [classes]; undefined: 1
  TeacherOutput teacher = {};
};
/// d_logits[i, c] = seed * w[labels[i]] * (softmax(logits[i])[c] - (c == labels[i])) where mask != 0, else 0.
/// With a teacher: (1 - share) of it, and share * T * (softmax(logits[i] / T)[c] - softmax(teacher[i] /
/// T)[c]).
struct ClassLossBackward {
  Rows rows;
  Tensor logits, labels, mask;  ///< as in forward
  Tensor seed;                  ///< f64 scalar [1] in device memory: gradient of the loss by `sum`
  Tensor d_logits;              ///< [rows, classes], written
  Tensor class_weights = {};    ///< as in forward
  TeacherOutput teacher = {};
};

Work work_of(const ClassLossForward& args);
Work work_of(const ClassLossBackward& args);

struct ClassLossKernels {
  void (*class_loss_forward)(const ClassLossForward&, Runtime&, const Stream&);
  void (*class_loss_backward)(const ClassLossBackward&, const Stream&);
};

namespace kernels {
void class_loss_forward(const ClassLossForward& args, Runtime& runtime, const Stream& stream);
void class_loss_backward(const ClassLossBackward& args, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
