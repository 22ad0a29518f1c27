// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/tables.h>

namespace meshgrad::kernels {

const KernelTables& tables(Device device) {
  return device.kind == DeviceKind::cpu ? cpu_tables() : gpu_tables();
}

}  // namespace meshgrad::kernels
