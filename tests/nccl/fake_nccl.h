// SPDX-License-Identifier: Apache-2.0
// NCCL without GPUs, for tests of engine/ranks/device_ranks_cuda.cpp: calls are queued by rank, then compared
// and done on host memory.
#pragma once
#include <nccl.h>

#include <string>
#include <vector>

namespace fake_nccl {

struct Call {
  std::string name;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclInt8;
  int other = -1;  ///< root or peer
  cudaStream_t stream = nullptr;
  std::vector<const void*> after;  ///< streams that its own one had to wait for until then
  int group = 0;                   ///< calls of one group have the same number; each call outside has its own
};

/// Forgets everything; the next communicators are those of so many ranks.
void reset(int ranks);
/// What a rank queued.
const std::vector<Call>& calls(int rank);
/// What ncclCommGetAsyncError says from now on.
void fail_with(ncclResult_t error);

/// Does the queued calls: the collectives of all ranks in their order, and the messages of each group.
/// Returns what does not fit together, or nothing.
std::string run();

}  // namespace fake_nccl
