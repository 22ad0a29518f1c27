// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/fused_mlp_forward.h>

namespace meshgrad::cuda {

template void launch_mlp_forward<false>(const MlpForward&, const Stream&);

}  // namespace meshgrad::cuda
