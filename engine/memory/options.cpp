// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/options.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>

namespace meshgrad {
namespace {

/// Settings of PyTorch's allocator that this one lacks.
struct Foreign {
  std::string_view name, advice;
};
constexpr Foreign kForeign[] = {
    {"backend", "leave it out: pass a host application's allocator as a MemorySource"},
    {"max_split_size_mb",
     "leave it out: blocks may be split at any size, as one heap with lowest-address first fit joins them "
     "again"},
    {"max_non_split_rounding_mb",
     "leave it out: a block is never larger than asked for, rounded up to 512 bytes"},
    {"roundup_power2_divisions",
     "leave it out: placement, not rounding, handles changing sizes; sizes are rounded up to 512 bytes"},
    {"large_segment_size_mb", "leave it out: the heap grows by the bytes needed, in one mapping"},
    {"expandable_segments_reserve", "leave it out: addresses are reserved for 9/8 of the limit, or fewer"},
    {"expandable_segments_reserve_by_class",
     "leave it out: every stream has one range, for blocks of all sizes"},
    {"per_process_memory_fraction", "use memory_limit:SIZE, for example memory_limit:12GiB"},
    {"throw_on_cudamalloc_oom", "use memory_limit:SIZE: the driver is never asked for more"},
    {"release_lock_on_cudamalloc", "leave it out: growth is rare and takes one call"},
    {"graph_capture_record_stream_reuse",
     "leave it out: memory used on other streams is reused after a wait on the device"},
};

[[noreturn]] void refuse(std::string_view where, std::string_view needed, std::string_view got,
                         std::string_view fix) {
  throw config_error(fmt::format("{}: {}", kAllocatorVariable, where), needed, got, fix);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

template <class T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool parse_switch(std::string_view key, std::string_view text) {
  if (text == "True" || text == "true" || text == "1") return true;
  if (text == "False" || text == "false" || text == "0") return false;
  refuse(key, "True or False", text, fmt::format("write {}:True", key));
}

int64_t parse_count(std::string_view key, std::string_view text) {
  const std::optional<int64_t> count = number<int64_t>(text);
  if (!count || *count < 0) refuse(key, "a whole number >= 0", text, fmt::format("write {}:0", key));
  return *count;
}

int64_t parse_history(std::string_view key, std::string_view text) {
  const int64_t events = parse_count(key, text);
  if (events > kMaxHistory)
    refuse(key, fmt::format("at most {} events", kMaxHistory), text, "write for example history:1000000");
  return events;
}

void set(AllocatorOptions& options, std::string_view key, std::string_view text) {
  if (key == "memory_limit") {
    const std::optional<int64_t> bytes = parse_size(text);
    if (!bytes || text.empty())
      refuse(key, "a size with a unit", text, "write for example memory_limit:8GiB");
    options.memory_limit = *bytes;
  } else if (key == "expandable_segments") {
    options.expandable_segments = parse_switch(key, text);
  } else if (key == "garbage_collection_threshold") {
    const std::optional<double> fraction = number<double>(text);
    if (!fraction || !(*fraction >= 0.0 && *fraction <= 1.0))
      refuse(key, "a fraction from 0 (never) to 1", text,
             "write for example garbage_collection_threshold:0.8");
    options.garbage_collection_threshold = *fraction;
  } else if (key == "release_cached_every") {
    options.release_cached_every = parse_count(key, text);
  } else if (key == "plan_steps") {
    options.plan_steps = parse_switch(key, text);
  } else if (key == "history") {
    options.history = parse_history(key, text);
  } else {
    for (const Foreign& foreign : kForeign)
      if (foreign.name == key)
        refuse(key, "a setting of this allocator", "a setting of PyTorch's", foreign.advice);
    if (key.starts_with("pinned_"))
      refuse(key, "a setting of this allocator", "a setting of PyTorch's",
             "leave it out: it is about pinned host memory");
    refuse(key,
           "memory_limit, expandable_segments, garbage_collection_threshold, release_cached_every, "
           "plan_steps or history",
           key, "see docs/allocator.md");
  }
}

}  // namespace

AllocatorOptions parse_allocator_options(std::string_view text, AllocatorOptions defaults) {
  while (!trimmed(text).empty()) {
    const std::string_view entry = trimmed(text.substr(0, text.find(',')));
    text.remove_prefix(std::min(text.find(','), text.size() - 1) + 1);
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos)
      refuse(entry.empty() ? "empty entry" : entry, "key:value,key:value", entry,
             "write for example memory_limit:8GiB");
    set(defaults, trimmed(entry.substr(0, colon)), trimmed(entry.substr(colon + 1)));
  }
  return defaults;
}

AllocatorOptions allocator_options_from_environment(AllocatorOptions defaults) {
  const char* const text = std::getenv(kAllocatorVariable);
  return text == nullptr ? defaults : parse_allocator_options(text, defaults);
}

}  // namespace meshgrad
