// SPDX-License-Identifier: Apache-2.0
// Contract checks shared by the families' front doors. Not for use outside kernels/.
#pragma once
#include <meshgrad/kernels/gpu_tables.h>

namespace meshgrad {

/// Throws InvalidArgument naming op and argument unless the tensor is defined and has this dtype and shape.
void check_tensor(std::string_view op, std::string_view argument, const Tensor& tensor, DType dtype,
                  const Shape& shape);
/// As check_tensor; an undefined tensor is fine.
void check_optional(std::string_view op, std::string_view argument, const Tensor& tensor, DType dtype,
                    const Shape& shape);
/// Throws InvalidArgument unless the tensor is defined; for the argument that fixes sizes for the others.
void check_defined(std::string_view op, std::string_view argument, const Tensor& tensor);

/// The backend's table for a device, as in `pick_table(device, cpu::linear_kernels, &GpuTables::linear)`.
template <class Table>
const Table& pick_table(Device device, const Table& cpu_table, const Table* GpuTables::*gpu_table) {
  if (device.kind == DeviceKind::cpu) return cpu_table;
  const GpuTables* tables = gpu_tables();
  check_internal(tables != nullptr, "a tensor on a device without kernels");
  return *(tables->*gpu_table);
}

}  // namespace meshgrad
