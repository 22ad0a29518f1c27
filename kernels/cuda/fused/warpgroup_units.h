// SPDX-License-Identifier: Apache-2.0
// A unit of weight gradients (weight_gradient_units.h) by products of warpgroups, for tiles wider than a
// panel both ways; others are multiplied warp by warp.
//
// A block's two warpgroups have a panel of x each, 64 rows of the tile, and all 128 columns. Operands are
// read from the stages where copies put them, whose swizzle is the tensor cores' own: no warp loads fragments
// or computes where they are. One thread starts the copies of a whole stage, four boxes of a panel each,
// where the driver has made maps of x and d_z; else all threads copy, 16 bytes at a time.
#pragma once
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/cuda/bulk_copy.h>
#include <meshgrad/kernels/cuda/fused/weight_gradient_units.h>

namespace meshgrad::cuda::gradients {

inline constexpr int kWidePanels = 4;  ///< of x and d_z in a stage
inline constexpr int kWideRows = tiling_of(kTile, kTile).stage_rows;
inline constexpr int kRowBytes = kPanel * 2;
inline constexpr int kPanelBytes = kWideRows * kRowBytes;
static_assert(kSwizzleBytes == 8 * kRowBytes && kPanelBytes % kSwizzleBytes == 0);
static_assert(kWidePanels * kPanelBytes == kStageBytes && kBoxColumns == kPanel);
static_assert(kTile == kThreads / kWarpgroup * kProductRows && kTile == kProductColumns);
/// Dynamic shared memory of a kernel: the ring, and what it takes to align it.
inline constexpr int kWarpgroupBytes = kSharedBytes + kSwizzleBytes;

/// The operands of a job as copies see them.
struct JobMaps {
  TensorMap x, d_z;
};
struct Maps {
  JobMaps jobs[kMaxWeightGradientJobs];
  bool made[kMaxWeightGradientJobs];
};

/// On the host: maps of all jobs that have wide tiles and rows on 16 bytes, as far as the driver makes them;
/// the log says once why it does not.
inline Maps maps_of(const Args& args, Runtime& runtime, const Stream& stream) {
  Maps maps{};
  if (stream.dry()) return maps;
  for (int j = 0; j < args.job_count; ++j) {
    const Job& job = args.jobs[j];
    const bool wide = tiling_of(job.in, job.out).panels >= kWidePanels;
    if (!wide || !job.x_vectors || !job.d_z_vectors || job.capacity == 0) continue;
    std::string reason = make_tensor_map(maps.jobs[j].x, job.x, job.capacity, job.in, kWideRows);
    if (reason.empty()) reason = make_tensor_map(maps.jobs[j].d_z, job.d_z, job.capacity, job.out, kWideRows);
    maps.made[j] = reason.empty();
    if (!reason.empty())
      runtime.log_once(LogLevel::info, "weight gradients are copied by threads, not by TMA: " + reason);
  }
  return maps;
}

/// A block's barriers of copies, one for each stage of the ring, and how many stages have passed through it:
/// tiles and units follow each other without making the barriers again.
struct CopyBarriers {
  CopyBarrier* barriers;
  int32_t passed = 0;

  /// All threads call; __syncthreads() comes before the first copy.
  __device__ explicit CopyBarriers(CopyBarrier* shared) : barriers(shared) {
    if (threadIdx.x > 0) return;
    for (int i = 0; i < kStages; ++i) barrier_init(shared + i, 1);
    fence_shared_for_products();
  }
};

/// d += x^T d_z over a stage. Copies of a later stage start beside the products, by `load_next`.
template <class T, class LoadNext>
__device__ void multiply_stage(const T* stage, float (&d)[64], const LoadNext& load_next) {
  const T* const x = stage + static_cast<int>(threadIdx.x) / kWarpgroup * (kWideRows * kPanel);
  const T* const d_z = stage + 2 * (kWideRows * kPanel);
  product_fence(d);
  for (int row = 0; row < kWideRows; row += kProductSum) {
    multiply_add_async<T>(d, operand_in_shared(x + row * kPanel, kPanelBytes, kSwizzleBytes),
                          operand_in_shared(d_z + row * kPanel, kPanelBytes, kSwizzleBytes));
  }
  product_commit();
  load_next();
  __syncwarp();  // the wait below takes whole warps, and one thread alone starts copies
  product_wait<0>(d);
}

/// The pipeline of sum_rows. Copies of stage s + 2 start beside the products of stage s, into the buffer of
/// stage s - 1, for whose products all threads waited before the barrier.
template <class T>
__device__ void sum_copied_rows(const StageRing<T>& ring, float (&d)[64]) {
  for (int32_t s = 0; s < kStages - 1; ++s) ring.load(s);
  for (int32_t s = 0; s < ring.stages; ++s) {
    copy_async_wait<kStages - 2>();
    fence_shared_for_products();
    __syncthreads();
    multiply_stage(ring.stage(s), d, [&] { ring.load(s + kStages - 1); });
  }
  copy_async_wait<0>();  // only empty groups are left
}

/// The same with boxes for all full stages. Rows behind the last one are not read: all threads copy what is
/// left, once a slice at most.
template <class T>
__device__ void sum_boxes(const StageRing<T>& ring, const JobMaps& maps, const Unit& unit, int32_t tile,
                          const Tiling& tiling, CopyBarriers& copies, float (&d)[64]) {
  const int32_t full = ring.rows / kWideRows, before = copies.passed;
  const auto load = [&](int32_t s) {
    if (threadIdx.x > 0 || s >= full) return;
    CopyBarrier* const barrier = copies.barriers + (before + s) % kStages;
    T* const stage = ring.stage(before + s);
    const auto row = static_cast<int>(unit.begin) + s * kWideRows;
    const int in = tile / tiling.tiles_out * kTile, out = tile % tiling.tiles_out * kTile;
    arrive_and_expect(barrier, kStageBytes);
    for (int panel = 0; panel < 2; ++panel) {
      T* const to = stage + panel * (kWideRows * kPanel);
      copy_box_async(to, &maps.x, in + panel * kPanel, row, barrier);
      copy_box_async(to + 2 * (kWideRows * kPanel), &maps.d_z, out + panel * kPanel, row, barrier);
    }
  };
  for (int32_t s = 0; s < kStages - 1; ++s) load(s);
  for (int32_t s = 0; s < full; ++s) {
    const int32_t number = before + s;
    wait_for_phase(copies.barriers + number % kStages, number / kStages % 2);
    __syncthreads();  // all threads have waited for the products of stage s - 1
    multiply_stage(ring.stage(number), d, [&] { load(s + kStages - 1); });
  }
  copies.passed += full;
  if (full == ring.stages) return;
  // Nothing reads this buffer any more: the last barrier came behind the products of stage full - 2, and this
  // is the buffer of full - 3; before a first stage, the caller had one.
  T* const rest = ring.stage(before + full);
  fill(rest, ring.x, kWideRows, full * kWideRows, ring.rows);
  fill(rest + ring.d_z_offset, ring.d_z, kWideRows, full * kWideRows, ring.rows);
  copy_async_commit();
  copy_async_wait<0>();
  fence_shared_for_products();
  __syncthreads();
  multiply_stage(rest, d, [] {});
}

/// Stores d where sum_slices expects it. Warp w has rows 16 w and on: half w % 2 of the pieces of row
/// w / 2, which are as wide as eight of its fragments.
__device__ inline void store_products(const Args& args, const Unit& unit, int32_t tile, const Tiling& tiling,
                                      const float (&d)[64]) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int first_piece = warp / 2 * tiling.pieces_out;
  if (first_piece >= tiling.pieces) return;  // rows behind the width
  float* const to = partials_of(args, unit, tile) + unit.slice * slice_stride_of(tiling);
  for (int j = 0; j < 16; ++j) {
    const int fragment = (first_piece + j / 8) * 16 + warp % 2 * 8 + j % 8;
    reinterpret_cast<Vector<float>*>(to)[fragment * 32 + lane] = {
        {d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]}};
  }
}

/// As add_unit.
template <class T>
__device__ void add_unit_on_warpgroups(const Args& args, const Maps& maps, const Unit& unit, int32_t tile,
                                       CopyBarriers& copies) {
  const Job& job = args.jobs[unit.job];
  const Tiling tiling = tiling_of(job.in, job.out);
  if (tiling.panels < kWidePanels) {
    add_unit<T>(args, unit, tile);
    return;
  }
  float d[64] = {};
  const StageRing<T> ring(job, unit, tile, tiling, aligned_shared<T>());
  if (maps.made[unit.job]) {
    sum_boxes(ring, maps.jobs[unit.job], unit, tile, tiling, copies, d);
  } else {
    sum_copied_rows(ring, d);
  }
  store_products(args, unit, tile, tiling, d);
}

}  // namespace meshgrad::cuda::gradients
