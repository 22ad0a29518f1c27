// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/ranks/device_ranks.h>
#include <meshgrad/engine/ranks/nccl_library.h>

#include <exception>
#include <thread>
#include <utility>

namespace meshgrad {
namespace {

constexpr std::string_view kStart = "start of NCCL";

ncclComm_t communicator_of(void* communicator) { return static_cast<ncclComm_t>(communicator); }
cudaStream_t stream_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

ncclDataType_t type_of(const Tensor& tensor) {
  check_internal(tensor.dtype() == DType::f32 || tensor.dtype() == DType::f64, "a sum of another dtype");
  return tensor.dtype() == DType::f32 ? ncclFloat32 : ncclFloat64;
}

size_t count(const Tensor& tensor) { return static_cast<size_t>(tensor.elements()); }

}  // namespace

std::string DeviceRanks::why_none() { return nccl_library().missing; }

std::string DeviceRanks::address(Device device) { return nccl_library().gpu_address(device.index); }

DeviceRanks::DeviceRanks(Ranks& ranks, Device device, std::chrono::milliseconds timeout)
    : ranks_(ranks), device_(device), timeout_(timeout) {
  ncclUniqueId id{};
  if (ranks.first()) check(nccl_library().unique_id(&id), "ncclGetUniqueId");
  broadcast(ranks, std::as_writable_bytes(std::span(&id, 1)), 0, kStart);
  const gpu::CurrentDevice current(device.index);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t communicator = nullptr;
  const ncclResult_t begun = nccl_library().init_rank(&communicator, ranks.size(), id, ranks.rank(), &config);
  communicator_ = communicator;
  settle(begun, "ncclCommInitRankConfig", kStart);
}

/// What another rank no longer answers must not block this one's end.
DeviceRanks::~DeviceRanks() {
  if (communicator_ == nullptr) return;
  ncclResult_t state = ncclSuccess;
  const bool sound = nccl_library().async_error(communicator_of(communicator_), &state) == ncclSuccess &&
                     state == ncclSuccess && std::uncaught_exceptions() == 0 && !ranks_.left();
  sound ? nccl_library().destroy(communicator_of(communicator_))
        : nccl_library().abort(communicator_of(communicator_));
}

void DeviceRanks::abort() const noexcept {
  if (communicator_ != nullptr) nccl_library().abort(communicator_of(std::exchange(communicator_, nullptr)));
}

void DeviceRanks::check(int result, const char* call) const {
  if (result == ncclSuccess) return;
  throw device_error(fmt::format("rank {}", ranks_.rank()), fmt::format("{} to succeed", call),
                     nccl_library().error_string(static_cast<ncclResult_t>(result)),
                     "set NCCL_DEBUG=INFO to see why; each rank needs a GPU of its own");
}

/// NCCL may notice the end of a rank before this process is told which one ended, or why.
void DeviceRanks::check_ended(int result, std::string_view operation) const {
  if (result != ncclRemoteError && result != ncclSystemError && result != ncclInternalError) return;
  constexpr std::chrono::milliseconds kPatience(1000);
  const auto begin = std::chrono::steady_clock::now();
  do {
    ranks_.check(operation);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (std::chrono::steady_clock::now() - begin < kPatience);
}

/// NCCL goes on in a thread of its own, and takes no other call, as long as `result` says so: in the first
/// calls it waits for other ranks.
void DeviceRanks::settle(int result, const char* call, std::string_view operation) const {
  const auto begin = std::chrono::steady_clock::now();
  try {
    for (ncclResult_t state = ncclSuccess; result == ncclInProgress; result = state) {
      check(nccl_library().async_error(communicator_of(communicator_), &state), call);
      if (state != ncclInProgress) continue;
      ranks_.check(operation);
      check_in_time(begin, operation);
      std::this_thread::yield();
    }
    check_ended(result, operation);
    check(result, call);
  } catch (...) {
    abort();
    throw;
  }
}

void DeviceRanks::all_reduce(const Tensor& values, const Stream& stream, std::string_view operation) const {
  settle(nccl_library().all_reduce(values.raw(), values.raw(), count(values), type_of(values), ncclSum,
                                   communicator_of(communicator_), stream_of(stream)),
         "ncclAllReduce", operation);
  bytes_sent_ += 2 * (ranks_.size() - 1) * values.bytes() / ranks_.size();
}

void DeviceRanks::exchange(std::span<const Send> sends, std::span<const Receive> receives,
                           const Stream& stream, std::string_view operation) const {
  const NcclLibrary& nccl = nccl_library();
  const ncclComm_t communicator = communicator_of(communicator_);
  ncclResult_t failed = ncclSuccess;
  const char* call = "ncclGroupStart";
  const auto queue = [&](const char* name, auto&& queued) {
    if (failed != ncclSuccess) return;
    call = name;
    const ncclResult_t result = queued();
    if (result != ncclInProgress) failed = result;
  };
  queue(call, [&] { return nccl.group_start(); });
  const bool grouped = failed == ncclSuccess;
  for (const Send& send : sends) {
    queue("ncclSend", [&] {
      return nccl.send(send.bytes.data(), send.bytes.size(), ncclInt8, send.to, communicator,
                       stream_of(stream));
    });
  }
  for (const Receive& receive : receives) {
    queue("ncclRecv", [&] {
      return nccl.receive(receive.bytes.data(), receive.bytes.size(), ncclInt8, receive.from, communicator,
                          stream_of(stream));
    });
  }
  const ncclResult_t ended = grouped ? nccl.group_end() : failed;
  settle(failed != ncclSuccess ? failed : ended, failed != ncclSuccess ? call : "ncclGroupEnd", operation);
  for (const Send& send : sends) bytes_sent_ += static_cast<int64_t>(send.bytes.size());
}

void DeviceRanks::check_in_time(std::chrono::steady_clock::time_point begin,
                                std::string_view operation) const {
  if (std::chrono::steady_clock::now() - begin <= timeout_) return;
  throw rank_error(ranks_.place(operation), "all ranks to take part in time",
                   fmt::format("no answer in {} s", static_cast<double>(timeout_.count()) / 1000.0),
                   "look for the end of another rank, or raise ranks.timeout");
}

void DeviceRanks::check_background(std::string_view operation) const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_library().async_error(communicator_of(communicator_), &state);
  if (asked != ncclSuccess || (state != ncclSuccess && state != ncclInProgress)) {
    check_ended(asked != ncclSuccess ? asked : state, operation);
    throw rank_error(ranks_.place(operation), "NCCL to go on",
                     nccl_library().error_string(asked != ncclSuccess ? asked : state),
                     "look for the end of another rank, or set NCCL_DEBUG=INFO");
  }
  ranks_.check(operation);  // NCCL does not notice every end of a rank
}

void DeviceRanks::await(const Stream& stream, std::string_view operation) const {
  Event done;
  done.record(stream);
  const auto begin = std::chrono::steady_clock::now();
  try {
    while (!done.passed()) {
      check_background(operation);
      check_in_time(begin, operation);
      std::this_thread::yield();
    }
  } catch (...) {
    abort();
    throw;
  }
}

}  // namespace meshgrad
