// SPDX-License-Identifier: Apache-2.0
// Of NCCL this has what training calls. Sums are made in the order of the ranks, as the host's are. A call
// that differs from those of other ranks, or has other memory than that of its device, fails, where NCCL
// would hang or write elsewhere.
#include "nccl_simulated.h"

#include <fmt/format.h>
#include <meshgrad/engine/ranks/nccl_library.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arena.h"
#include "streams.h"

namespace {

using simt::streams;
using Lock = std::lock_guard<std::recursive_mutex>;

/// One sum of all ranks.
struct Sum {
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  std::vector<std::vector<std::byte>> parts;  // of each rank, as its stream had it
  size_t arrived = 0;
  std::vector<std::shared_ptr<simt::Event>> complete;  // for each rank: all parts are there, or it aborted
};

std::shared_ptr<simt::Event> event_of_rank() {
  auto event = std::make_shared<simt::Event>();
  event->recorded = 1;
  event->from_other_rank = true;
  return event;
}

/// The n-th message from one rank to another.
struct Transfer {
  std::optional<size_t> sent, received;  // bytes, as each side says
  std::vector<std::byte> bytes;          // as the sender's stream had them
  int arrived = 0;                       // sides whose stream has come to it: both go on together
  std::shared_ptr<simt::Event> sender_done = event_of_rank(), receiver_done = event_of_rank();
};

struct Group {
  size_t size = 0;
  size_t joined = 0;
  std::vector<std::shared_ptr<Sum>> sums;
  std::map<std::pair<size_t, size_t>, std::vector<std::shared_ptr<Transfer>>> transfers;  // from, to
};

std::mutex joining;
std::map<int, std::shared_ptr<Group>>& groups() {
  static auto& all = *new std::map<int, std::shared_ptr<Group>>;
  return all;
}
std::atomic<int> ids, sums, exchanges, destroyed, aborted;

int64_t& bytes_sent() {
  thread_local int64_t bytes = 0;
  return bytes;
}

std::string& refusal() {
  thread_local std::string text;
  return text;
}
ncclResult_t refuse(const std::string& text) {
  refusal() = text;
  return ncclInvalidUsage;
}

std::string& only_visible() {
  thread_local std::string address;
  return address;
}
std::string gpu_address(int device) {
  return only_visible().empty() ? fmt::format("0000:{:02x}:00.0", device + 1) : only_visible();
}

bool& remote_error() {
  thread_local bool on = false;
  return on;
}

size_t size_of(ncclDataType_t type) { return type == ncclFloat64 ? 8 : 4; }

template <class T>
void add(const Sum& sum, void* to) {
  std::vector<T> total(sum.count), part(sum.count);
  for (size_t rank = 0; rank < sum.parts.size(); ++rank) {
    std::memcpy(part.data(), sum.parts[rank].data(), sum.parts[rank].size());
    for (size_t i = 0; i < total.size(); ++i) total[i] = rank == 0 ? part[i] : total[i] + part[i];
  }
  std::memcpy(to, total.data(), total.size() * sizeof(T));
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Group> group;
  size_t rank = 0;
  int device = 0;
  size_t calls = 0;
  ncclResult_t state = ncclSuccess;
  std::function<ncclResult_t()> pending;     // what NCCL's own thread does next
  std::map<size_t, size_t> sends, receives;  // by peer, so far
};

namespace simt {

void see_only(const std::string& address) { only_visible() = address; }
void report_remote_error(bool on) { remote_error() = on; }
NcclCounts nccl_counts() { return {sums, exchanges, destroyed, aborted}; }
int64_t nccl_bytes_sent() { return bytes_sent(); }

}  // namespace simt

namespace {

ncclResult_t get_unique_id(ncclUniqueId* id) {
  const int number = ++ids;
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}

/// Starts what async_error() goes on with: a program that does not ask gets nothing done.
ncclResult_t begin(ncclComm_t communicator, std::function<ncclResult_t()> work) {
  communicator->state = ncclInProgress;
  communicator->pending = std::move(work);
  return ncclInProgress;
}
/// Done when all ranks have called it.
ncclResult_t init_rank(ncclComm_t* communicator, int count, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) return refuse("calls that do not block");
  int number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  const std::lock_guard lock(joining);
  std::shared_ptr<Group>& group = groups()[number];
  if (group == nullptr) group = std::make_shared<Group>();
  group->size = static_cast<size_t>(count);
  ++group->joined;
  *communicator = new ncclComm{group, static_cast<size_t>(rank), simt::current_device()};
  return begin(*communicator, [own = group] {
    const std::lock_guard lock_to_read(joining);
    return own->joined == own->size ? ncclSuccess : ncclInProgress;
  });
}
ncclResult_t destroy(ncclComm_t communicator) {
  if (communicator->state == ncclInProgress) return refuse("no call before the one before is done");
  ++destroyed;
  delete communicator;
  return ncclSuccess;
}
/// What waits for other ranks in streams of this one goes on, without their values.
ncclResult_t abort_communicator(ncclComm_t communicator) {
  ++aborted;
  const Lock lock(streams().lock);
  for (const auto& sum : communicator->group->sums) sum->complete[communicator->rank]->done = 1;
  for (const auto& [ends, transfers] : communicator->group->transfers) {
    for (const auto& transfer : transfers) {
      if (ends.first == communicator->rank) transfer->sender_done->done = 1;
      if (ends.second == communicator->rank) transfer->receiver_done->done = 1;
    }
  }
  delete communicator;
  return ncclSuccess;
}
const char* error_string(ncclResult_t error) {
  return error == ncclInvalidUsage ? refusal().c_str() : "another error";
}
/// Another rank of the same host that aborts is not noticed.
ncclResult_t async_error(ncclComm_t communicator, ncclResult_t* error) {
  *error = remote_error() ? ncclRemoteError : communicator->state;
  if (communicator->state == ncclInProgress) communicator->state = communicator->pending();
  return ncclSuccess;
}

ncclResult_t add_to_stream(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t native) {
  const Lock lock(streams().lock);
  simt::Stream& stream = streams().of_usable(native);
  if (stream.capture) streams().refuse(&stream, "a sum of NCCL");
  const auto bytes = static_cast<int64_t>(count * size_of(type));
  for (const void* memory : {from, static_cast<const void*>(to)}) {
    if (!simt::arena().live(memory, bytes) || simt::arena().device_of(memory) != communicator->device)
      return refuse(fmt::format("{} bytes that are not in memory of device {}", bytes, communicator->device));
  }
  if (stream.device != communicator->device) return refuse("a stream of another device");
  const std::shared_ptr<Group> group = communicator->group;
  if (communicator->calls == group->sums.size()) {
    auto sum = std::make_shared<Sum>(Sum{count, type, {}, 0, {}});
    sum->parts.resize(group->size);
    for (size_t rank = 0; rank < group->size; ++rank) sum->complete.push_back(event_of_rank());
    group->sums.push_back(std::move(sum));
  }
  const std::shared_ptr<Sum> sum = group->sums[communicator->calls++];
  if (sum->count != count || sum->type != type)
    return refuse(fmt::format("a sum of {} values beside one of {}", count, sum->count));
  const size_t rank = communicator->rank;
  streams().enqueue(stream, [=] {
    const auto* const values = static_cast<const std::byte*>(from);
    sum->parts[rank].assign(values, values + bytes);
    if (++sum->arrived < sum->parts.size()) return;
    for (const auto& event : sum->complete) event->done = 1;
  });
  streams().wait(stream, sum->complete[rank]);
  streams().enqueue(stream, [=] {
    if (sum->arrived < sum->parts.size()) return;  // aborted
    type == ncclFloat64 ? add<double>(*sum, to) : add<float>(*sum, to);
  });
  return ncclSuccess;
}
ncclResult_t all_reduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                        ncclComm_t communicator, cudaStream_t native) {
  if (communicator->state == ncclInProgress) return refuse("no call before the one before is done");
  ++sums;
  return begin(communicator, [=] { return add_to_stream(from, to, count, type, communicator, native); });
}

/// A call between ncclGroupStart and ncclGroupEnd.
struct Message {
  bool send = false;
  void* memory = nullptr;
  size_t bytes = 0;
  size_t peer = 0;
};
struct OpenGroup {
  int depth = 0;
  std::vector<Message> messages;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
};
OpenGroup& open_group() {
  thread_local OpenGroup group;
  return group;
}

bool is_live(const Message& message, int device) {
  return message.bytes == 0 || (simt::arena().live(message.memory, static_cast<int64_t>(message.bytes)) &&
                                simt::arena().device_of(message.memory) == device);
}

/// The transfer that a message is a side of. Null, with the reason in refusal(), for another size there.
std::shared_ptr<Transfer> transfer_of(const ncclComm_t communicator, const Message& message) {
  const size_t rank = communicator->rank, peer = message.peer;
  size_t& number = (message.send ? communicator->sends : communicator->receives)[peer];
  auto& transfers =
      communicator->group->transfers[message.send ? std::pair(rank, peer) : std::pair(peer, rank)];
  if (transfers.size() <= number) transfers.resize(number + 1);
  std::shared_ptr<Transfer>& transfer = transfers[number++];
  if (transfer == nullptr) transfer = std::make_shared<Transfer>();
  (message.send ? transfer->sent : transfer->received) = message.bytes;
  if (!transfer->sent || !transfer->received || *transfer->sent == *transfer->received) return transfer;
  refuse(fmt::format("{} bytes received of {} that were sent", *transfer->received, *transfer->sent));
  return nullptr;
}

/// All messages of a group start together, and none is done before its other side has come to it.
ncclResult_t queue_messages(const OpenGroup& group) {
  const Lock lock(streams().lock);
  const ncclComm_t communicator = group.communicator;
  simt::Stream& stream = streams().of_usable(group.stream);
  if (stream.capture) streams().refuse(&stream, "messages of NCCL");
  if (stream.device != communicator->device) return refuse("a stream of another device");
  struct Side {
    Message message;
    std::shared_ptr<Transfer> transfer;
  };
  std::vector<Side> sides;
  for (const Message& message : group.messages) {
    if (message.peer >= communicator->group->size || message.peer == communicator->rank)
      return refuse(fmt::format("a message of rank {} with rank {}", communicator->rank, message.peer));
    if (!is_live(message, communicator->device))
      return refuse(
          fmt::format("{} bytes that are not in memory of device {}", message.bytes, communicator->device));
    sides.push_back({message, transfer_of(communicator, message)});
    if (sides.back().transfer == nullptr) return ncclInvalidUsage;
    if (message.send) bytes_sent() += static_cast<int64_t>(message.bytes);
  }
  streams().enqueue(stream, [=] {
    for (const auto& [message, transfer] : sides) {
      const auto* const bytes = static_cast<const std::byte*>(message.memory);
      if (message.send) transfer->bytes.assign(bytes, bytes + message.bytes);
      if (++transfer->arrived == 2) transfer->sender_done->done = transfer->receiver_done->done = 1;
    }
  });
  for (const auto& [message, transfer] : sides)
    streams().wait(stream, message.send ? transfer->sender_done : transfer->receiver_done);
  streams().enqueue(stream, [=] {
    for (const auto& [message, transfer] : sides) {
      if (transfer->arrived < 2 || message.send || message.bytes == 0) continue;
      std::memcpy(message.memory, transfer->bytes.data(), message.bytes);
    }
  });
  return ncclSuccess;
}

ncclResult_t group_start() {
  if (open_group().depth > 0) return refuse("a group at a time");
  open_group() = {.depth = 1, .messages = {}};
  return ncclSuccess;
}
ncclResult_t group_end() {
  OpenGroup group = std::exchange(open_group(), {});
  if (group.depth == 0) return refuse("ncclGroupStart before ncclGroupEnd");
  if (group.messages.empty()) return ncclSuccess;
  ++exchanges;
  return begin(group.communicator, [group] { return queue_messages(group); });
}
ncclResult_t add_message(const Message& message, ncclDataType_t type, ncclComm_t communicator,
                         cudaStream_t stream) {
  OpenGroup& group = open_group();
  if (group.depth == 0) return refuse("a message in a group: a lone one waits for its other side");
  if (communicator->state == ncclInProgress) return refuse("no call before the one before is done");
  if (type != ncclInt8) return refuse("bytes");
  if (!group.messages.empty() && (group.communicator != communicator || group.stream != stream))
    return refuse("a communicator and a stream of a group");
  group.communicator = communicator;
  group.stream = stream;
  group.messages.push_back(message);
  return ncclSuccess;
}
ncclResult_t send(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                  cudaStream_t stream) {
  return add_message({true, const_cast<void*>(from), count, static_cast<size_t>(peer)}, type, communicator,
                     stream);
}
ncclResult_t receive(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                     cudaStream_t stream) {
  return add_message({false, to, count, static_cast<size_t>(peer)}, type, communicator, stream);
}

}  // namespace

const meshgrad::NcclLibrary& meshgrad::nccl_library() {
  static const NcclLibrary all{.unique_id = get_unique_id,
                               .init_rank = init_rank,
                               .destroy = destroy,
                               .abort = abort_communicator,
                               .async_error = async_error,
                               .error_string = error_string,
                               .all_reduce = all_reduce,
                               .group_start = group_start,
                               .group_end = group_end,
                               .send = send,
                               .receive = receive,
                               .gpu_address = gpu_address,
                               .missing = {}};
  return all;
}
