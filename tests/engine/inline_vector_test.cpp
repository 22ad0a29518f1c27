// SPDX-License-Identifier: Apache-2.0
// Short lists in place, and memory that is used again.
#include <doctest/doctest.h>
#include <meshgrad/engine/inline_vector.h>
#include <meshgrad/engine/memory/detail/pool_allocator.h>

#include <thread>

#include "support.h"

using namespace meshgrad;
using namespace meshgrad::test;

TEST_CASE("a short list holds what a vector holds, up to its capacity") {
  InlineVector<std::string, 3> list{"a", "b"};
  list.push_back("c");
  CHECK(list.size() == 3);
  CHECK(list.front() + list[1] + list.back() == "abc");
  CHECK(std::vector<std::string>(list) == std::vector<std::string>{"a", "b", "c"});
  CHECK(contains(invalid_argument_text([&] { list.push_back("d"); }), "at most 3 values, got more than 3"));
  CHECK(contains(invalid_argument_text([] { InlineVector<int, 2>(std::vector{1, 2, 3}); }), "at most 2"));
  list.clear();
  CHECK(list.empty());
  list = std::vector<std::string>{"e"};
  CHECK(list.back() == "e");
}

TEST_CASE("a short list lets go of what it holds when it is cleared or written over") {
  const auto held = std::make_shared<int>(1);
  InlineVector<std::shared_ptr<int>, 2> list{held, held};
  CHECK(held.use_count() == 3);
  list = {held};
  CHECK(held.use_count() == 2);
  list.clear();
  CHECK(held.use_count() == 1);
}

namespace {

struct CountingResource : std::pmr::memory_resource {
  int allocations = 0;

 private:
  void* do_allocate(size_t bytes, size_t alignment) override {
    ++allocations;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, size_t bytes, size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace

TEST_CASE("freed pieces are handed out again, whichever thread freed them, and keep their memory alive") {
  CountingResource heap;
  std::shared_ptr<double> last;
  {
    std::pmr::memory_resource* const before = std::pmr::set_default_resource(&heap);
    const Recycling<std::byte> memory;
    std::pmr::set_default_resource(before);
    std::vector<std::shared_ptr<double>> pieces;
    const auto make = [&] {
      for (int i = 0; i < 2000; ++i) pieces.push_back(make_recycled<double>(memory, i));
    };
    make();
    const int first = heap.allocations;
#if !defined(__SANITIZE_ADDRESS__)
    CHECK(first > 0);
#endif
    std::thread([&] { pieces.clear(); }).join();
    make();
    CHECK(heap.allocations == first);
    last = pieces.back();
  }
  CHECK(*last == 1999.0);
}
