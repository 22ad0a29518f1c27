// SPDX-License-Identifier: Apache-2.0
// Sums and messages of tensors that lie on GPUs, queued on a stream like kernels: NCCL between the GPUs of
// the ranks. Two implementations: device_ranks_cuda.cpp, and device_ranks_none.cpp for builds without NCCL
// and for the simulated device, where gradients pass through host memory instead.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/engine/stream.h>
#include <meshgrad/engine/tensor.h>

namespace meshgrad {

/// A tensor on this rank's GPU, for another rank or from it. Several of one pair are matched by their order.
struct DeviceMessage {
  int other = 0;
  Tensor tensor;
};

class DeviceRanks {
 public:
  /// Whether this build has NCCL.
  static bool built() noexcept;

  /// Collective. Each rank needs a GPU of its own. `ranks` outlives it. Throws DeviceError, RankError.
  DeviceRanks(Ranks& ranks, Device device, std::chrono::milliseconds timeout);
  ~DeviceRanks();
  DeviceRanks(const DeviceRanks&) = delete;
  DeviceRanks& operator=(const DeviceRanks&) = delete;

  // In place, f32 or f64 [n], queued: the host goes on. All ranks queue the same in the same order. NCCL
  // chooses the order of a sum, which is the same in every run on the same machines.
  void all_reduce(const Tensor& values, const Stream& stream) const;
  /// Afterwards this rank's rank_slice (collectives.h) holds the sum; the rest is undefined.
  void reduce_scatter(const Tensor& values, const Stream& stream) const;
  /// Afterwards every rank holds all slices.
  void all_gather_slices(const Tensor& values, const Stream& stream) const;
  /// All messages at once, so that none waits for another.
  void exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives,
                const Stream& stream) const;

  /// Blocks the host until what is queued is done, within the time-out. Throws RankError.
  void await(const Stream& stream, std::string_view operation) const;
  /// Throws RankError when NCCL has found in the background that it cannot go on. `await` asks it.
  void check_background(std::string_view operation) const;

 private:
  void check(int result, const char* call) const;

  Ranks& ranks_;
  Device device_;
  std::chrono::milliseconds timeout_;
  void* communicator_ = nullptr;  // ncclComm_t
};

}  // namespace meshgrad
