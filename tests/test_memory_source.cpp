// SPDX-License-Identifier: Apache-2.0
#include "test_memory_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <meshgrad/engine/memory/source_host.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace meshgrad::test {

using Lock = std::lock_guard<std::mutex>;

TestMemorySource::TestMemorySource(const Options& options) : options_(options) {
  file_ = memfd_create("meshgrad-test-memory", MFD_CLOEXEC);
  if (file_ < 0) throw std::runtime_error("memfd_create failed");
}

TestMemorySource::~TestMemorySource() {
  for (const auto& [address, bytes] : aliases_) munmap(address, static_cast<size_t>(bytes));
  for (const auto& [address, bytes] : reservations_) munmap(address, static_cast<size_t>(bytes));
  close(file_);
}

int64_t TestMemorySource::capacity() const {
  const Lock lock(mutex_);
  return options_.capacity;
}

int64_t TestMemorySource::mapped_bytes() const {
  const Lock lock(mutex_);
  return mapped_;
}

char* TestMemorySource::reserve(int64_t bytes) {
  dawdle();
  const Lock lock(mutex_);
  ++calls_.reserve;
  if (!multiple(bytes)) violated(fmt::format("reserve of {} bytes", bytes));
  char* address = multiple(bytes) && !refuse() ? reserve_addresses(bytes, options_.granularity) : nullptr;
  if (address == nullptr) {
    ++calls_.refused;
  } else {
    reservations_.emplace(address, bytes);
  }
  return address;
}

bool TestMemorySource::map(char* address, int64_t bytes) {
  dawdle();
  const Lock lock(mutex_);
  ++calls_.map;
  const bool refused = refuse() || !may_map(address, bytes) || bytes > options_.capacity - mapped_;
  // Every mapping is a new piece at the end of the file, whose holes cost nothing.
  if (refused || ftruncate(file_, file_end_ + bytes) != 0 ||
      mmap(address, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
           file_end_) == MAP_FAILED) {
    ++calls_.refused;
    return false;
  }
  mappings_.emplace(address, Mapping{bytes, file_end_});
  file_end_ += bytes;
  mapped_ += bytes;
  return true;
}

bool TestMemorySource::may_map(char* address, int64_t bytes) {
  const auto reservation = reservation_of(address);
  const bool inside = reservation != reservations_.end() && multiple(bytes) &&
                      (address - reservation->first) % options_.granularity == 0 &&
                      bytes <= reservation->second - (address - reservation->first);
  if (!inside) {
    violated(fmt::format("map of {} bytes at {}: not pages of a reservation", bytes, fmt::ptr(address)));
    return false;
  }
  if (anything_mapped(address, bytes)) {
    violated(fmt::format("map of {} bytes at {}: over what is mapped", bytes, fmt::ptr(address)));
    return false;
  }
  if (!options_.expandable && bytes != reservation->second) {
    violated(fmt::format("map of {} of the {} bytes of a reservation that does not expand", bytes,
                         reservation->second));
    return false;
  }
  return true;
}

void TestMemorySource::unmap(char* address, int64_t bytes) {
  dawdle();
  const Lock lock(mutex_);
  ++calls_.unmap;
  const auto mapping = mappings_.find(address);
  if (mapping == mappings_.end() || mapping->second.bytes != bytes) {
    violated(fmt::format("unmap of {} bytes at {}: no map() gave that", bytes, fmt::ptr(address)));
    return;
  }
  if (!drop_mapping(address, bytes) ||
      fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, mapping->second.file_offset, bytes) != 0) {
    violated("the system refused to take memory back");
  }
  mappings_.erase(mapping);
  mapped_ -= bytes;
}

void TestMemorySource::release(char* address, int64_t bytes) {
  dawdle();
  const Lock lock(mutex_);
  ++calls_.release;
  const auto reservation = reservations_.find(address);
  if (reservation == reservations_.end() || reservation->second != bytes) {
    violated(fmt::format("release of {} bytes at {}: no reserve() gave that", bytes, fmt::ptr(address)));
  } else if (anything_mapped(address, bytes)) {
    violated(fmt::format("release of {} bytes at {}: something is mapped there", bytes, fmt::ptr(address)));
  } else {
    munmap(address, static_cast<size_t>(bytes));
    reservations_.erase(reservation);
  }
}

char* TestMemorySource::alias(const char* address) {
  const Lock lock(mutex_);
  for (const auto& [start, mapping] : mappings_) {
    if (address < start || address >= start + mapping.bytes) continue;
    void* view = mmap(nullptr, static_cast<size_t>(mapping.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_,
                      mapping.file_offset);
    if (view == MAP_FAILED) return nullptr;
    aliases_.emplace_back(static_cast<char*>(view), mapping.bytes);
    return static_cast<char*>(view) + (address - start);
  }
  return nullptr;
}

std::map<char*, int64_t>::const_iterator TestMemorySource::reservation_of(const char* address) const {
  return std::find_if(reservations_.begin(), reservations_.end(), [address](const auto& reservation) {
    return address >= reservation.first && address < reservation.first + reservation.second;
  });
}

bool TestMemorySource::anything_mapped(char* address, int64_t bytes) const {
  auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first < address + bytes) return true;
  return next != mappings_.begin() && (--next)->first + next->second.bytes > address;
}

bool TestMemorySource::refuse() { return fail_in_ > 0 && --fail_in_ == 0; }

void TestMemorySource::dawdle() const {
  std::chrono::nanoseconds latency;
  {
    const Lock lock(mutex_);
    latency = latency_;
  }
  if (latency.count() == 0) return;
  const auto end = std::chrono::steady_clock::now() + latency;
  while (std::chrono::steady_clock::now() < end) continue;
}

void TestMemorySource::violated(const std::string& what) { violations_.push_back(what); }

void TestMemorySource::set_capacity(int64_t bytes) {
  const Lock lock(mutex_);
  options_.capacity = bytes;
}

void TestMemorySource::fail_at(int64_t n) {
  const Lock lock(mutex_);
  fail_in_ = n;
}

void TestMemorySource::set_latency(std::chrono::nanoseconds latency) {
  const Lock lock(mutex_);
  latency_ = latency;
}

TestMemorySource::Calls TestMemorySource::calls() const {
  const Lock lock(mutex_);
  return calls_;
}

std::vector<std::pair<char*, int64_t>> TestMemorySource::reservations() const {
  const Lock lock(mutex_);
  return {reservations_.begin(), reservations_.end()};
}

std::vector<std::pair<char*, int64_t>> TestMemorySource::mappings() const {
  const Lock lock(mutex_);
  std::vector<std::pair<char*, int64_t>> mappings;
  for (const auto& [address, mapping] : mappings_) mappings.emplace_back(address, mapping.bytes);
  return mappings;
}

std::vector<std::string> TestMemorySource::violations() const {
  const Lock lock(mutex_);
  return violations_;
}

uint64_t TestMemorySource::record(const Stream& stream) {
  const Lock lock(mutex_);
  ++calls_.record;
  const Place place = enqueue(stream);
  events_.push_back({place, queues_[place.queue]});
  ++live_events_;
  return events_.size();
}

void TestMemorySource::wait(const Stream& stream, uint64_t event) {
  const Lock lock(mutex_);
  ++calls_.wait;
  if (event == 0) return;
  if (const RecordedEvent* waited = live_event(event, "wait for"))
    join(queues_[queue_of(stream)], waited->follows);
}

void TestMemorySource::forget(uint64_t event) {
  const Lock lock(mutex_);
  ++calls_.forget;
  if (event == 0) return;
  if (RecordedEvent* forgotten = live_event(event, "forget")) {
    forgotten->forgotten = true;
    --live_events_;
  }
}

void TestMemorySource::synchronize(const Stream& stream) {
  const Lock lock(mutex_);
  ++calls_.synchronize;
  join(done_, queues_[queue_of(stream)]);
}

int64_t TestMemorySource::live_events() const {
  const Lock lock(mutex_);
  return live_events_;
}

uint64_t TestMemorySource::queue_work(const Stream& stream) {
  const Lock lock(mutex_);
  works_.push_back(enqueue(stream));
  return works_.size();
}

bool TestMemorySource::ordered_after(const Stream& stream, uint64_t work) {
  const Lock lock(mutex_);
  const Place& place = works_.at(work - 1);
  return reaches(queues_[queue_of(stream)], place) || reaches(done_, place);
}

void TestMemorySource::complete(uint64_t event) {
  const Lock lock(mutex_);
  join(done_, events_.at(event - 1).follows);
}

bool TestMemorySource::completed(uint64_t event) const {
  const Lock lock(mutex_);
  return reaches(done_, events_.at(event - 1).place);
}

size_t TestMemorySource::queue_of(const Stream& stream) {
  const auto [entry, is_new] = queue_by_id_.emplace(stream.id(), queues_.size());
  if (is_new) queues_.emplace_back();
  return entry->second;
}

TestMemorySource::Place TestMemorySource::enqueue(const Stream& stream) {
  const size_t queue = queue_of(stream);
  Clock& clock = queues_[queue];
  if (clock.size() <= queue) clock.resize(queue + 1);
  return {queue, ++clock[queue]};
}

TestMemorySource::RecordedEvent* TestMemorySource::live_event(uint64_t event, const std::string& call) {
  if (event > events_.size() || events_[event - 1].forgotten) {
    violated(fmt::format("{} event {}, which is {}", call, event,
                         event > events_.size() ? "none" : "forgotten already"));
    return nullptr;
  }
  return &events_[event - 1];
}

void TestMemorySource::join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t queue = 0; queue < other.size(); ++queue) clock[queue] = std::max(clock[queue], other[queue]);
}

bool TestMemorySource::reaches(const Clock& clock, const Place& place) {
  return place.queue < clock.size() && clock[place.queue] >= place.position;
}

}  // namespace meshgrad::test
