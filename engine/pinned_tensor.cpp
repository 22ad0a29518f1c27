// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/pinned_tensor.h>

namespace meshgrad {

Tensor pinned_tensor(Device device, const Shape& shape, DType dtype) {
  void* const memory = gpu::allocate_pinned(device.index, shape.elements() * size_of(dtype));
  return Tensor::borrow(memory, shape, dtype, [memory] { gpu::free_pinned(memory); });
}

}  // namespace meshgrad
