// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/json_fault.h>
#include <meshgrad/train/data/mapped_file.h>
#include <meshgrad/train/tools/extras/history_file.h>

#include <map>
#include <string>

namespace meshgrad {
namespace {

using Json = nlohmann::json;

template <class T>
T named(const Json& name, int count) {
  const auto text = name.get<std::string>();
  for (int i = 0; i < count; ++i) {
    if (name_of(static_cast<T>(i)) == text) return static_cast<T>(i);
  }
  throw Json::type_error::create(302, fmt::format("a name that is not written: {}", text), &name);
}

MemoryEvent event_of(const Json& json) {
  constexpr int kKinds = static_cast<int>(MemoryEvent::Kind::out_of_memory) + 1;
  return {.kind = named<MemoryEvent::Kind>(json.at("kind"), kKinds),
          .tag = named<Tag>(json.at("tag"), kTagCount),
          .stream = json.at("stream"),
          .name = json.at("name"),
          .address = json.at("address"),
          .bytes = json.at("bytes"),
          .nanoseconds = json.at("time_ns")};
}

MemorySnapshot::Segment segment_of(const Json& json) {
  MemorySnapshot::Segment segment;
  segment.address = json.at("address");
  segment.bytes = json.at("bytes");
  segment.stream = json.at("stream");
  segment.mappings = json.at("mappings").get<std::vector<int64_t>>();
  for (const Json& part : json.at("blocks")) {
    MemorySnapshot::Block block;
    block.address = part.at("address");
    block.bytes = part.at("bytes");
    block.small = json.at("small");
    if (part.contains("tag")) {
      block.state = MemorySnapshot::State::used;
      block.requested = part.at("requested");
      block.tag = named<Tag>(part.at("tag"), kTagCount);
      block.name = part.at("name");
    }
    segment.blocks.push_back(std::move(block));
  }
  return segment;
}

HistoryFile parse(std::string_view text) {
  HistoryFile file;
  MemoryHistory& history = file.record.history;
  std::string section;
  // Event by event: a million of them as one document would take a gigabyte.
  const auto take = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1) section = parsed.get<std::string>();
    if (event != Json::parse_event_t::object_end || depth != 2 || section != "events") return true;
    history.events.push_back(event_of(parsed));
    return false;
  };
  const Json json = Json::parse(text, take);
  history.dropped = json.at("dropped");
  history.names = json.at("names").get<std::vector<std::string>>();
  for (const Json& segment : json.at("segments"))
    file.record.snapshot.segments.push_back(segment_of(segment));
  file.stats = json.at("stats");
  return file;
}

}  // namespace

HistoryFile read_history_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  try {
    return parse(text);
  } catch (const Json::exception& error) {
    throw data_error(path.string(), "a history that memory.history wrote", json_fault(text, error),
                     "write it again with this version: train with memory.history = 100000");
  }
}

}  // namespace meshgrad
