// SPDX-License-Identifier: Apache-2.0
// What the simulated device does for kernels/cuda/wgmma.h (tests/simt/warpgroup.cpp).
#pragma once
#include <meshgrad/kernels/cuda/simt.h>

namespace simt {

/// A thread's share of one product.
struct Product {
  float* d;
  const uint32_t* a;  ///< nullptr: x is in shared memory
  uint64_t x, d_z;    ///< descriptors
  int columns;
  bool half;
};
uint32_t shared_address(const void* address);
void fence_shared_for_products();
void product_fence(Location where);
void start_product(const Product& product, Location where);
void product_commit(Location where);
void product_wait(int pending, Location where);

}  // namespace simt
