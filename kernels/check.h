// SPDX-License-Identifier: Apache-2.0
// Argument checks of the dispatch functions in kernels/*.cpp. Not for use outside kernels/.
// `op` and `argument` appear in the message: `[linear.forward: x] needed f32[5, 3], got f32[5, 4]`.
#pragma once
#include <meshgrad/kernels/dropout.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad {

/// Throws InvalidArgument naming op and argument unless the tensor is defined and has this dtype and shape.
void check_tensor(std::string_view op, std::string_view argument, const Tensor& tensor, DType dtype,
                  const Shape& shape);
/// As check_tensor, but accepts an undefined tensor.
void check_optional(std::string_view op, std::string_view argument, const Tensor& tensor, DType dtype,
                    const Shape& shape);
/// Throws InvalidArgument unless the tensor is defined. For the argument that the others' sizes are checked
/// against, whose own shape is arbitrary.
void check_defined(std::string_view op, std::string_view argument, const Tensor& tensor);
/// Throws InvalidArgument unless the rate is in [0, 1), `step` is i64 [1] and `row_keys` i64 [rows], where
/// they are defined.
void check_dropout(std::string_view op, const DropoutKey& dropout, int64_t rows);

}  // namespace meshgrad
