// SPDX-License-Identifier: Apache-2.0
#include <fmt/compile.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/learn/run/history_json.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

namespace meshgrad {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Names may hold any bytes; JSON holds UTF-8 only.
std::string utf8(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson block_json(const MemorySnapshot::Block& block) {
  OrderedJson json = {{"address", block.address}, {"bytes", block.bytes}};
  if (block.state != MemorySnapshot::State::used) return json;
  json["requested"] = block.requested;
  json["tag"] = name_of(block.tag);
  json["name"] = block.name;
  return json;
}

OrderedJson segment_json(const MemorySnapshot::Segment& segment) {
  const bool small = std::ranges::all_of(segment.blocks, &MemorySnapshot::Block::small);
  OrderedJson json = {
      {"address", segment.address}, {"bytes", segment.bytes}, {"stream", segment.stream}, {"small", small}};
  json["mappings"] = segment.mappings;
  json["blocks"] = OrderedJson::array();
  for (const MemorySnapshot::Block& block : segment.blocks) json["blocks"].push_back(block_json(block));
  return json;
}

/// [now, most].
OrderedJson counter_json(const MemoryCounter& counter) {
  return OrderedJson::array({counter.current, counter.peak});
}

OrderedJson stats_json(const MemoryStats& stats) {
  OrderedJson tags = OrderedJson::object();
  for (size_t tag = 0; tag < kTagCount; ++tag)
    tags[std::string(name_of(static_cast<Tag>(tag)))] = counter_json(stats.by_tag[tag].requested);
  return {{"requested", counter_json(stats.requested)},
          {"allocated", counter_json(stats.allocated)},
          {"active", counter_json(stats.active)},
          {"reserved", counter_json(stats.reserved)},
          {"inactive_split", counter_json(stats.inactive_split)},
          {"pinned", counter_json(stats.pinned)},
          {"capacity", stats.capacity},
          {"largest_free", stats.largest_free},
          {"external_fragmentation", stats.external_fragmentation()},
          {"internal_fragmentation", stats.internal_fragmentation()},
          {"holes", stats.holes},
          {"allocations", stats.allocations},
          {"live_allocations", stats.live_allocations},
          {"driver_calls", stats.source_calls},
          {"driver_nanoseconds", stats.source_nanoseconds},
          {"growths", stats.growths},
          {"flushes", stats.flushes},
          {"borrows", stats.borrows},
          {"retries", stats.retries},
          {"stream_waits", stats.stream_waits},
          {"out_of_memory", stats.out_of_memory},
          {"by_tag", tags}};
}

}  // namespace

void write_history_json(const std::filesystem::path& path, const MemorySnapshot& snapshot,
                        const MemoryHistory& history, const AllocatorOptions& options) {
  AtomicFile file(path);
  file.write(
      fmt::format("{{\"format\": \"meshgrad-memory-history\", \"version\": 1,\n\"names\": {},\n"
                  "\"dropped\": {}, \"events\": [",
                  utf8(history.names), history.dropped));
  // Line by line: a tree of a million events would take more memory than the file.
  fmt::memory_buffer line;
  std::string_view separator = "\n";
  for (const MemoryEvent& event : history.events) {
    line.clear();
    fmt::format_to(std::back_inserter(line),
                   FMT_COMPILE("{}{{\"kind\": \"{}\", \"address\": {}, \"bytes\": {}, \"stream\": {}, "
                               "\"tag\": \"{}\", \"name\": {}, \"time_ns\": {}}}"),
                   separator, name_of(event.kind), event.address, event.bytes, event.stream,
                   name_of(event.tag), event.name, event.nanoseconds);
    file.write(std::string_view(line.data(), line.size()));
    separator = ",\n";
  }
  file.write("\n],\n\"segments\": [");
  separator = "\n";
  for (const MemorySnapshot::Segment& segment : snapshot.segments) {
    file.write(fmt::format("{}{}", separator, utf8(segment_json(segment))));
    separator = ",\n";
  }
  const OrderedJson settings = {{"memory_limit", options.memory_limit},
                                {"expandable_segments", options.expandable_segments},
                                {"garbage_collection_threshold", options.garbage_collection_threshold}};
  file.write(fmt::format("\n],\n\"stats\": {},\n\"settings\": {}}}\n", utf8(stats_json(snapshot.stats)),
                         utf8(settings)));
  file.commit();
}

void write_memory_history(const std::filesystem::path& dir, CachingAllocator& allocator) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    throw data_error(dir.string(), "to make the directory", error.message(),
                     "give a directory that can be written");
  }
  const auto [snapshot, history] = allocator.record();
  write_history_json(dir / "history.json", snapshot, history, allocator.options());
}

}  // namespace meshgrad
