// SPDX-License-Identifier: Apache-2.0
// The masked loss with another cost than the square, and with weights.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "mlp_case.h"
#include "reference/training.h"

namespace meshgrad::test {
namespace {

Tensor seed_of(Runtime& runtime, double value) {
  return Tensor::from<double>(runtime, std::vector<double>{value}, Shape{1}, Tag::data, "seed");
}
double number_in(Runtime& runtime, const Tensor& tensor) {
  return meshgrad::to_host(tensor, runtime.stream()).values<double>()[0];
}

/// Weights that f32 has exactly; some are 0.
reference::Form random_form(LossKind kind, RandomMatrices& random, int64_t rows, int64_t width) {
  reference::Form form{.kind = kind, .delta = 0.75, .factor = 0.5, .rows = {}, .columns = {}};
  form.rows = stored_as(DType::f32, random.normal(1, rows)).v;
  for (size_t i = 0; i < form.rows.size(); ++i) form.rows[i] = i % 4 == 1 ? 0.0 : std::abs(form.rows[i]);
  for (int64_t j = 0; j < width; ++j) form.columns.push_back(1.0 + 0.25 * static_cast<double>(j % 8));
  return form;
}

LossForm on_device(Runtime& runtime, const reference::Form& form, DType dtype) {
  const auto vector = [&](const std::vector<double>& values) {
    Matrix row(1, static_cast<int64_t>(values.size()));
    row.v = values;
    return to_vector(runtime, row, dtype);
  };
  return {.kind = form.kind,
          .delta = form.delta,
          .factor = form.factor,
          .row_weights = vector(form.rows),
          .column_weights = vector(form.columns)};
}

TEST_CASE("losses of every kind agree with the reference") {
  uint64_t seed = 2400;
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      const DType wide = accumulator_of(dtype);
      for (const LossKind kind : {LossKind::squared, LossKind::huber, LossKind::absolute}) {
        for (const auto& [width, weighted_columns] :
             {std::pair<int64_t, bool>{1, true}, {3, true}, {3, false}}) {
          for (const int64_t rows : backend.sizes_and(width == 1, 20011)) {
            RandomMatrices random(seed++);
            CAPTURE(static_cast<int>(kind));
            CAPTURE(weighted_columns);
            CAPTURE(rows);
            CAPTURE(random.seed());
            Runtime runtime = backend.runtime();
            const Matrix prediction = stored_as(dtype, random.normal(rows, width));
            const Matrix target = stored_as(wide, random.normal(rows, width));
            const std::vector<uint8_t> mask = random.mask(rows, 0.6);
            reference::Form form = random_form(kind, random, rows, width);
            if (!weighted_columns) form.columns.assign(form.columns.size(), 1.0);
            MaskedLossForward forward{.rows = rows,
                                      .prediction = to_tensor(runtime, prediction, dtype),
                                      .target = to_tensor(runtime, target, wide),
                                      .mask = mask_tensor(runtime, mask),
                                      .sum = unwritten(runtime, {1}, DType::f64),
                                      .weight = unwritten(runtime, {1}, DType::f64),
                                      .form = on_device(runtime, form, wide)};
            if (!weighted_columns) forward.form.column_weights = {};
            backend.kernels->reduction.masked_loss_forward(forward, runtime, runtime.stream());
            const auto ref = reference::formed_loss(prediction, target, mask, form);
            CHECK(std::abs(number_in(runtime, forward.sum) - ref.sum) <=
                  tolerance(DType::f64, rows * width, ref.sum));
            CHECK(std::abs(number_in(runtime, forward.weight) - ref.weight) <=
                  tolerance(DType::f64, rows, ref.weight));
            const MaskedLossBackward backward{.rows = rows,
                                              .prediction = forward.prediction,
                                              .target = forward.target,
                                              .mask = forward.mask,
                                              .seed = seed_of(runtime, 0.037),
                                              .d_prediction = unwritten(runtime, {rows, width}, dtype),
                                              .form = forward.form};
            backend.kernels->reduction.masked_loss_backward(backward, runtime.stream());
            CHECK(difference(backward.d_prediction,
                             reference::formed_loss_backward(prediction, target, mask, form, 0.037),
                             1) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("losses ignore rows of weight 0 and do not clip NaN") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Backend& backend : backends()) {
    for (const LossKind kind : {LossKind::squared, LossKind::huber, LossKind::absolute}) {
      CAPTURE(static_cast<int>(kind));
      Runtime runtime = backend.runtime();
      Matrix prediction(3, 1);
      prediction.v = {nan, 0.0, 5.0};
      const LossForm form =
          on_device(runtime, {.kind = kind, .delta = 1.0, .factor = 1.0, .rows = {0, 1, 1}, .columns = {1}},
                    DType::f32);
      const auto gradient = [&](const Matrix& values) {
        const Tensor d = unwritten(runtime, {3, 1}, DType::f32);
        backend.kernels->reduction.masked_loss_backward({.rows = 3,
                                                         .prediction = to_tensor(runtime, values, DType::f32),
                                                         .target = {},
                                                         .mask = mask_tensor(runtime, {1, 1, 1}),
                                                         .seed = seed_of(runtime, 1.0),
                                                         .d_prediction = d,
                                                         .form = form},
                                                        runtime.stream());
        return to_matrix(d).v;
      };
      const double last = kind == LossKind::squared ? 10.0 : kind == LossKind::huber ? 2.0 : 1.0;
      CHECK(gradient(prediction) == std::vector<double>{0.0, 0.0, last});
      prediction.v[1] = nan;
      CHECK(std::isnan(gradient(prediction)[1]));
    }
  }
}

TEST_CASE("weights of a loss say what does not fit") {
  Runtime runtime = make_runtime();
  const auto tensor = [&](const Shape& shape, DType dtype = DType::f32) {
    return unwritten(runtime, shape, dtype);
  };
  MaskedLossForward args{3,
                         tensor({3, 2}),
                         tensor({3, 2}),
                         mask_tensor(runtime, {1, 0, 1}),
                         tensor({1}, DType::f64),
                         tensor({1}, DType::f64)};
  args.form.row_weights = tensor({2});
  std::string text =
      invalid_argument_text([&] { kernels::masked_loss_forward(args, runtime, runtime.stream()); });
  CHECK_MESSAGE((contains(text, "masked_loss.forward: row_weights") && contains(text, "[3]")), text);
  args.form.row_weights = {};
  args.form.column_weights = tensor({2}, DType::f64);
  text = invalid_argument_text([&] { kernels::masked_loss_forward(args, runtime, runtime.stream()); });
  CHECK_MESSAGE((contains(text, "column_weights") && contains(text, "f32")), text);
}

}  // namespace
}  // namespace meshgrad::test
