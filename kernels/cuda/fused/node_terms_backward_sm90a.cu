// SPDX-License-Identifier: Apache-2.0
// node_terms_backward with the weight gradients by products of warpgroups; dS and d_h are computed as
// elsewhere.
#include <meshgrad/kernels/cuda/fused/node_terms_backward.h>
#include <meshgrad/kernels/cuda/fused/warpgroup_units.h>
#include <meshgrad/kernels/cuda/fused/weight_gradients_sm90a.h>

namespace meshgrad::cuda {
namespace {

using namespace node_tiles;

template <class T>
struct WarpgroupNodeArgs {
  NodeTermsBackwardArgs<T> terms;
  gradients::Maps maps;
};

template <class T, int W>
__global__ void __launch_bounds__(kFusedThreads, kBackwardBlocks<W>)
    node_terms_backward_wgmma_kernel(const __grid_constant__ WarpgroupNodeArgs<T> args) {
  MESHGRAD_SHARED(CopyBarrier, barriers, gradients::kStages);
  gradients::CopyBarriers copies(barriers);
  run_backward_block<T, W>(
      args.terms, [] { fence_for_copies(); },
      [&](const gradients::Unit& unit, int tile) {
        gradients::add_unit_on_warpgroups<T>(args.terms.gradients, args.maps, unit, tile, copies);
      });
}

}  // namespace

template <class T>
void gradients::start_node_terms_on_warpgroups(const NodeTermsBackwardArgs<T>& args, int width,
                                               int64_t blocks, Runtime& runtime, const Stream& stream) {
  const WarpgroupNodeArgs<T> with_maps{args, maps_of(args.gradients, runtime, stream)};
  const auto start = [&]<int W>() {
    constexpr int kBytes = std::max(Slabs<T, W, RowSlabs<W>>::kBytes, kWarpgroupBytes);
    launch("node_terms_backward_wgmma", node_terms_backward_wgmma_kernel<T, W>,
           {blocks, kFusedThreads, kBytes}, stream, with_maps);
  };
  if (width == 128) {
    start.template operator()<128>();
  } else {
    start.template operator()<256>();
  }
}
template void gradients::start_node_terms_on_warpgroups(const NodeTermsBackwardArgs<half>&, int, int64_t,
                                                        Runtime&, const Stream&);
template void gradients::start_node_terms_on_warpgroups(const NodeTermsBackwardArgs<bfloat16>&, int, int64_t,
                                                        Runtime&, const Stream&);

}  // namespace meshgrad::cuda
