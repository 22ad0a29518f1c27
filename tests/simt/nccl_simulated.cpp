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

struct Group {
  size_t size = 0;
  size_t joined = 0;
  std::vector<std::shared_ptr<Sum>> sums;
};

std::mutex joining;
std::map<int, std::shared_ptr<Group>>& groups() {
  static auto& all = *new std::map<int, std::shared_ptr<Group>>;
  return all;
}
std::atomic<int> ids, sums, destroyed, aborted;

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
  std::function<ncclResult_t()> pending;  // what NCCL's own thread does next
};

namespace simt {

void see_only(const std::string& address) { only_visible() = address; }
NcclCounts nccl_counts() { return {sums, destroyed, aborted}; }

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
  delete communicator;
  return ncclSuccess;
}
const char* error_string(ncclResult_t error) {
  return error == ncclInvalidUsage ? refusal().c_str() : "another error";
}
/// Another rank of the same host that aborts is not noticed.
ncclResult_t async_error(ncclComm_t communicator, ncclResult_t* error) {
  *error = communicator->state;
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
    for (size_t rank = 0; rank < group->size; ++rank) {
      auto event = std::make_shared<simt::Event>();
      event->recorded = 1;
      event->from_other_rank = true;
      sum->complete.push_back(std::move(event));
    }
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

}  // namespace

const meshgrad::NcclLibrary& meshgrad::nccl_library() {
  static const NcclLibrary all{get_unique_id,      init_rank,   destroy,
                               abort_communicator, async_error, error_string,
                               all_reduce,         gpu_address, {}};
  return all;
}
