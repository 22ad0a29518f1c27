// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/allocator.h>
#include <meshgrad/engine/error.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad {
namespace {

constexpr int64_t kMinAlignment = 64;
constexpr int64_t kMinGrowth = int64_t{16} << 20;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

void add(MemoryCounter& counter, int64_t bytes) {
  counter.current += bytes;
  counter.peak = std::max(counter.peak, counter.current);
  if (bytes > 0) counter.total += bytes;
}

}  // namespace

std::string_view name_of(Tag tag) {
  constexpr std::string_view kNames[kTagCount] = {"parameters",  "gradients",     "optimizer",
                                                  "activations", "recompute",     "workspace",
                                                  "data",        "communication", "host"};
  return kNames[static_cast<int>(tag)];
}

double MemoryStats::fragmentation() const {
  const int64_t free = reserved.current - allocated.current;
  return free > 0 ? 1.0 - static_cast<double>(largest_free) / static_cast<double>(free) : 0.0;
}

std::shared_ptr<Allocator> Allocator::create(std::shared_ptr<MemorySource> source) {
  return std::shared_ptr<Allocator>(new Allocator(std::move(source)));
}

Allocator::~Allocator() {
  for (const auto& [address, bytes] : segments_) source_->unmap(address, bytes);
}

StoragePtr Allocator::allocate(int64_t bytes, int64_t alignment, const Stream& stream, Tag tag,
                               std::string_view name) {
  if (bytes < 0 || alignment <= 0 || (alignment & (alignment - 1)) != 0 || alignment > 4096) {
    throw invalid_argument("allocate", "bytes >= 0 and an alignment that is a power of two up to 4096",
                           fmt::format("{} bytes aligned to {}", bytes, alignment));
  }
  if (stream.device() != device()) {
    throw invalid_argument("allocate", "a stream of " + name_of(device()),
                           "one of " + name_of(stream.device()));
  }
  const int64_t aligned = std::max(alignment, kMinAlignment);
  const int64_t size = round_up(std::clamp<int64_t>(bytes, 1, source_->capacity()), kMinAlignment);
  std::unique_lock lock(mutex_);
  const bool possible = bytes <= source_->capacity();
  char* address = possible ? take_block(size, aligned) : nullptr;
  for (size_t i = 0; possible && address == nullptr && i < callbacks_.size(); ++i) {
    const std::function<bool()> callback = callbacks_[i];
    lock.unlock();
    const bool freed = callback();
    lock.lock();
    if (freed) address = take_block(size, aligned);
  }
  if (address == nullptr) {
    ++stats_.out_of_memory;
    throw OutOfMemory(
        fmt::format("[allocate {}] needed {} bytes for {}, and {} has no room\n{}fix: lower train.batch, or "
                    "model.width, or set model.keep_hidden = false; or raise memory.limit",
                    name, bytes, name_of(tag), name_of(device()), report_locked()));
  }
  Block& block = blocks_.at(address);
  block.requested = bytes;
  block.tag = tag;
  block.name = scopes_.empty() ? std::string() : scopes_.back();
  if (!name.empty()) block.name += (block.name.empty() ? "" : "/") + std::string(name);
  add(stats_.by_tag[static_cast<size_t>(tag)], block.bytes);
  add(stats_.requested, bytes);
  add(stats_.allocated, block.bytes);
  ++stats_.live_allocations;
  ++stats_.allocations;
  return std::make_shared<Storage>(address, bytes, device(),
                                   [self = shared_from_this(), address] { self->give_back(address); });
}

char* Allocator::take_block(int64_t bytes, int64_t alignment) {
  const int64_t worst = bytes + (alignment > kMinAlignment ? alignment : 0);
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto fit = free_.lower_bound({worst, nullptr});
    if (fit != free_.end()) return carve(fit->second, bytes, alignment);
    if (grow(worst)) continue;
    if (attempt > 0) break;
    ++stats_.flushes;
    release_cached_locked();
  }
  return nullptr;
}

char* Allocator::carve(char* address, int64_t bytes, int64_t alignment) {
  Block whole = blocks_.at(address);
  free_.erase({whole.bytes, address});
  const int64_t head =
      round_up(reinterpret_cast<int64_t>(address), alignment) - reinterpret_cast<int64_t>(address);
  if (head > 0) {
    blocks_.at(address).bytes = head;
    add_free(address, head);
  }
  char* const taken = address + head;
  blocks_[taken] = Block{whole.segment, bytes, false, 0, Tag::host, {}};
  const int64_t tail = whole.bytes - head - bytes;
  if (tail > 0) {
    blocks_[taken + bytes] = Block{whole.segment, tail, true, 0, Tag::host, {}};
    add_free(taken + bytes, tail);
  }
  return taken;
}

bool Allocator::grow(int64_t bytes) {
  const int64_t exact = round_up(bytes, source_->granularity());
  for (const int64_t size : {std::max(exact, round_up(kMinGrowth, source_->granularity())), exact}) {
    ++stats_.source_calls;
    auto* segment = static_cast<char*>(source_->map(size));
    if (segment == nullptr) continue;
    segments_[segment] = size;
    blocks_[segment] = Block{segment, size, true, 0, Tag::host, {}};
    add_free(segment, size);
    add(stats_.reserved, size);
    return true;
  }
  return false;
}

void Allocator::give_back(char* address) {
  const std::lock_guard lock(mutex_);
  auto it = blocks_.find(address);
  check_internal(it != blocks_.end() && !it->second.free, "a block was freed twice");
  add(stats_.by_tag[static_cast<size_t>(it->second.tag)], -it->second.bytes);
  add(stats_.requested, -it->second.requested);
  add(stats_.allocated, -it->second.bytes);
  --stats_.live_allocations;
  it->second.free = true;
  it->second.name.clear();
  const auto merge_with_next = [&](auto first) {
    const auto second = std::next(first);
    if (second == blocks_.end() || !second->second.free || !first->second.free ||
        second->second.segment != first->second.segment) {
      return;
    }
    free_.erase({second->second.bytes, second->first});
    free_.erase({first->second.bytes, first->first});
    first->second.bytes += second->second.bytes;
    blocks_.erase(second);
  };
  merge_with_next(it);
  if (it != blocks_.begin()) {
    const auto previous = std::prev(it);
    const bool absorbs = previous->second.free && previous->second.segment == it->second.segment;
    merge_with_next(previous);
    if (absorbs) it = previous;
  }
  add_free(it->first, it->second.bytes);
}

void Allocator::record_use(const StoragePtr& storage, const Stream& stream) {
  check_internal(storage != nullptr && stream.device() == device(), "record_use on another device");
}

int64_t Allocator::release_cached() {
  const std::lock_guard lock(mutex_);
  return release_cached_locked();
}

int64_t Allocator::release_cached_locked() {
  int64_t released = 0;
  for (auto it = segments_.begin(); it != segments_.end();) {
    const Block& first = blocks_.at(it->first);
    if (!first.free || first.bytes != it->second) {
      ++it;
      continue;
    }
    free_.erase({first.bytes, it->first});
    blocks_.erase(it->first);
    source_->unmap(it->first, it->second);
    ++stats_.source_calls;
    released += it->second;
    it = segments_.erase(it);
  }
  add(stats_.reserved, -released);
  return released;
}

MemoryStats Allocator::stats() const {
  const std::lock_guard lock(mutex_);
  MemoryStats stats = stats_;
  stats.largest_free = free_.empty() ? 0 : free_.rbegin()->first;
  return stats;
}

void Allocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  const auto reset = [](MemoryCounter& counter) { counter.peak = counter.current; };
  std::for_each(stats_.by_tag.begin(), stats_.by_tag.end(), reset);
  reset(stats_.requested);
  reset(stats_.allocated);
  reset(stats_.reserved);
}

void Allocator::on_out_of_memory(std::function<bool()> callback) {
  const std::lock_guard lock(mutex_);
  callbacks_.push_back(std::move(callback));
}

std::string Allocator::report() const {
  const std::lock_guard lock(mutex_);
  return report_locked();
}

std::string Allocator::report_locked() const {
  constexpr double kMiB = 1 << 20;
  std::string text = fmt::format(
      "  capacity {:.1f} MiB, reserved {:.1f} MiB, allocated {:.1f} MiB, largest free block {:.1f} MiB\n",
      static_cast<double>(source_->capacity()) / kMiB, static_cast<double>(stats_.reserved.current) / kMiB,
      static_cast<double>(stats_.allocated.current) / kMiB,
      free_.empty() ? 0.0 : static_cast<double>(free_.rbegin()->first) / kMiB);
  for (int tag = 0; tag < kTagCount; ++tag) {
    const int64_t bytes = stats_.by_tag[static_cast<size_t>(tag)].current;
    if (bytes > 0) {
      text += fmt::format("  {:<14}{:>12.1f} MiB\n", name_of(static_cast<Tag>(tag)),
                          static_cast<double>(bytes) / kMiB);
    }
  }
  std::map<std::pair<std::string, Tag>, int64_t> owners;
  for (const auto& [address, block] : blocks_) {
    if (!block.free) owners[{block.name, block.tag}] += block.bytes;
  }
  std::vector<std::pair<int64_t, std::string>> largest;
  for (const auto& [key, bytes] : owners) {
    largest.emplace_back(
        bytes, fmt::format("{} ({})", key.first.empty() ? "unnamed" : key.first, name_of(key.second)));
  }
  std::sort(largest.rbegin(), largest.rend());
  for (size_t i = 0; i < std::min<size_t>(5, largest.size()); ++i) {
    text += fmt::format("  largest owner {}: {:.1f} MiB in {}\n", i + 1,
                        static_cast<double>(largest[i].first) / kMiB, largest[i].second);
  }
  return text;
}

MemoryScope::MemoryScope(Allocator& allocator, std::string_view name) : allocator_(allocator) {
  const std::lock_guard lock(allocator_.mutex_);
  auto& scopes = allocator_.scopes_;
  scopes.push_back(scopes.empty() ? std::string(name) : scopes.back() + "/" + std::string(name));
}

MemoryScope::~MemoryScope() {
  const std::lock_guard lock(allocator_.mutex_);
  allocator_.scopes_.pop_back();
}

Pool::Pool(Allocator& allocator, int64_t bytes, const Stream& stream, Tag tag, std::string_view name)
    : block_(allocator.allocate(bytes, 4096, stream, tag, name)) {}

StoragePtr Pool::allocate(int64_t bytes) {
  const int64_t begin = round_up(used_, kMinAlignment);
  if (bytes > block_->bytes() - begin) {
    throw OutOfMemory(fmt::format("[pool] needed {} bytes, got {} left of {}; fix: make the pool larger",
                                  bytes, block_->bytes() - begin, block_->bytes()));
  }
  used_ = begin + bytes;
  return std::make_shared<Storage>(static_cast<char*>(block_->data()) + begin, bytes, block_->device(),
                                   [keep = block_] { (void)keep; });
}

}  // namespace meshgrad
