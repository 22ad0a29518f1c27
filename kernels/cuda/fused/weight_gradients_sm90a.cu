// SPDX-License-Identifier: Apache-2.0
// The kernel of weight gradients alone, with products of warpgroups.
#include <meshgrad/kernels/cuda/fused/warpgroup_units.h>
#include <meshgrad/kernels/cuda/fused/weight_gradients_sm90a.h>

namespace meshgrad::cuda::gradients {
namespace {

struct WarpgroupArgs {
  Args gradients;
  Maps maps;
};

/// As weight_gradients_kernel.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    weight_gradients_wgmma_kernel(const __grid_constant__ WarpgroupArgs args) {
  MESHGRAD_SHARED(CopyBarrier, barriers, kStages);
  CopyBarriers copies(barriers);
  run_block(args.gradients, [&](const Unit& unit) {
    add_unit_on_warpgroups<T>(args.gradients, args.maps, unit, unit.tile, copies);
  });
}

}  // namespace

bool warpgroups_built() { return true; }

void start_on_warpgroups(const PreparedLaunch& prepared, DType dtype, Runtime& runtime,
                         const Stream& stream) {
  const auto kernel =
      dtype == DType::f16 ? weight_gradients_wgmma_kernel<half> : weight_gradients_wgmma_kernel<bfloat16>;
  const WarpgroupArgs args{prepared.args, maps_of(prepared.args, runtime, stream)};
  launch("weight_gradients_wgmma", kernel, {prepared.blocks, kThreads, kWarpgroupBytes}, stream, args);
}

}  // namespace meshgrad::cuda::gradients
