// SPDX-License-Identifier: Apache-2.0
#include "fake_nccl.h"

#include <atomic>
#include <cstring>
#include <mutex>

#include "../cuda_runtime/fake_runtime.h"

struct ncclComm {
  int rank = 0;
};

namespace fake_nccl {
namespace {

struct Rank {
  ncclComm communicator;
  std::vector<Call> calls;
  int groups = 0;  // begun, or calls outside of one
  bool in_group = false;
};

std::vector<Rank>& ranks() {
  static std::vector<Rank> only;
  return only;
}
std::atomic<ncclResult_t> async_error = ncclSuccess;

Rank*& of_this_thread() {
  thread_local Rank* rank = nullptr;
  return rank;
}

ncclResult_t queue(ncclComm_t communicator, Call call) {
  Rank& rank = ranks()[static_cast<size_t>(communicator->rank)];
  call.after = fake_cuda::awaited_by(call.stream);
  call.group = rank.in_group ? rank.groups : ++rank.groups;
  rank.calls.push_back(call);
  return ncclSuccess;
}

size_t bytes_of(ncclDataType_t type) { return type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : 1; }

template <class T>
void sum(const std::vector<Call>& calls, int only_to) {
  std::vector<T> total(calls.front().count);
  for (const Call& call : calls)
    for (size_t i = 0; i < total.size(); ++i) total[i] += static_cast<const T*>(call.from)[i];
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (only_to < 0 || only_to == static_cast<int>(rank))
      std::memcpy(calls[rank].to, total.data(), total.size() * sizeof(T));
  }
}

std::string run_collective(const std::vector<Call>& calls) {
  const Call& first = calls.front();
  for (const Call& call : calls) {
    if (call.name != first.name) return call.name + " beside " + first.name;
    if (call.count != first.count || call.type != first.type || call.other != first.other)
      return first.name + " with other counts, types or roots";
  }
  if (first.name == "broadcast") {
    const Call& root = calls[static_cast<size_t>(first.other)];
    for (const Call& call : calls) std::memmove(call.to, root.from, first.count * bytes_of(first.type));
    return {};
  }
  if (first.type == ncclFloat64) {
    sum<double>(calls, first.other);
  } else {
    sum<float>(calls, first.other);
  }
  return {};
}

/// Gives each receive of rank `to` the next send of its peer.
std::string run_receives(int to) {
  for (Call& receive : ranks()[static_cast<size_t>(to)].calls) {
    if (receive.name != "receive") continue;
    bool found = false;
    for (Call& send : ranks()[static_cast<size_t>(receive.other)].calls) {
      if (send.name != "send" || send.other != to) continue;
      if (send.count != receive.count) return "a message of another size";
      std::memcpy(receive.to, send.from, send.count);
      send.name = "sent";
      found = true;
      break;
    }
    if (!found) return "a receive without a send";
    receive.name = "received";
  }
  return {};
}

}  // namespace

void reset(int count) {
  ranks().assign(static_cast<size_t>(count), {});
  async_error = ncclSuccess;
}
const std::vector<Call>& calls(int rank) { return ranks()[static_cast<size_t>(rank)].calls; }
void fail_with(ncclResult_t error) { async_error = error; }

std::string run() {
  for (size_t rank = 0; rank < ranks().size(); ++rank)
    if (const std::string fault = run_receives(static_cast<int>(rank)); !fault.empty()) return fault;
  std::vector<std::vector<Call>> collectives;
  for (const Rank& rank : ranks()) {
    std::vector<Call>& own = collectives.emplace_back();
    for (const Call& call : rank.calls) {
      if (call.name == "send") return "a send without a receive";
      if (call.name != "sent" && call.name != "received") own.push_back(call);
    }
    if (own.size() != collectives.front().size()) return "another number of collectives";
  }
  for (size_t i = 0; i < collectives.front().size(); ++i) {
    std::vector<Call> together;
    for (const std::vector<Call>& own : collectives) together.push_back(own[i]);
    if (const std::string fault = run_collective(together); !fault.empty()) return fault;
  }
  for (Rank& rank : ranks()) rank.calls.clear();
  return {};
}

}  // namespace fake_nccl

using namespace fake_nccl;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 7, sizeof *id);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int count, ncclUniqueId id, int rank) {
  // Every rank has the id of rank 0.
  if (id.internal[0] != 7 || count != static_cast<int>(ranks().size())) return ncclInvalidArgument;
  of_this_thread() = &ranks()[static_cast<size_t>(rank)];
  of_this_thread()->communicator.rank = rank;
  *communicator = &of_this_thread()->communicator;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t error) {
  return error == ncclRemoteError ? "remote process exited" : "another error";
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = async_error;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  of_this_thread()->in_group = true;
  ++of_this_thread()->groups;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  of_this_thread()->in_group = false;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t communicator, cudaStream_t stream) {
  return queue(communicator, {"all_reduce", from, to, count, type, -1, stream, {}});
}
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t, int root,
                        ncclComm_t communicator, cudaStream_t stream) {
  return queue(communicator, {"reduce", from, to, count, type, root, stream, {}});
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  return queue(communicator, {"broadcast", from, to, count, type, root, stream, {}});
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return queue(communicator, {"send", from, nullptr, count, type, peer, stream, {}});
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return queue(communicator, {"receive", nullptr, to, count, type, peer, stream, {}});
}

}  // extern "C"
