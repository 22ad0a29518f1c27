// SPDX-License-Identifier: Apache-2.0
// The GPU side of a build without CUDA.
#include <meshgrad/kernels/tables.h>

namespace meshgrad::kernels {

const KernelTables* gpu_tables() { return nullptr; }

}  // namespace meshgrad::kernels
