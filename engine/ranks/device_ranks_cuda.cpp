// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/ranks/device_ranks.h>
#include <nccl.h>

#include <thread>

namespace meshgrad {
namespace {

ncclComm_t communicator_of(void* communicator) { return static_cast<ncclComm_t>(communicator); }
cudaStream_t stream_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

ncclDataType_t type_of(const Tensor& tensor) {
  check_internal(tensor.dtype() == DType::f32 || tensor.dtype() == DType::f64, "a sum of another dtype");
  return tensor.dtype() == DType::f32 ? ncclFloat32 : ncclFloat64;
}

/// The part of `values` [n] that a rank owns.
Tensor slice_of(const Tensor& values, int rank, int size) {
  const RankSlice slice = rank_slice(values.elements(), rank, size);
  return values.row_range(slice.begin, slice.end);
}
size_t count(const Tensor& tensor) { return static_cast<size_t>(tensor.elements()); }

}  // namespace

bool DeviceRanks::built() noexcept { return true; }

DeviceRanks::DeviceRanks(Ranks& ranks, Device device, std::chrono::milliseconds timeout)
    : ranks_(ranks), device_(device), timeout_(timeout) {
  ncclUniqueId id{};
  if (ranks.first()) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  broadcast(ranks, std::as_writable_bytes(std::span(&id, 1)), 0, "start of NCCL");
  const gpu::CurrentDevice current(device.index);
  ncclComm_t communicator = nullptr;
  check(ncclCommInitRank(&communicator, ranks.size(), id, ranks.rank()), "ncclCommInitRank");
  communicator_ = communicator;
}

/// What another rank no longer answers must not block this one's end.
DeviceRanks::~DeviceRanks() {
  if (communicator_ == nullptr) return;
  ncclResult_t state = ncclSuccess;
  const bool sound = ncclCommGetAsyncError(communicator_of(communicator_), &state) == ncclSuccess &&
                     state == ncclSuccess && std::uncaught_exceptions() == 0;
  sound ? ncclCommDestroy(communicator_of(communicator_)) : ncclCommAbort(communicator_of(communicator_));
}

void DeviceRanks::check(int result, const char* call) const {
  if (result == ncclSuccess) return;
  throw device_error(fmt::format("rank {}", ranks_.rank()), fmt::format("{} to succeed", call),
                     ncclGetErrorString(static_cast<ncclResult_t>(result)),
                     "set NCCL_DEBUG=INFO to see why; each rank needs a GPU of its own");
}

void DeviceRanks::all_reduce(const Tensor& values, const Stream& stream) const {
  check(ncclAllReduce(values.raw(), values.raw(), count(values), type_of(values), ncclSum,
                      communicator_of(communicator_), stream_of(stream)),
        "ncclAllReduce");
}

// NCCL's own reduce-scatter and all-gather need slices of one size.
void DeviceRanks::reduce_scatter(const Tensor& values, const Stream& stream) const {
  check(ncclGroupStart(), "ncclGroupStart");
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const Tensor slice = slice_of(values, rank, ranks_.size());
    check(ncclReduce(slice.raw(), slice.raw(), count(slice), type_of(slice), ncclSum, rank,
                     communicator_of(communicator_), stream_of(stream)),
          "ncclReduce");
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
}

void DeviceRanks::all_gather_slices(const Tensor& values, const Stream& stream) const {
  check(ncclGroupStart(), "ncclGroupStart");
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const Tensor slice = slice_of(values, rank, ranks_.size());
    check(ncclBroadcast(slice.raw(), slice.raw(), count(slice), type_of(slice), rank,
                        communicator_of(communicator_), stream_of(stream)),
          "ncclBroadcast");
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
}

void DeviceRanks::exchange(std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives,
                           const Stream& stream) const {
  check(ncclGroupStart(), "ncclGroupStart");
  for (const DeviceMessage& send : sends) {
    check(ncclSend(send.tensor.raw(), static_cast<size_t>(send.tensor.bytes()), ncclInt8, send.other,
                   communicator_of(communicator_), stream_of(stream)),
          "ncclSend");
  }
  for (const DeviceMessage& receive : receives) {
    check(ncclRecv(receive.tensor.raw(), static_cast<size_t>(receive.tensor.bytes()), ncclInt8, receive.other,
                   communicator_of(communicator_), stream_of(stream)),
          "ncclRecv");
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
}

void DeviceRanks::check_background(std::string_view operation) const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator_of(communicator_), &state);
  if (asked == ncclSuccess && state == ncclSuccess) return;
  throw rank_error(fmt::format("rank {}: {}", ranks_.rank(), operation), "NCCL to go on",
                   ncclGetErrorString(asked != ncclSuccess ? asked : state),
                   "look for the end of another rank, or set NCCL_DEBUG=INFO");
}

void DeviceRanks::await(const Stream& stream, std::string_view operation) const {
  Event done;
  done.record(stream);
  const auto begin = std::chrono::steady_clock::now();
  while (!done.passed()) {
    check_background(operation);
    if (std::chrono::steady_clock::now() - begin > timeout_) {
      throw rank_error(fmt::format("rank {}: {}", ranks_.rank(), operation), "all ranks to take part in time",
                       "none or some", "look for the end of another rank, or raise ranks.timeout");
    }
    std::this_thread::yield();
  }
}

}  // namespace meshgrad
