// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/options.h>

#include <doctest/doctest.h>

#include <cstdlib>
#include <set>
#include <string>

namespace meshgrad {
namespace {

/// The message of the ConfigError; empty when the text is accepted.
std::string refusal(std::string_view text) {
  try {
    parse_allocator_options(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_CASE("every key is read") {
  const AllocatorOptions options = parse_allocator_options(
      "memory_limit:8GiB,expandable_segments:False,garbage_collection_threshold:0.75,"
      "release_cached_every:7,plan_steps:True,history:1000");
  CHECK(options.memory_limit == 8 * kGiB);
  CHECK_FALSE(options.expandable_segments);
  CHECK(options.garbage_collection_threshold == 0.75);
  CHECK(options.release_cached_every == 7);
  CHECK(options.plan_steps);
  CHECK(options.history == 1000);
}

TEST_CASE("unnamed options keep their defaults, and the last one counts") {
  const AllocatorOptions defaults{.memory_limit = 5, .expandable_segments = false, .history = 9};
  for (const char* nothing : {"", "  ", " "}) {
    const AllocatorOptions same = parse_allocator_options(nothing, defaults);
    CHECK(same.memory_limit == 5);
    CHECK_FALSE(same.expandable_segments);
    CHECK(same.history == 9);
  }
  const AllocatorOptions options =
      parse_allocator_options(" history : 3 , expandable_segments: True ,history:4,", defaults);
  CHECK(options.history == 4);
  CHECK(options.expandable_segments);
  CHECK(options.memory_limit == 5);
}

TEST_CASE("a value may be written in several ways") {
  const auto limit = [](std::string_view text) { return parse_allocator_options(text).memory_limit; };
  CHECK(limit("memory_limit:0") == 0);
  CHECK(limit("memory_limit:1.5GiB") == 3 * kGiB / 2);
  CHECK(limit("memory_limit:512MiB") == kGiB / 2);
  CHECK(limit("memory_limit:2 GB") == 2'000'000'000);
  CHECK(limit("memory_limit:4096B") == 4096);
  for (const char* yes : {"True", "true", "1"})
    CHECK(parse_allocator_options("expandable_segments:" + std::string(yes)).expandable_segments);
  for (const char* no : {"False", "false", "0"})
    CHECK_FALSE(parse_allocator_options("expandable_segments:" + std::string(no)).expandable_segments);
  for (const auto& [text, value] : {std::pair{"0", 0.0}, {"1", 1.0}, {"0.5", 0.5}, {"5e-1", 0.5}})
    CHECK(parse_allocator_options("garbage_collection_threshold:" + std::string(text))
              .garbage_collection_threshold == value);
}

TEST_CASE("the longest history and no history are accepted") {
  CHECK(parse_allocator_options("history:100000000").history == 100'000'000);
  CHECK(parse_allocator_options("history:0").history == 0);
}

TEST_CASE("options of bad form are refused with an example") {
  struct Bad {
    const char *text, *where, *needed, *got;
  };
  const Bad bad[] = {
      {"memory_limit:8", "memory_limit", "a size with a unit", "got 8;"},
      {"memory_limit:", "memory_limit", "a size with a unit", "got ;"},
      {"memory_limit:-1GiB", "memory_limit", "a size with a unit", "got -1GiB;"},
      {"memory_limit:8GiBs", "memory_limit", "a size with a unit", "got 8GiBs;"},
      {"memory_limit:nanGiB", "memory_limit", "a size with a unit", "got nanGiB;"},
      {"memory_limit:9999999TiB", "memory_limit", "a size with a unit", "got 9999999TiB;"},
      {"memory_limit:8GiB:1", "memory_limit", "a size with a unit", "got 8GiB:1;"},
      {"expandable_segments:yes", "expandable_segments", "True or False", "got yes;"},
      {"expandable_segments:", "expandable_segments", "True or False", "got ;"},
      {"expandable_segments:TRUE", "expandable_segments", "True or False", "got TRUE;"},
      {"garbage_collection_threshold:1.01", "garbage_collection_threshold", "a fraction", "got 1.01;"},
      {"garbage_collection_threshold:-0.1", "garbage_collection_threshold", "a fraction", "got -0.1;"},
      {"garbage_collection_threshold:nan", "garbage_collection_threshold", "a fraction", "got nan;"},
      {"garbage_collection_threshold:80%", "garbage_collection_threshold", "a fraction", "got 80%;"},
      {"garbage_collection_threshold:", "garbage_collection_threshold", "a fraction", "got ;"},
      {"release_cached_every:-1", "release_cached_every", "a whole number >= 0", "got -1;"},
      {"release_cached_every:1.5", "release_cached_every", "a whole number >= 0", "got 1.5;"},
      {"history:many", "history", "a whole number >= 0", "got many;"},
      {"history:99999999999999999999", "history", "a whole number >= 0", "got 99999999999999999999;"},
      {"history:100000001", "history", "at most 100000000 events", "got 100000001;"},
      {"history:1000000000000", "history", "at most 100000000 events", "got 1000000000000;"},
      {"history", "history", "key:value,key:value", "got history;"},
      {"history=3", "history=3", "key:value,key:value", "got history=3;"},
      {",history:3", "empty entry", "key:value,key:value", "got ;"},
      {"history:3,,history:4", "empty entry", "key:value,key:value", "got ;"},
      {":3", "", "memory_limit, expandable_segments", "got ;"},
      {"History:3", "History", "memory_limit, expandable_segments", "got History;"},
      {"max_size:3", "max_size", "memory_limit, expandable_segments", "got max_size;"},
  };
  for (const Bad& each : bad) {
    const std::string text = refusal(each.text);
    CAPTURE(each.text);
    CHECK_MESSAGE(
        contains(text, std::string("[MESHGRAD_ALLOC_CONF: ") + each.where + "] needed " + each.needed), text);
    CHECK_MESSAGE(contains(text, each.got), text);
    CHECK_MESSAGE(contains(text, "; fix: "), text);
  }
}

TEST_CASE("each of PyTorch's options says what to use instead") {
  struct Name {
    const char *setting, *advice;
  };
  const Name names[] = {
      {"backend:cudaMallocAsync", "MemorySource"},
      {"max_split_size_mb:128", "split at any size"},
      {"max_non_split_rounding_mb:20", "never larger than asked for"},
      {"roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", "not rounding"},
      {"roundup_power2_divisions:4", "not rounding"},
      {"large_segment_size_mb:20", "grows by the bytes needed"},
      {"expandable_segments_reserve:40G", "9/8 of the limit"},
      {"expandable_segments_reserve_by_class:[small:1G]", "one range, for blocks of all sizes"},
      {"per_process_memory_fraction:0.5", "use memory_limit:SIZE, for example"},
      {"throw_on_cudamalloc_oom:True", "the driver is never asked for more"},
      {"release_lock_on_cudamalloc:True", "growth is rare"},
      {"graph_capture_record_stream_reuse:True", "reused after a wait on the device"},
      {"pinned_use_cuda_host_register:True", "pinned host memory"},
      {"pinned_num_register_threads:8", "pinned host memory"},
      {"pinned_use_background_threads:True", "pinned host memory"},
      {"pinned_reserve_segment_size_mb:64", "pinned host memory"},
      {"pinned_free_catch_all:True", "pinned host memory"},
  };
  for (const Name& name : names) {
    const std::string text = refusal(name.setting);
    const std::string key(name.setting, std::string_view(name.setting).find(':'));
    CHECK_MESSAGE(contains(text, "[MESHGRAD_ALLOC_CONF: " + key + "] needed"), text);
    CHECK_MESSAGE(contains(text, "PyTorch"), text);
    CHECK_MESSAGE(contains(text.substr(text.find("; fix: ")), name.advice), text);
  }
  // The two that both have mean the same in both.
  CHECK(refusal("garbage_collection_threshold:0.8,expandable_segments:True") == "");
}

TEST_CASE("the environment is read") {
  unsetenv(kAllocatorVariable);
  CHECK(allocator_options_from_environment({.history = 5}).history == 5);
  setenv(kAllocatorVariable, "memory_limit:1GiB", 1);
  const AllocatorOptions options = allocator_options_from_environment({.history = 5});
  CHECK(options.memory_limit == kGiB);
  CHECK(options.history == 5);
  setenv(kAllocatorVariable, "memory_limit:", 1);
  CHECK_THROWS_AS(allocator_options_from_environment(), ConfigError);
  unsetenv(kAllocatorVariable);
}

}  // namespace
}  // namespace meshgrad
