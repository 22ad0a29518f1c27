// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/reduction.h>
#include <meshgrad/kernels/solver_arrays.h>
#include <meshgrad/train/embed/device_state.h>
#include <meshgrad/train/embed/host_copies.h>

#include <utility>

namespace meshgrad {
namespace {

DType dtype_of_numbers(bool wide) { return wide ? DType::f64 : DType::f32; }

}  // namespace

Tensor column_scale(Runtime& runtime, size_t columns, const std::function<double(size_t)>& subtracted,
                    const std::function<double(size_t)>& factor) {
  std::vector<double> scale;
  for (size_t column = 0; column < columns; ++column)
    scale.insert(scale.end(), {subtracted(column), factor(column)});
  return Tensor::from<double>(runtime, scale, {static_cast<int64_t>(columns), 2}, Tag::data, "column scales");
}

Tensor normalising(Runtime& runtime, const Normalizer& normalizer) {
  return column_scale(
      runtime, normalizer.width(), [&](size_t c) { return normalizer.mean(c); },
      [&](size_t c) { return 1.0 / normalizer.standard_deviation(c); });
}

void check_numbers(const Runtime& runtime, const Numbers& values, std::string_view what) {
  if (values.device().kind == DeviceKind::cpu) return;
  const int64_t bytes = static_cast<int64_t>(values.size()) * size_of(dtype_of_numbers(values.wide()));
  check_on_device(runtime, values.data(), bytes, values.device(), what);
}

Tensor on_device(Runtime& runtime, const Numbers& values, const Shape& shape, std::string_view what) {
  const DType dtype = dtype_of_numbers(values.wide());
  check_numbers(runtime, values, what);
  if (values.device().kind != DeviceKind::cpu)
    return Tensor::borrow(const_cast<void*>(values.data()), shape, dtype, {}, values.device());
  Tensor here = Tensor::borrow(const_cast<void*>(values.data()), shape, dtype);
  if (values.has_gaps()) {
    here = host_tensor(shape, dtype);
    WritableNumbers to =
        values.wide() ? WritableNumbers(here.values<double>()) : WritableNumbers(here.values<float>());
    for (size_t i = 0; i < values.size(); ++i) to.set(i, values[i]);
  }
  const Tensor there = Tensor::empty(runtime, shape, dtype, Tag::data, "solver's values");
  copy(here, there, runtime.stream());
  runtime.stream().synchronize();  // pinned memory is read until then
  return there;
}

bool any_not_finite(Runtime& runtime, const Numbers& values, std::string_view what) {
  if (values.size() == 0) return false;
  const Shape shape{static_cast<int64_t>(values.size()), 1};
  Tensor x = on_device(runtime, values, shape, what);
  if (values.wide()) {
    const Tensor wide = std::exchange(x, Tensor::empty(runtime, shape, DType::f32, Tag::workspace, what));
    kernels::map_columns({.rows = shape.rows(), .columns = 1, .from = wide, .to = x}, runtime.stream());
  }
  const Tensor sum = Tensor::zeros(runtime, {1}, DType::f64, Tag::workspace, what);
  const Tensor found = Tensor::zeros(runtime, {1}, DType::i32, Tag::workspace, what);
  kernels::sum_of_squares({.x = x, .sum = sum, .non_finite = found}, runtime, runtime.stream());
  return *to_host(found, runtime.stream()).data<int32_t>() != 0;
}

void write_on_device(Runtime& runtime, const WritableNumbers& values, const Shape& shape,
                     std::string_view what, const std::function<void(const Tensor& to)>& write) {
  const DType dtype = dtype_of_numbers(values.wide());
  if (values.device().kind != DeviceKind::cpu) {
    check_on_device(runtime, values.data(), shape.elements() * size_of(dtype), values.device(), what);
    write(Tensor::borrow(values.data(), shape, dtype, {}, values.device()));
    return settle(runtime, values.device());
  }
  const Tensor there = Tensor::empty(runtime, shape, dtype, Tag::data, "solver's values");
  write(there);
  const Tensor here = to_host(there, runtime.stream());
  WritableNumbers to = values;
  for (size_t i = 0; i < to.size(); ++i)
    to.set(i, values.wide() ? here.data<double>()[i] : static_cast<double>(here.data<float>()[i]));
}

void settle(const Runtime& runtime, Device array) {
  if (array.kind != DeviceKind::cpu && !runtime.shares_stream()) runtime.stream().synchronize();
}

}  // namespace meshgrad
