// SPDX-License-Identifier: Apache-2.0
// A MemorySource for tests. Its memory is real: pages of one anonymous file, seen at the addresses where they
// are mapped, faulting everywhere else. Its streams are queues of numbers that run when a test says so. It
// holds its caller to the contract of MemorySource, and can refuse, dawdle and count.
#pragma once
#include <meshgrad/engine/memory/source.h>

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace meshgrad::test {

/// May be asked from any thread at any time.
class TestMemorySource final : public MemorySource {
 public:
  struct Options {
    int64_t capacity = int64_t{256} << 20;
    int64_t granularity = int64_t{2} << 20;  ///< a power of two of 4096 or more
    bool expandable = true;
    Device device;
  };
  /// Calls since the beginning, refused ones too.
  struct Calls {
    int64_t reserve = 0;
    int64_t map = 0;
    int64_t unmap = 0;
    int64_t release = 0;
    int64_t record = 0;
    int64_t wait = 0;
    int64_t forget = 0;
    int64_t synchronize = 0;
    int64_t refused = 0;  ///< of reserve and map: for lack of capacity, or because of fail_at
  };

  TestMemorySource() : TestMemorySource(Options{}) {}
  explicit TestMemorySource(const Options& options);
  ~TestMemorySource() override;
  TestMemorySource(const TestMemorySource&) = delete;
  TestMemorySource& operator=(const TestMemorySource&) = delete;

  Device device() const override { return options_.device; }
  int64_t capacity() const override;
  int64_t mapped_bytes() const override;
  int64_t granularity() const override { return options_.granularity; }
  bool expandable() const override { return options_.expandable; }
  char* reserve(int64_t bytes) override;
  bool map(char* address, int64_t bytes) override;
  void unmap(char* address, int64_t bytes) override;
  void release(char* address, int64_t bytes) override;
  uint64_t record(const Stream& stream) override;
  void wait(const Stream& stream, uint64_t event) override;
  void forget(uint64_t event) override;
  void synchronize(const Stream& stream) override;

  /// May fall below what is mapped; only later calls of map() notice.
  void set_capacity(int64_t bytes);
  /// The n-th call of reserve() or map() from now is refused, once: n = 1 is the next. 0: none.
  void fail_at(int64_t n);
  /// Each call of reserve, map, unmap and release keeps its thread busy for that long.
  void set_latency(std::chrono::nanoseconds latency);
  Calls calls() const;

  /// A second view of the memory at a mapped address; lives as long as the source, and after unmap() sees
  /// memory that nothing else sees. nullptr where nothing is mapped.
  char* alias(const char* address);
  /// Start and bytes of what is reserved, and of what is mapped, by address.
  std::vector<std::pair<char*, int64_t>> reservations() const;
  std::vector<std::pair<char*, int64_t>> mappings() const;

  /// What the caller did against the contract, in order; empty is right.
  std::vector<std::string> violations() const;
  /// Events recorded and not forgotten yet.
  int64_t live_events() const;

  /// Work that is queued on the stream, by a number.
  uint64_t queue_work(const Stream& stream);
  /// Whether whatever is queued on `stream` from now on cannot run before `work` has: it follows it in the
  /// same queue, or waits for an event after it, directly or through other streams, or the host knows it is
  /// done.
  bool ordered_after(const Stream& stream, uint64_t work);
  /// The event, and with it all that it follows, has happened, and the host knows.
  void complete(uint64_t event);
  bool completed(uint64_t event) const;

 private:
  struct Mapping {
    int64_t bytes = 0;
    int64_t file_offset = 0;
  };
  /// A place in a stream's queue.
  struct Place {
    size_t queue = 0;
    uint64_t position = 0;  // from 1
  };
  /// Per queue, the last place of it that something follows.
  using Clock = std::vector<uint64_t>;
  struct RecordedEvent {
    Place place;
    Clock follows;
    bool forgotten = false;
  };

  bool refuse();
  void dawdle() const;
  void violated(const std::string& what);
  bool multiple(int64_t bytes) const { return bytes > 0 && bytes % options_.granularity == 0; }
  std::map<char*, int64_t>::const_iterator reservation_of(const char* address) const;
  bool anything_mapped(char* address, int64_t bytes) const;
  bool may_map(char* address, int64_t bytes);
  size_t queue_of(const Stream& stream);
  Place enqueue(const Stream& stream);
  RecordedEvent* live_event(uint64_t event, const std::string& call);
  static void join(Clock& clock, const Clock& other);
  static bool reaches(const Clock& clock, const Place& place);

  Options options_;
  mutable std::mutex mutex_;
  int file_ = -1;
  int64_t file_end_ = 0;
  std::map<char*, int64_t> reservations_;
  std::map<char*, Mapping> mappings_;
  std::vector<std::pair<char*, int64_t>> aliases_;
  int64_t mapped_ = 0;
  int64_t fail_in_ = 0;
  std::chrono::nanoseconds latency_{0};
  Calls calls_;
  std::vector<std::string> violations_;

  std::map<int, size_t> queue_by_id_;
  std::vector<Clock> queues_;  // what the next work of each follows
  Clock done_;                 // what the host knows to have happened
  std::vector<Place> works_;
  std::vector<RecordedEvent> events_;  // the first is event 1
  int64_t live_events_ = 0;
};

/// A stream of the host, by number.
inline Stream stream(int id) { return Stream(Device{}, id); }

}  // namespace meshgrad::test
