// SPDX-License-Identifier: Apache-2.0
// Contract checks shared by the families' front doors. Not for use outside kernels/.
#pragma once
#include <meshgrad/kernels/tables.h>

namespace meshgrad {

/// Throws InvalidArgument naming op and argument unless the tensor is defined and has this dtype and shape.
void check_tensor(std::string_view op, std::string_view argument, const Tensor& tensor, DType dtype,
                  const Shape& shape);
/// As check_tensor; an undefined tensor is fine.
void check_optional(std::string_view op, std::string_view argument, const Tensor& tensor, DType dtype,
                    const Shape& shape);
/// Throws InvalidArgument unless the tensor is defined; for the argument that fixes sizes for the others.
void check_defined(std::string_view op, std::string_view argument, const Tensor& tensor);

}  // namespace meshgrad
