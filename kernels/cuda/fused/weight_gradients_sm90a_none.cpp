// SPDX-License-Identifier: Apache-2.0
// A build without code for sm_90a.
#include <meshgrad/engine/error.h>
#include <meshgrad/kernels/cuda/fused/weight_gradients_sm90a.h>

namespace meshgrad::cuda::gradients {

bool warpgroups_built() { return false; }
void start_on_warpgroups(const PreparedLaunch&, DType, const Stream&) {
  check_internal(false, "weight_gradients_wgmma");
}

}  // namespace meshgrad::cuda::gradients
