// SPDX-License-Identifier: Apache-2.0
// A build without code for sm_90a.
#include <meshgrad/engine/error.h>
#include <meshgrad/kernels/cuda/fused/weight_gradients_sm90a.h>

namespace meshgrad::cuda::gradients {

bool warpgroups_built() { return false; }
void start_on_warpgroups(const PreparedLaunch&, DType, Runtime&, const Stream&) {
  check_internal(false, "weight_gradients_wgmma");
}
template <class T>
void start_node_terms_on_warpgroups(const NodeTermsBackwardArgs<T>&, int, int64_t, Runtime&, const Stream&) {
  check_internal(false, "node_terms_backward_wgmma");
}
template void start_node_terms_on_warpgroups(const NodeTermsBackwardArgs<half>&, int, int64_t, Runtime&,
                                             const Stream&);
template void start_node_terms_on_warpgroups(const NodeTermsBackwardArgs<bfloat16>&, int, int64_t, Runtime&,
                                             const Stream&);

}  // namespace meshgrad::cuda::gradients
