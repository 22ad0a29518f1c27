// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/fused_edge_backward.h>

namespace meshgrad::cuda {

template void launch_edge_backward<true>(const EdgeUpdateBackward&, const NodeTermTensors&,
                                         const DividedSumTensors&, const NodeTermTensors&,
                                         const BackwardWorkspace&, const FusedShape&, const Stream&);

}  // namespace meshgrad::cuda
