// SPDX-License-Identifier: Apache-2.0
// Every memory source keeps the contract of MemorySource; then what each promises on its own.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/source_callback.h>
#include <meshgrad/engine/memory/source_counted.h>
#include <meshgrad/engine/memory/source_cuda.h>
#include <meshgrad/engine/memory/source_host.h>

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>

#include "support.h"
#include "test_memory_source.h"

namespace meshgrad {
namespace {

using test::TestMemorySource;

void fill(char* address, int64_t bytes, char value) {
  std::memset(address, value, static_cast<size_t>(bytes));
}

bool filled(const char* address, int64_t bytes, char value) {
  return std::all_of(address, address + bytes, [value](char byte) { return byte == value; });
}

/// Whether reading the byte would not fault; the kernel reads it, so that nothing does.
bool readable(const char* address) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const bool ok = write(ends[1], address, 1) == 1;
  if (!ok) CHECK(errno == EFAULT);
  close(ends[0]);
  close(ends[1]);
  return ok;
}

/// What a source's memory can be asked.
enum class Memory {
  host,      ///< may be touched
  elsewhere  ///< on a device, or not there at all
};

void check_independent_ranges(MemorySource& source, Memory memory) {
  const int64_t page = source.granularity();
  char* a = source.reserve(4 * page);
  char* b = source.reserve(2 * page);
  REQUIRE(a != nullptr);
  REQUIRE(b != nullptr);
  for (const char* address : {a, b}) CHECK(reinterpret_cast<uintptr_t>(address) % 4096 == 0);
  CHECK((a + 4 * page <= b || b + 2 * page <= a));
  CHECK(source.mapped_bytes() == 0);
  REQUIRE(source.map(b, 2 * page));
  REQUIRE(source.map(a, 4 * page));
  CHECK(source.mapped_bytes() == 6 * page);
  if (memory == Memory::host) {
    fill(a, 4 * page, 'a');
    fill(b, 2 * page, 'b');
    CHECK(filled(a, 4 * page, 'a'));
  }
  source.unmap(a, 4 * page);
  source.release(a, 4 * page);
  CHECK(source.mapped_bytes() == 2 * page);
  if (memory == Memory::host) CHECK(filled(b, 2 * page, 'b'));
  source.unmap(b, 2 * page);
  CHECK(source.mapped_bytes() == 0);
  if (!source.expandable()) {  // mapped whole, as often as one likes
    REQUIRE(source.map(b, 2 * page));
    source.unmap(b, 2 * page);
  }
  source.release(b, 2 * page);
}

void check_growth(MemorySource& source, Memory memory) {
  const int64_t page = source.granularity();
  char* range = source.reserve(6 * page);
  REQUIRE(range != nullptr);
  REQUIRE(source.map(range + 2 * page, 2 * page));
  REQUIRE(source.map(range, page));
  REQUIRE(source.map(range + page, page));  // fits between
  CHECK(source.mapped_bytes() == 4 * page);
  const bool touch = memory == Memory::host;
  if (touch) {
    fill(range, 2 * page, 'l');
    fill(range + 2 * page, 2 * page, 'h');
    CHECK_FALSE(readable(range + 4 * page));
  }
  source.unmap(range + page, page);
  CHECK(source.mapped_bytes() == 3 * page);
  if (touch) {
    CHECK_FALSE(readable(range + page));
    CHECK(filled(range, page, 'l'));
    CHECK(filled(range + 2 * page, 2 * page, 'h'));
  }
  REQUIRE(source.map(range + page, page));
  REQUIRE(source.map(range + 4 * page, 2 * page));
  if (touch) {
    fill(range + page, page, 'm');
    fill(range + 4 * page, 2 * page, 't');
    CHECK(filled(range, page, 'l'));
    CHECK(filled(range + 2 * page, 2 * page, 'h'));
  }
  for (const auto& [first, pages] : {std::pair{4, 2}, {0, 1}, {2, 2}, {1, 1}}) {
    source.unmap(range + first * page, pages * page);
  }
  CHECK(source.mapped_bytes() == 0);
  source.release(range, 6 * page);
}

/// More than there is must be refused when it is reserved or when it is mapped, and nothing must have
/// changed.
void check_capacity(MemorySource& source) {
  const int64_t page = source.granularity();
  char* kept = source.reserve(page);
  REQUIRE(kept != nullptr);
  REQUIRE(source.map(kept, page));
  const int64_t pages = source.capacity() / page;  // one of them is mapped already
  char* refused = source.reserve(pages * page);
  if (refused != nullptr) {
    CHECK_FALSE(source.map(refused, pages * page));
    source.release(refused, pages * page);
  }
  CHECK(source.mapped_bytes() == page);
  char* fits = source.reserve(page);
  REQUIRE(fits != nullptr);
  CHECK(source.map(fits, page));
  source.unmap(fits, page);
  source.release(fits, page);
  source.unmap(kept, page);
  source.release(kept, page);
  CHECK(source.mapped_bytes() == 0);
}

void check_streams(MemorySource& source) {
  const Stream first(source.device(), 0);
  const Stream second(source.device(), 1);
  for (int round = 0; round < 3; ++round) {  // again with what was forgotten
    const uint64_t a = source.record(first);
    const uint64_t b = source.record(second);
    CHECK((a != b || a == 0));
    source.wait(second, a);
    source.wait(second, 0);
    if (a != 0) source.forget(a);
    if (b != 0) source.forget(b);
  }
  source.synchronize(first);
  source.synchronize(second);
}

void check_memory_source(MemorySource& source, Memory memory) {
  CHECK(source.granularity() >= 4096);
  CHECK(source.granularity() % 4096 == 0);
  CHECK(source.capacity() >= 8 * source.granularity());
  CHECK(source.mapped_bytes() == 0);
  check_independent_ranges(source, memory);
  if (source.expandable()) check_growth(source, memory);
  check_capacity(source);
  check_streams(source);
}

struct ProcessBytes {
  int64_t addresses = 0;
  int64_t resident = 0;
};

ProcessBytes process_bytes() {
  ProcessBytes pages;
  std::ifstream("/proc/self/statm") >> pages.addresses >> pages.resident;
  return {pages.addresses * sysconf(_SC_PAGESIZE), pages.resident * sysconf(_SC_PAGESIZE)};
}

int64_t resident_bytes() { return process_bytes().resident; }

/// How many areas the system keeps for [begin, begin + bytes).
int64_t areas(const char* begin, int64_t bytes) {
  const auto low = reinterpret_cast<uintptr_t>(begin);
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long first = 0;
    unsigned long last = 0;
    REQUIRE(std::sscanf(line.c_str(), "%lx-%lx", &first, &last) == 2);
    if (first < low + static_cast<uintptr_t>(bytes) && last > low) ++count;
  }
  return count;
}

/// A host application that counts, and whose memory begins `offset` bytes after the start of a page.
struct Application {
  explicit Application(int64_t at) : offset(at) {}
  MemoryCallbacks callbacks() {
    MemoryCallbacks callbacks;
    callbacks.allocate = [this](int64_t bytes) -> void* {
      ++allocations;
      live += bytes;
      peak = std::max(peak, live);
      return static_cast<char*>(std::aligned_alloc(4096, static_cast<size_t>(bytes + 4096))) + offset;
    };
    callbacks.free = [this](void* memory, int64_t bytes) {
      live -= bytes;
      std::free(static_cast<char*>(memory) - offset);
    };
    return callbacks;
  }
  int64_t offset;
  int64_t allocations = 0;
  int64_t live = 0;
  int64_t peak = 0;
};

TEST_CASE("every source keeps the contract") {
  SUBCASE("host") {
    HostMemorySource source(64 * kMiB);
    check_memory_source(source, Memory::host);
  }
  SUBCASE("callbacks") {
    for (const int64_t offset : {0, 16}) {
      Application application(offset);
      CallbackMemorySource source(application.callbacks(), Device{}, 64 * kMiB);
      check_memory_source(source, Memory::host);
      CHECK(application.live == 0);
      CHECK(application.peak <= 64 * kMiB + 3 * 4096);
    }
  }
  SUBCASE("simulated") {
    for (const bool expandable : {true, false}) {
      SimulatedMemorySource source(64 * kMiB, expandable);
      check_memory_source(source, Memory::elsewhere);
    }
  }
  SUBCASE("test") {
    for (const bool expandable : {true, false}) {
      for (const int64_t granularity : {int64_t{65536}, 2 * kMiB}) {
        TestMemorySource source(
            {.capacity = 16 * granularity, .granularity = granularity, .expandable = expandable});
        check_memory_source(source, Memory::host);
        CHECK(source.violations() == std::vector<std::string>{});
        CHECK(source.live_events() == 0);
      }
    }
  }
}

TEST_CASE("the CUDA sources keep the contract" * doctest::skip(cuda_devices().empty()) *
          doctest::description("needs a CUDA device")) {
  for (const auto make : {make_cuda_virtual_memory, make_cuda_memory}) {
    const std::shared_ptr<MemorySource> source = make(0);
    CHECK(source->device() == Device{DeviceKind::cuda, 0});
    CHECK(source->granularity() >= 2 * kMiB);
    CHECK(source->expandable() == (make == make_cuda_virtual_memory));
    check_memory_source(*source, Memory::elsewhere);
  }
}

TEST_CASE("a CUDA device that is not there is an error that names it") {
  for (const auto make : {make_cuda_virtual_memory, make_cuda_memory}) {
    for (const int device : {-1, 1000}) {
      std::string text;
      try {
        make(device);
      } catch (const DeviceError& error) {
        text = error.what();
      }
      CAPTURE(text);
      CHECK(test::contains(text, "cuda:" + std::to_string(device)));
    }
  }
}

TEST_CASE("host memory is as large as the machine or the capacity") {
  const int64_t available = available_memory();
  const int64_t capacity = HostMemorySource().capacity();
  CHECK(std::abs(capacity - available) < available / 4);  // others use the machine too
  HostMemorySource source(10 * kMiB);
  CHECK(source.capacity() == 10 * kMiB);
  char* range = source.reserve(1024 * kMiB);
  REQUIRE(range != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(range) % (2 * kMiB) == 0);
  CHECK(source.map(range, 8 * kMiB));
  CHECK_FALSE(source.map(range + 8 * kMiB, 4 * kMiB));
  CHECK_FALSE(readable(range + 8 * kMiB));
  CHECK(source.map(range + 8 * kMiB, 2 * kMiB));
  CHECK(source.mapped_bytes() == source.capacity());
  source.unmap(range, 8 * kMiB);
  source.unmap(range + 8 * kMiB, 2 * kMiB);
  source.release(range, 1024 * kMiB);
  CHECK(source.reserve(0) == nullptr);
  CHECK(source.reserve(int64_t{1} << 62) == nullptr);  // more than an address can name
  CHECK(source.reserve(INT64_MAX) == nullptr);
}

TEST_CASE("reserved addresses cost nothing, and are gone once released") {
  HostMemorySource source(64 * kMiB);
  const int64_t before = resident_bytes();
  std::vector<char*> ranges;
  for (int i = 0; i < 16; ++i) ranges.push_back(source.reserve((int64_t{64} << 30) + 2 * kMiB));
  CHECK(resident_bytes() - before < 8 * kMiB);
  for (char* range : ranges) {
    REQUIRE(range != nullptr);
    CHECK(reinterpret_cast<uintptr_t>(range) % (2 * kMiB) == 0);
    CHECK(areas(range, int64_t{64} << 30) == 1);
    source.release(range, (int64_t{64} << 30) + 2 * kMiB);
    CHECK(areas(range, int64_t{64} << 30) == 0);
  }
}

TEST_CASE("addresses are aligned as asked") {
  const int64_t before = process_bytes().addresses;
  char* range = reserve_addresses(kMiB, 4 * kGiB);
  REQUIRE(range != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(range) % (4 * kGiB) == 0);
  CHECK(process_bytes().addresses - before < kGiB);
  CHECK_FALSE(readable(range));
  munmap(range, kMiB);
}

TEST_CASE("unmapped host memory goes back to the system") {
  constexpr int64_t kBytes = 64 * kMiB;
  HostMemorySource source(kBytes);
  char* range = source.reserve(2 * kBytes);
  REQUIRE(range != nullptr);
  for (int round = 0; round < 3; ++round) {
    const int64_t before = resident_bytes();
    REQUIRE(source.map(range, kBytes));
    CHECK(filled(range, kBytes, 0));
    fill(range, kBytes, 'x');
    CHECK(resident_bytes() - before > kBytes - 8 * kMiB);
    source.unmap(range, kBytes);
    CHECK(resident_bytes() - before < 8 * kMiB);
    CHECK_FALSE(readable(range));
  }
  source.release(range, 2 * kBytes);
}

TEST_CASE("neighbouring mappings of host memory are one area") {
  constexpr int64_t kHugePage = 2 * kMiB;
  constexpr int64_t kPages = 64;
  HostMemorySource source(kPages * kHugePage);
  char* range = source.reserve((kPages + 1) * kHugePage);
  REQUIRE(range != nullptr);
  for (int64_t i = 0; i < kPages; ++i) {
    REQUIRE(source.map(range + i * kHugePage, kHugePage));
    range[i * kHugePage] = 'x';
  }
  CHECK(areas(range, kPages * kHugePage) == 1);
  for (int64_t i = 1; i < kPages; i += 2) source.unmap(range + i * kHugePage, kHugePage);
  CHECK(areas(range, kPages * kHugePage) == kPages);
  for (int64_t i = 1; i < kPages; i += 2) REQUIRE(source.map(range + i * kHugePage, kHugePage));
  CHECK(areas(range, kPages * kHugePage) == 1);
  for (int64_t i = 0; i < kPages; ++i) source.unmap(range + i * kHugePage, kHugePage);
  CHECK(areas(range, (kPages + 1) * kHugePage) == 1);
  source.release(range, (kPages + 1) * kHugePage);
}

TEST_CASE("an application's memory stays within its capacity") {
  Application application(0);
  CallbackMemorySource source(application.callbacks(), Device{}, 3 * kMiB, kMiB);
  CHECK_FALSE(source.expandable());
  char* a = source.reserve(2 * kMiB);
  REQUIRE(a != nullptr);
  CHECK(application.allocations == 1);
  CHECK(source.reserve(2 * kMiB) == nullptr);
  CHECK(source.reserve(0) == nullptr);
  CHECK(application.allocations == 1);  // not even asked
  CHECK(source.mapped_bytes() == 0);
  CHECK(source.map(a, 2 * kMiB));
  fill(a, 2 * kMiB, 'a');
  char* b = source.reserve(kMiB);
  REQUIRE(b != nullptr);
  CHECK(application.live == 3 * kMiB);
  CHECK(source.map(b, kMiB));
  CHECK(source.mapped_bytes() == 3 * kMiB);
  source.unmap(a, 2 * kMiB);
  CHECK(application.live == 3 * kMiB);  // until it is released
  source.release(a, 2 * kMiB);
  CHECK(application.live == kMiB);
  source.unmap(b, kMiB);
  source.release(b, kMiB);
  CHECK(application.live == 0);
  char* all = source.reserve(3 * kMiB);
  REQUIRE(all != nullptr);
  source.release(all, 3 * kMiB);
}

TEST_CASE("an application may give memory of any alignment, or none") {
  Application application(16);
  CallbackMemorySource source(application.callbacks(), Device{}, 4 * kMiB, kMiB);
  char* range = source.reserve(4 * kMiB);
  REQUIRE(range != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(range) % 4096 == 0);
  CHECK(application.live == 4 * kMiB + 4096);
  fill(range, 4 * kMiB, 'r');
  source.release(range, 4 * kMiB);
  CHECK(application.live == 0);

  MemoryCallbacks callbacks = application.callbacks();
  callbacks.allocate = [](int64_t) -> void* { return nullptr; };
  CHECK(CallbackMemorySource(callbacks, Device{}, kMiB, kMiB).reserve(kMiB) == nullptr);
  callbacks.allocate = [](int64_t) -> void* { throw std::bad_alloc(); };
  CallbackMemorySource throwing(callbacks, Device{}, kMiB, kMiB);
  CHECK(throwing.reserve(kMiB) == nullptr);
  CHECK(throwing.mapped_bytes() == 0);
}

TEST_CASE("an application that gives half of its callbacks is refused") {
  const auto text = [](const MemoryCallbacks& callbacks, int64_t capacity, int64_t granularity) {
    return test::invalid_argument_text(
        [&] { CallbackMemorySource(callbacks, Device{}, capacity, granularity); });
  };
  MemoryCallbacks callbacks = Application(0).callbacks();
  CHECK(text(callbacks, kMiB, 4096).empty());
  CHECK(test::contains(text(callbacks, 0, 4096), "capacity"));
  for (const int64_t granularity : {2048, 5000, 0, -4096}) {
    CHECK(test::contains(text(callbacks, kMiB, granularity), std::to_string(granularity)));
  }
  CHECK(test::contains(text({.allocate = callbacks.allocate}, kMiB, 4096), "no free"));
  CHECK(test::contains(text({.free = callbacks.free}, kMiB, 4096), "no allocate"));
  std::string log;
  callbacks.record = [&log](const Stream& stream) {
    log += "record " + std::to_string(stream.id()) + "; ";
    return uint64_t{7};
  };
  callbacks.wait = [&log](const Stream& stream, uint64_t event) {
    log += "wait " + std::to_string(stream.id()) + " for " + std::to_string(event) + "; ";
  };
  callbacks.forget = [&log](uint64_t event) { log += "forget " + std::to_string(event) + "; "; };
  CHECK(test::contains(text(callbacks, kMiB, 4096), "3 of the 4"));
  callbacks.synchronize = [&log](const Stream& stream) {
    log += "synchronize " + std::to_string(stream.id());
  };
  CallbackMemorySource source(callbacks, Device{}, kMiB, kMiB);
  CHECK(source.record(Stream(Device{}, 1)) == 7);
  source.wait(Stream(Device{}, 2), 7);
  source.forget(7);
  source.synchronize(Stream(Device{}, 3));
  CHECK(log == "record 1; wait 2 for 7; forget 7; synchronize 3");
}

TEST_CASE("simulated memory is unlimited and counts its calls") {
  constexpr int64_t kTiB = int64_t{1} << 40;
  SimulatedMemorySource source(200 * kTiB);
  CHECK(source.capacity() == 200 * kTiB);
  CHECK(source.granularity() == 2 * kMiB);
  char* a = source.reserve(300 * kTiB);
  CHECK(reinterpret_cast<int64_t>(a) >= kTiB);
  CHECK(source.map(a, 200 * kTiB));
  CHECK_FALSE(source.map(a + 200 * kTiB, 2 * kMiB));
  source.unmap(a, 200 * kTiB);
  source.release(a, 300 * kTiB);
  char* b = source.reserve(2 * kMiB);
  CHECK(b > a + 300 * kTiB);  // not given again
  CHECK(source.reserve(INT64_MAX) == nullptr);
  CHECK(source.reserve(0) == nullptr);
  CHECK(source.calls() == SimulatedMemorySource::Calls{.reserve = 4, .map = 2, .unmap = 1, .release = 1});
  CHECK_FALSE(SimulatedMemorySource(kTiB, false).expandable());
}

}  // namespace
}  // namespace meshgrad
