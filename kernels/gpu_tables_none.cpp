// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/gpu_tables.h>

namespace meshgrad {

const GpuTables* gpu_tables() { return nullptr; }

}  // namespace meshgrad
