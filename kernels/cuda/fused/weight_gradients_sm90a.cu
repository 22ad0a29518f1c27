// SPDX-License-Identifier: Apache-2.0
// Weight gradients with products of warpgroups, for tiles wider than a panel both ways; others are multiplied
// warp by warp as in weight_gradients.cu.
//
// A block's two warpgroups have a panel of x each, 64 rows of the tile, and all 128 columns. Operands are
// read from the stages where copies put them, whose swizzle is the tensor cores' own: no warp loads fragments
// or computes where they are.
#include <meshgrad/kernels/cuda/fused/weight_gradient_units.h>
#include <meshgrad/kernels/cuda/fused/weight_gradients_sm90a.h>
#include <meshgrad/kernels/cuda/wgmma.h>

namespace meshgrad::cuda::gradients {
namespace {

constexpr int kWidePanels = 4;  ///< of x and d_z in a stage
constexpr int kWideRows = tiling_of(kTile, kTile).stage_rows;
constexpr int kRowBytes = kPanel * 2;
constexpr int kPanelBytes = kWideRows * kRowBytes;
static_assert(kSwizzleBytes == 8 * kRowBytes && kPanelBytes % kSwizzleBytes == 0);
static_assert(kTile == kThreads / kWarpgroup * kProductRows && kTile == kProductColumns);

/// The pipeline of sum_rows. Copies of stage s + 2 start beside the products of stage s, into the buffer of
/// stage s - 1, for whose products all threads waited before the barrier.
template <class T>
__device__ void sum_rows_on_warpgroups(const StageRing<T>& ring, float (&d)[64]) {
  const int panel = static_cast<int>(threadIdx.x) / kWarpgroup;
  for (int32_t s = 0; s < kStages - 1; ++s) ring.load(s);
  for (int32_t s = 0; s < ring.stages; ++s) {
    copy_async_wait<kStages - 2>();
    fence_shared_for_products();
    __syncthreads();
    const T* const x = ring.stage(s) + panel * (kWideRows * kPanel);
    const T* const d_z = ring.stage(s) + ring.d_z_offset;
    product_fence(d);
    for (int row = 0; row < kWideRows; row += kProductSum) {
      multiply_add_async<T>(d, operand_in_shared(x + row * kPanel, kPanelBytes, kSwizzleBytes),
                            operand_in_shared(d_z + row * kPanel, kPanelBytes, kSwizzleBytes));
    }
    product_commit();
    ring.load(s + kStages - 1);
    product_wait<0>(d);
  }
  copy_async_wait<0>();  // only empty groups are left
}

/// Stores d where reduce_partials expects it. Warp w has rows 16 w and on: half w % 2 of the pieces of row
/// w / 2, which are as wide as eight of its fragments.
__device__ inline void store_products(const Args& args, const Unit& unit, const Tiling& tiling,
                                      const float (&d)[64]) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int first_piece = warp / 2 * tiling.pieces_out;
  if (first_piece >= tiling.pieces) return;  // rows behind the width
  float* const to = partials_of(args, unit, unit.tile) + unit.slice * slice_stride_of(tiling);
  for (int j = 0; j < 16; ++j) {
    const int fragment = (first_piece + j / 8) * 16 + warp % 2 * 8 + j % 8;
    reinterpret_cast<Vector<float>*>(to)[fragment * 32 + lane] = {
        {d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]}};
  }
}

/// As weight_gradients_kernel.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    weight_gradients_wgmma_kernel(Args args) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  if (block >= args.units) {
    sum_columns(args, block - args.units);
    return;
  }
  MESHGRAD_SHARED(Unit, unit, 1);
  if (threadIdx.x < 32) find_unit(args, block, unit[0]);
  __syncthreads();
  if (unit[0].slices == 0) return;
  const Job& job = args.jobs[unit[0].job];
  const Tiling tiling = tiling_of(job.in, job.out);
  if (tiling.panels < kWidePanels) {
    add_unit<T>(args, unit[0], unit[0].tile);
    return;
  }
  float d[64] = {};
  sum_rows_on_warpgroups(StageRing<T>(job, unit[0], unit[0].tile, tiling, aligned_shared<T>()), d);
  store_products(args, unit[0], tiling, d);
  reduce_partials(args, unit[0], unit[0].tile, tiling);
}

}  // namespace

bool warpgroups_built() { return true; }

void start_on_warpgroups(const PreparedLaunch& prepared, DType dtype, const Stream& stream) {
  const auto kernel =
      dtype == DType::f16 ? weight_gradients_wgmma_kernel<half> : weight_gradients_wgmma_kernel<bfloat16>;
  launch("weight_gradients_wgmma", kernel, {prepared.blocks, kThreads, kSharedBytes + kSwizzleBytes}, stream,
         prepared.args);
}

}  // namespace meshgrad::cuda::gradients
