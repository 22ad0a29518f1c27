// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>

#include <fmt/format.h>

namespace meshgrad {

void check_defined(std::string_view op, std::string_view argument, const Tensor& tensor) {
  if (!tensor.defined()) throw invalid_argument(fmt::format("{}: {}", op, argument), "a tensor", "none");
}

void check_tensor(std::string_view op, std::string_view argument, const Tensor& tensor, DType dtype,
                  const Shape& shape) {
  check_defined(op, argument, tensor);
  if (tensor.dtype() != dtype || !(tensor.shape() == shape)) {
    throw invalid_argument(fmt::format("{}: {}", op, argument),
                           fmt::format("{}{}", name_of(dtype), shape.text()),
                           fmt::format("{}{}", name_of(tensor.dtype()), tensor.shape().text()));
  }
}

void check_optional(std::string_view op, std::string_view argument, const Tensor& tensor, DType dtype,
                    const Shape& shape) {
  if (tensor.defined()) check_tensor(op, argument, tensor, dtype, shape);
}

void check_dropout(std::string_view op, const DropoutKey& dropout, int64_t rows) {
  if (!(dropout.rate >= 0.0 && dropout.rate < 1.0)) {
    throw invalid_argument(fmt::format("{}: dropout", op), "a rate in [0, 1)",
                           fmt::format("{}", dropout.rate));
  }
  check_optional(op, "dropout step", dropout.step, DType::i64, {1});
  check_optional(op, "dropout row_keys", dropout.row_keys, DType::i64, {rows});
}

}  // namespace meshgrad
