// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup: right ones, and each mistake that the simulated device must find.
#include <meshgrad/kernels/cuda/wgmma.h>

#include "planted.h"

namespace meshgrad::cuda::planted {
namespace {

enum class Mistake : uint8_t {
  none,
  misaligned,
  swizzle,
  leading,
  no_fence,
  fence_once,
  changed,
  no_shared_fence,
  late_shared_fence,
  no_barrier,
  no_wait,
  no_commit,
  too_few_waits,
  overwrite,
  write_accumulators,
  reuse_registers,
  three_warps,
  two_descriptors
};

constexpr int kRowBytes = 128;
constexpr int kPanelBytes = 64 * kRowBytes;  ///< of 64 rows
constexpr int kOperandBytes = 3 * kPanelBytes + kSwizzleBytes;

/// c = a^T b with a [k, 64] and b [k, 128], k at most 64 and a multiple of 16, by one warpgroup.
/// `from_shared`: a is read by its descriptor, else from registers.
template <class T, bool from_shared, Mistake mistake, class A, class B, class Store>
__device__ void product(int k, A&& value_a, B&& value_b, Store&& store) {
  T* const shared = mistake == Mistake::misaligned ? dynamic_shared<T>() : aligned_shared<T>();
  const auto thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const auto place = [&](int row, int column) {
    return shared + column / 64 * (kPanelBytes / 2) + row * 64 + ((column % 64 / 8) ^ (row % 8)) * 8 +
           column % 8;
  };
  for (int i = thread; i < k * 192; i += static_cast<int>(blockDim.x)) {
    const int row = i / 192, column = i % 192;
    *place(row, column) = to_storage<T>(column < 64 ? value_a(row, column) : value_b(row, column - 64));
  }
  if (mistake != Mistake::no_shared_fence && mistake != Mistake::late_shared_fence)
    fence_shared_for_products();
  if (mistake == Mistake::no_barrier) {
    __syncwarp();
  } else {
    __syncthreads();
  }
  if (mistake == Mistake::late_shared_fence && warp > 3) fence_shared_for_products();
  if (warp > 3) return;
  float d[64] = {};
  uint32_t a[4] = {};
  if (mistake != Mistake::no_fence) product_fence(d);
  for (int row = 0; row < k; row += 16) {
    if (!from_shared) {
      load_matrices_transposed(a, place(row + lane / 16 * 8 + lane % 8, warp * 16 + lane / 8 % 2 * 8));
      if (mistake != Mistake::no_fence && mistake != Mistake::fence_once) product_fence(d);
    }
    const uint64_t b = operand_in_shared(
        shared + kPanelBytes / 2 + row * 64 + (mistake == Mistake::two_descriptors && warp == 3 ? 8 : 0),
        mistake == Mistake::leading ? kPanelBytes / 2 : kPanelBytes, 1024,
        mistake == Mistake::swizzle ? Swizzle::bytes64 : Swizzle::bytes128);
    if (mistake == Mistake::three_warps && warp == 3) break;
    if constexpr (from_shared) {
      multiply_add_async<T>(d, operand_in_shared(shared + row * 64, kPanelBytes, 1024), b);
    } else {
      multiply_add_async<T>(d, a, b);
    }
    if (mistake == Mistake::overwrite) {
      __syncwarp();
      *place(row, 64 + thread) = T{};
    }
    if (mistake == Mistake::write_accumulators) d[thread % 64] = 0;
    if (mistake == Mistake::reuse_registers) a[thread % 4] = 0;
    if (mistake != Mistake::no_commit) product_commit();
    if (mistake == Mistake::too_few_waits) {
      product_wait<1>(d);
    } else if (!from_shared) {
      product_wait<0>(d);
    }
    if (mistake == Mistake::changed) d[0] += static_cast<float>(row);
  }
  if (from_shared && mistake != Mistake::no_wait && mistake != Mistake::too_few_waits) product_wait<0>(d);
  for (int i = 0; i < 64; ++i) {
    store(warp * 16 + lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2, d[i]);
  }
}

struct Operands {
  const half* a;
  const half* b;
  float* c;
  int k;
};

/// a is [64, k].
template <bool from_shared, Mistake mistake>
__global__ void __launch_bounds__(kWarpgroup, 1) product_kernel(Operands args) {
  product<half, from_shared, mistake>(
      args.k, [&](int row, int column) { return to_float(args.a[column * args.k + row]); },
      [&](int row, int column) { return to_float(args.b[row * 128 + column]); },
      [&](int row, int column, float sum) { args.c[row * 128 + column] = sum; });
}

template <class T, bool from_shared, Mistake mistake>
__global__ void bug_kernel(Data data) {
  product<T, from_shared, mistake>(
      32, [&](int row, int column) { return data.in[(row + column) % kFloats]; },
      [&](int row, int column) { return data.in[(row * 3 + column) % kFloats]; },
      [&](int row, int column, float sum) {
        if (row < 2) data.out[row * 128 + column] = sum;
      });
}

template <class T, bool from_shared, Mistake mistake, int threads = kWarpgroup>
Bug bug(const char* name, const char* message) {
  return {name, message, [](const Stream& stream, const Data& data) {
            launch("planted", bug_kernel<T, from_shared, mistake>,
                   {.blocks = 1, .threads = threads, .shared_bytes = kOperandBytes}, stream, data);
          }};
}

}  // namespace

const std::vector<Bug>& product_bugs() {
  static const std::vector<Bug> kBugs = {
      bug<half, false, Mistake::no_fence>("a product without a fence", "product_fence between"),
      bug<bfloat16, true, Mistake::changed>("accumulators changed before the wait",
                                            "reads accumulators of a product that runs"),
      bug<half, false, Mistake::fence_once>("registers loaded after the fence", "product_fence between"),
      bug<half, true, Mistake::no_shared_fence>("operands without a fence", "has not fenced"),
      bug<half, true, Mistake::late_shared_fence, 256>("operands fenced after the barrier", "has not fenced"),
      bug<half, true, Mistake::no_barrier>("operands without a barrier", "a race"),
      bug<half, true, Mistake::misaligned>("operands where dynamic memory begins",
                                           "operands that begin at a multiple of 1024 bytes"),
      bug<half, true, Mistake::swizzle>("another swizzle than the writer's", "never written"),
      bug<half, true, Mistake::leading>("a wrong distance of panels", "never written"),
      bug<half, true, Mistake::no_wait>("accumulators without a wait", "reads accumulators of a product"),
      bug<half, true, Mistake::no_commit>("accumulators without a commit", "reads accumulators of a product"),
      bug<bfloat16, true, Mistake::too_few_waits>("a wait for too few products",
                                                  "reads accumulators of a product"),
      bug<half, true, Mistake::overwrite>("operands overwritten", "which a running product reads"),
      bug<half, true, Mistake::write_accumulators>("accumulators overwritten",
                                                   "writes accumulators of a product"),
      bug<half, false, Mistake::reuse_registers>("operand registers overwritten",
                                                 "writes operand registers of a product"),
      bug<half, true, Mistake::three_warps>("a product of three warps", "a divergent warpgroup"),
      bug<half, true, Mistake::two_descriptors>("two descriptors", "one descriptor for all threads"),
      bug<half, true, Mistake::none, 64>("half a warpgroup", "warpgroups of 128 threads"),
  };
  return kBugs;
}

void warpgroup_gemm(const Stream& stream, const half* a, const half* b, float* c, int k, Operand operand) {
  const LaunchShape shape{.blocks = 1, .threads = kWarpgroup, .shared_bytes = kOperandBytes};
  const auto kernel = operand == Operand::registers ? product_kernel<false, Mistake::none>
                      : operand == Operand::shared  ? product_kernel<true, Mistake::none>
                                                    : product_kernel<true, Mistake::leading>;
  launch("warpgroup_gemm", kernel, shape, stream, Operands{a, b, c, k});
}

}  // namespace meshgrad::cuda::planted
