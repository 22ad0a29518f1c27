// SPDX-License-Identifier: Apache-2.0
// NCCL's functions, of a library that is opened by name instead of linked: programs run where there is none.
// For the sources that a build with NCCL's header has.
#pragma once
#include <nccl.h>

#include <string>

namespace meshgrad {

struct NcclLibrary {
  decltype(&ncclGetUniqueId) unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  std::string (*gpu_address)(int device) = nullptr;  ///< of DeviceRanks
  std::string missing;                               ///< why the functions are null; empty when they are not
};
/// Opened at the first call.
const NcclLibrary& nccl_library();

}  // namespace meshgrad
