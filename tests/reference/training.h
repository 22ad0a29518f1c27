// SPDX-License-Identifier: Apache-2.0
// Reference implementations of reduction, class_loss, optimizer and state_error.
#pragma once
#include <meshgrad/kernels/loss_form.h>
#include <meshgrad/kernels/optimizer.h>

#include "reference/matrix.h"

namespace meshgrad::reference {

struct Loss {
  double sum = 0.0;
  double weight = 0.0;
};
/// Rows whose mask is 0 do not count.
Loss masked_loss(const Matrix& prediction, const Matrix& target, const std::vector<uint8_t>& mask);
Matrix masked_loss_backward(const Matrix& prediction, const Matrix& target, const std::vector<uint8_t>& mask,
                            double seed);
/// The same with a form; one weight a row and column.
struct Form {
  LossKind kind = LossKind::squared;
  double delta = 1.0, factor = 1.0;
  std::vector<double> rows, columns;
};
Loss formed_loss(const Matrix& prediction, const Matrix& target, const std::vector<uint8_t>& mask,
                 const Form& form);
Matrix formed_loss_backward(const Matrix& prediction, const Matrix& target, const std::vector<uint8_t>& mask,
                            const Form& form, double seed);

/// Of class_loss; without logits there is none.
struct Teacher {
  Matrix logits = Matrix(0, 0);
  double share = 0.0, temperature = 1.0;
};
/// Cross entropy of each row's softmax with its label, times the label's weight; empty weights: 1.
Loss class_loss(const Matrix& logits, const std::vector<int32_t>& labels, const std::vector<uint8_t>& mask,
                const std::vector<float>& weights = {}, const Teacher& teacher = {});
Matrix class_loss_backward(const Matrix& logits, const std::vector<int32_t>& labels,
                           const std::vector<uint8_t>& mask, double seed,
                           const std::vector<float>& weights = {}, const Teacher& teacher = {});

double sum_of_squares(const std::vector<double>& x);

/// before + prediction - target, 0 in rows whose mask is 0. Its gradient by `before` and by `prediction` is
/// masked(gradient).
Matrix accumulate_error(const Matrix& before, const Matrix& prediction, const Matrix& target,
                        const std::vector<uint8_t>& mask);
Matrix masked(Matrix gradient, const std::vector<uint8_t>& mask);
/// given[:, c] + ratio[c] * shift[:, source[c]] where source[c] >= 0; and the gradient by `shift`.
Matrix add_columns(const Matrix& given, const Matrix& shift, const std::vector<int32_t>& source,
                   const Matrix& ratio);
Matrix add_columns_backward(const Matrix& d_shifted, int64_t width, const std::vector<int32_t>& source,
                            const Matrix& ratio);

struct OptimizerStep {
  OptimizerKind kind = OptimizerKind::adam;
  double learning_rate = 0.0;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0, momentum = 0.0;
  int64_t step = 1;             ///< 1 at the first update
  double gradient_scale = 1.0;  ///< gradients are multiplied by this first
  double clip_norm = 0.0;       ///< 0: no clipping
};
struct OptimizerState {
  std::vector<double> parameters, first_moment, second_moment;
};
void optimizer_step(const OptimizerStep& settings, const std::vector<double>& gradients,
                    OptimizerState& state);

}  // namespace meshgrad::reference
