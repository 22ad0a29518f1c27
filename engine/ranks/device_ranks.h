// SPDX-License-Identifier: Apache-2.0
// Sums and messages of tensors that lie on GPUs, queued on a stream like kernels: NCCL between the GPUs of
// the ranks. Two implementations: device_ranks_cuda.cpp, and device_ranks_none.cpp for builds without NCCL,
// where they pass through host memory instead.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/engine/stream.h>
#include <meshgrad/engine/tensor.h>

#include <chrono>
#include <string>
#include <string_view>

namespace meshgrad {

class DeviceRanks {
 public:
  /// Why there is no NCCL: it is not in this build, or its library was not found. Empty when there is.
  static std::string why_none();
  /// The GPU's PCI address, "0000:17:00.0", which tells the GPUs of a host apart whichever a process may see.
  /// Only where there is NCCL. Throws DeviceError.
  static std::string address(Device device);

  /// Collective. Each rank needs a GPU of its own. `ranks` outlives it. Throws DeviceError, and RankError
  /// when another rank has ended or does not come within the time-out, which also holds for what follows.
  DeviceRanks(Ranks& ranks, Device device, std::chrono::milliseconds timeout);
  ~DeviceRanks();
  DeviceRanks(const DeviceRanks&) = delete;
  DeviceRanks& operator=(const DeviceRanks&) = delete;

  /// In place, f32 or f64 [n], queued: the host goes on, except in the first sum, where the ranks connect.
  /// All ranks queue the same in the same order. NCCL chooses the order of a sum, which is the same in every
  /// run on the same machines. bytes_sent() counts it as all_reduce of collectives.h, whatever NCCL chooses.
  /// Throws DeviceError, and RankError as the constructor does.
  void all_reduce(const Tensor& values, const Stream& stream, std::string_view operation) const;
  /// Bytes of GPU memory to and from other ranks, queued as one operation: two ranks queue their messages to
  /// each other in the same order, and a receive has the size of its send. Otherwise as all_reduce.
  void exchange(std::span<const Send> sends, std::span<const Receive> receives, const Stream& stream,
                std::string_view operation) const;
  /// Blocks the host until what is queued is done. Throws RankError when NCCL or another rank has ended, or
  /// after the time-out; the communicator is then aborted, so that nothing on the GPU waits any more.
  void await(const Stream& stream, std::string_view operation) const;
  /// Ends what is queued without an await(), so that its memory may be freed; nothing can be queued
  /// afterwards.
  void abort() const noexcept;
  /// Bytes that this rank has sent to others, beside those of Ranks.
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  void check(int result, const char* call) const;
  void settle(int result, const char* call, std::string_view operation) const;
  void check_ended(int result, std::string_view operation) const;
  void check_background(std::string_view operation) const;
  void check_in_time(std::chrono::steady_clock::time_point begin, std::string_view operation) const;

  Ranks& ranks_;
  Device device_;
  std::chrono::milliseconds timeout_;
  mutable void* communicator_ = nullptr;  // ncclComm_t; null when aborted
  mutable int64_t bytes_sent_ = 0;
};

}  // namespace meshgrad
