// SPDX-License-Identifier: Apache-2.0
// What the simulated device does for kernels/cuda/wgmma.h (tests/simt/warpgroup.cpp) and bulk_copy.h
// (tests/simt/bulk_copy.cpp).
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

void barrier_init(void* barrier, int arrivals, Location where);
void arrive_and_expect(void* barrier, int bytes, Location where);
void wait_for_phase(void* barrier, int parity, Location where);
void copy_box_async(void* shared, const void* map, int column, int row, void* barrier, Location where);
void fence_for_copies();

}  // namespace simt
