// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/history.h>

#include <doctest/doctest.h>

#include <algorithm>

namespace meshgrad {
namespace {

TEST_CASE("names are stored once, and joined inside their scopes") {
  NameTable names;
  CHECK(names[0] == "");
  CHECK(names.inside(0, "") == 0);
  const uint32_t block = names.inside(0, "block");
  const uint32_t mlp = names.inside(block, "mlp");
  CHECK(names[block] == "block");
  CHECK(names[mlp] == "block/mlp");
  CHECK(names.inside(mlp, "") == mlp);
  CHECK(names.inside(0, "mlp") != mlp);
  std::string text = "block";  // equal text elsewhere is the same name
  CHECK(names.inside(0, text) == block);
  text = "other";  // at the address of a known name
  CHECK(names[names.inside(0, text)] == "other");
  CHECK(names.inside(0, "block") == block);
  CHECK(names.inside(block, "mlp") == mlp);
  CHECK(names.inside(block, std::string_view(text).substr(0, 3)) == 5);
  CHECK(names.all() == std::vector<std::string>{"", "block", "block/mlp", "mlp", "other", "block/oth"});
}

TEST_CASE("equal names in different scopes are distinct") {
  NameTable names;
  const uint32_t outer = names.inside(0, "outer"), inner = names.inside(outer, "inner");
  const std::string text(1024, 'x');
  for (size_t at = 0; at + 3 <= text.size(); ++at) {
    const uint32_t scope = at % 3 == 0 ? 0 : at % 3 == 1 ? outer : inner;
    CHECK(names[names.inside(scope, std::string_view(text).substr(at, 3))] ==
          (scope == 0 ? "xxx" : names[scope] + "/xxx"));
  }
  CHECK(names.all().size() == 6);
}

TEST_CASE("names that are made up without end do not fill the memory") {
  NameTable names;
  const uint32_t scope = names.inside(0, "scope");
  for (int i = 0; i < 70'000; ++i) names.inside(scope, std::to_string(i));
  CHECK(names.all().size() == 65536);
  CHECK(names.inside(scope, "one more") == scope);
  CHECK(names[names.inside(scope, "17")] == "scope/17");
}

MemoryEvent event(int64_t bytes) {
  MemoryEvent made;
  made.bytes = bytes;
  return made;
}

TEST_CASE("the last events are kept, oldest first") {
  for (const int64_t capacity : {1, 2, 5}) {
    MemoryRecorder recorder(capacity);
    CHECK(recorder.records());
    CHECK(recorder.history().events.empty());
    for (int64_t count = 1; count <= 13; ++count) {
      recorder.record(event(count));
      const MemoryHistory history = recorder.history();
      const int64_t kept = std::min(count, capacity);
      REQUIRE(history.events.size() == static_cast<size_t>(kept));
      CHECK(history.dropped == count - kept);
      for (int64_t i = 0; i < kept; ++i)
        CHECK(history.events[static_cast<size_t>(i)].bytes == count - kept + 1 + i);
    }
  }
}

TEST_CASE("without a capacity nothing is recorded") {
  const MemoryRecorder recorder;
  CHECK_FALSE(recorder.records());
  CHECK(recorder.history().events.empty());
  CHECK(recorder.history().dropped == 0);
}

TEST_CASE("events are stamped with the time of day") {
  const int64_t before = MemoryRecorder::now();
  CHECK(before > int64_t{1'600'000'000} * 1'000'000'000);  // September 2020
  CHECK(MemoryRecorder::now() >= before);
}

}  // namespace
}  // namespace meshgrad
