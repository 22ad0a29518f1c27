// SPDX-License-Identifier: Apache-2.0
#include <fmt/compile.h>
#include <meshgrad/train/io/atomic_file.h>
#include <meshgrad/train/report/history_json.h>

#include <iterator>
#include <nlohmann/json.hpp>

namespace meshgrad {

void write_history_json(const std::filesystem::path& path, const MemoryHistory& history) {
  AtomicFile file(path);
  // Names may hold any bytes; JSON holds UTF-8 only.
  const std::string names =
      nlohmann::json(history.names).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  file.write(
      fmt::format("{{\"format\": \"meshgrad-memory-history\", \"version\": 1,\n\"names\": {},\n"
                  "\"dropped\": {}, \"events\": [",
                  names, history.dropped));
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
  file.write("\n]}\n");
  file.commit();
}

}  // namespace meshgrad
