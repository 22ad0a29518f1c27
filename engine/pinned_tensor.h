// SPDX-License-Identifier: Apache-2.0
// Page-locked memory of the host.
#pragma once
#include <meshgrad/engine/tensor.h>

namespace meshgrad {

/// Memory of the host, without values, that a GPU copies from and to in the background. Allocating it may
/// synchronize the device. Throws DeviceError.
Tensor pinned_tensor(Device device, const Shape& shape, DType dtype);

}  // namespace meshgrad
