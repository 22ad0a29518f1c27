// SPDX-License-Identifier: Apache-2.0
// The driver's functions that engine/memory/source_cuda.cpp looks up: one context a device, and virtual
// memory whose addresses are not used.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "fake_runtime.h"

namespace fake_cuda {
namespace {

constexpr size_t kGranularity = size_t{2} << 20;
int contexts[8];
std::map<CUdeviceptr, size_t> mapped;

CUresult unless_failing(const char* name, const std::function<CUresult()>& call) {
  return state().failing_call == name ? CUDA_ERROR_OUT_OF_MEMORY : call();
}

CUresult init(unsigned) { return CUDA_SUCCESS; }
CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = state().virtual_memory;
  return CUDA_SUCCESS;
}
CUresult retain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(&contexts[device]);
  return CUDA_SUCCESS;
}
CUresult release_context(CUdevice) { return CUDA_SUCCESS; }
CUresult push(CUcontext) { return CUDA_SUCCESS; }
CUresult pop(CUcontext*) { return CUDA_SUCCESS; }
CUresult granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}
CUresult reserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  static CUdeviceptr next = CUdeviceptr{1} << 40;
  *address = next;
  next += bytes;
  return CUDA_SUCCESS;
}
CUresult free_addresses(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*,
                unsigned long long) {
  return unless_failing("cuMemCreate", [&] {
    if (bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
    *handle = bytes;
    ++state().handles;
    return CUDA_SUCCESS;
  });
}
CUresult release(CUmemGenericAllocationHandle) {
  --state().handles;
  return CUDA_SUCCESS;
}
/// No range is mapped twice.
CUresult map(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  return unless_failing("cuMemMap", [&] {
    const auto next = mapped.lower_bound(address);
    const bool taken = (next != mapped.end() && next->first < address + bytes) ||
                       (next != mapped.begin() && std::prev(next)->first + std::prev(next)->second > address);
    if (taken || handle != bytes) return CUDA_ERROR_INVALID_VALUE;
    mapped[address] = bytes;
    ++state().mappings;
    return CUDA_SUCCESS;
  });
}
CUresult unmap(CUdeviceptr address, size_t bytes) {
  const auto found = mapped.find(address);
  if (found == mapped.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  mapped.erase(found);
  --state().mappings;
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc*, size_t) {
  return unless_failing("cuMemSetAccess", [&] {
    const auto found = mapped.find(address);
    return found != mapped.end() && found->second == bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

template <class Function>
void* address_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace
}  // namespace fake_cuda

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** entry, unsigned,
                                                        unsigned long long,
                                                        cudaDriverEntryPointQueryResult* found) {
  using namespace fake_cuda;
  static const std::map<std::string, void*> kFunctions = {
      {"cuInit", address_of(init)},
      {"cuDeviceGetAttribute", address_of(attribute)},
      {"cuDevicePrimaryCtxRetain", address_of(retain)},
      {"cuDevicePrimaryCtxRelease", address_of(release_context)},
      {"cuCtxPushCurrent", address_of(push)},
      {"cuCtxPopCurrent", address_of(pop)},
      {"cuMemGetAllocationGranularity", address_of(granularity)},
      {"cuMemAddressReserve", address_of(reserve)},
      {"cuMemAddressFree", address_of(free_addresses)},
      {"cuMemCreate", address_of(create)},
      {"cuMemRelease", address_of(release)},
      {"cuMemMap", address_of(map)},
      {"cuMemUnmap", address_of(unmap)},
      {"cuMemSetAccess", address_of(set_access)},
  };
  const auto function = kFunctions.find(symbol);
  *entry = function == kFunctions.end() ? nullptr : function->second;
  *found = *entry == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
