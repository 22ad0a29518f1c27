// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/fused_mlp_backward.h>

namespace meshgrad::cuda {

template void launch_mlp_backward<false>(const MlpBackward&, const BackwardWorkspace&, const FusedShape&,
                                         const Stream&);

}  // namespace meshgrad::cuda
