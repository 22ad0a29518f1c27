// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/tables.h>

namespace meshgrad::kernels {

const KernelTables& tables(Device device) {
  if (device.kind == DeviceKind::cpu) return cpu_tables();
  const KernelTables* const gpu = gpu_tables();
  check_internal(gpu != nullptr, "a tensor on a device without kernels");
  return *gpu;
}

}  // namespace meshgrad::kernels
