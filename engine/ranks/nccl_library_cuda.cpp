// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/loaded_library.h>
#include <meshgrad/engine/ranks/nccl_library.h>

#include <array>

namespace meshgrad {
namespace {

/// What NCCL itself goes by.
std::string gpu_address(int device) {
  std::array<char, 32> address{};
  const cudaError_t error = cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device);
  if (error == cudaSuccess) return address.data();
  cudaGetLastError();
  throw device_error(name_of({DeviceKind::cuda, device}), "cudaDeviceGetPCIBusId to succeed",
                     cudaGetErrorString(error), "see that `nvidia-smi` lists it");
}

NcclLibrary load_nccl() {
  LoadedLibrary file({"libnccl.so.2"});
  NcclLibrary library;
  file.load(library.unique_id, "ncclGetUniqueId");
  file.load(library.init_rank, "ncclCommInitRankConfig");
  file.load(library.destroy, "ncclCommDestroy");
  file.load(library.abort, "ncclCommAbort");
  file.load(library.async_error, "ncclCommGetAsyncError");
  file.load(library.error_string, "ncclGetErrorString");
  file.load(library.all_reduce, "ncclAllReduce");
  file.load(library.group_start, "ncclGroupStart");
  file.load(library.group_end, "ncclGroupEnd");
  file.load(library.send, "ncclSend");
  file.load(library.receive, "ncclRecv");
  library.gpu_address = gpu_address;
  library.missing = file.missing();
  return library;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary loaded = load_nccl();
  return loaded;
}

}  // namespace meshgrad
