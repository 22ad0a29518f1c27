// SPDX-License-Identifier: Apache-2.0
// Tensor maps by the driver's cuTensorMapEncodeTiled, opened by name: the program links no driver.
#include <cuda.h>
#include <dlfcn.h>
#include <meshgrad/kernels/cuda/bulk_copy.h>

#include <cstring>

namespace meshgrad::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode driver_encode() {
  static const auto kEncode = [] {
    // The runtime has the driver open; it stays so.
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver == nullptr ? nullptr : reinterpret_cast<Encode>(dlsym(driver, "cuTensorMapEncodeTiled"));
  }();
  return kEncode;
}

}  // namespace

std::string make_tensor_map(TensorMap& map, const void* data, int64_t rows, int64_t columns, int box_rows) {
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap) && alignof(CUtensorMap) <= alignof(TensorMap));
  const Encode encode = driver_encode();
  if (encode == nullptr) return "the driver has no cuTensorMapEncodeTiled";
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(columns * 2)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(kBoxColumns), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap encoded;
  const CUresult result =
      encode(&encoded, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  std::memcpy(map.form, &encoded, sizeof encoded);
  if (result == CUDA_SUCCESS) return {};
  return "cuTensorMapEncodeTiled failed with error " + std::to_string(static_cast<int>(result));
}

}  // namespace meshgrad::cuda
