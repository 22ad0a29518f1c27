// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/fused_edge_forward.h>

namespace meshgrad::cuda {

template void launch_edge_forward<true>(const EdgeUpdateForward&, const NodeTermTensors&,
                                        const DividedSumTensors&, const FusedShape&, const Stream&);

}  // namespace meshgrad::cuda
