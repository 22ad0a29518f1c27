// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/tools/extras/replay/trace_builder.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

namespace meshgrad {
namespace {

constexpr std::string_view kRmmHeader = "Thread,Time,Action,Pointer,Size,Stream";

/// Removes the next line from `text`; returns it without its end.
std::string_view next_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

/// Removes the next word from `line`; empty at its end.
std::string_view next_word(std::string_view& line) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  size_t begin = 0;
  while (begin < line.size() && is_blank(line[begin])) ++begin;
  size_t end = begin;
  while (end < line.size() && !is_blank(line[end])) ++end;
  const std::string_view word = line.substr(begin, end - begin);
  line.remove_prefix(end);
  return word;
}

template <class Number>
std::optional<Number> to_number(std::string_view word, int base = 10) {
  Number number{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number, base);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

/// A pointer as printf writes it: "0x7f00", "7f00", "(nil)".
std::optional<uint64_t> to_pointer(std::string_view word) {
  if (word == "(nil)") return 0;
  if (word.starts_with("0x") || word.starts_with("0X")) word.remove_prefix(2);
  return to_number<uint64_t>(word, 16);
}

/// A line for an error message.
std::string shown_line(std::string_view line) {
  constexpr size_t kLongest = 60;
  std::string text;
  for (const char c : line.substr(0, kLongest)) text += c >= ' ' && c < '\x7f' ? c : '?';
  return '"' + text + (line.size() > kLongest ? "...\"" : "\"");
}

/// False when the words are none of the format's.
bool parse_plain_line(std::string_view line, TraceBuilder& builder) {
  std::string_view rest = line;
  const std::string_view action = next_word(rest);
  if (action.empty() || action.front() == '#') return true;
  const std::string_view words[] = {next_word(rest), next_word(rest), next_word(rest)};
  if (action.size() != 1 || !next_word(rest).empty()) return false;
  const std::optional<uint64_t> block = to_number<uint64_t>(words[0]);
  if (!block) return false;
  if (action == "a") {
    const std::optional<int64_t> bytes = to_number<int64_t>(words[1]);
    const std::optional<uint64_t> stream = words[2].empty() ? 0 : to_number<uint64_t>(words[2]);
    if (!bytes || !stream) return false;
    builder.allocate(*block, *bytes, *stream);
    return true;
  }
  if (!words[1].empty()) return false;
  if (action == "s") {
    builder.step();
    return true;
  }
  if (action != "f") return false;
  if (!builder.free(*block)) {
    builder.fail("the free of a block that is in use", fmt::format("{}, which is not", *block),
                 "record from the start, and every free only once");
  }
  return true;
}

using RmmFields = std::array<std::string_view, 6>;

std::optional<RmmFields> split_fields(std::string_view line) {
  RmmFields fields;
  for (size_t i = 0; i < fields.size(); ++i) {
    const size_t comma = line.find(',');
    if ((comma == std::string_view::npos) != (i + 1 == fields.size())) return std::nullopt;
    fields[i] = line.substr(0, comma);
    line.remove_prefix(std::min(fields[i].size() + 1, line.size()));
  }
  return fields;
}

/// False when the line is not in RMM's format.
bool parse_rmm_line(std::string_view line, TraceBuilder& builder) {
  if (line.empty() || line == kRmmHeader) return true;  // concatenated logs
  const std::optional<RmmFields> fields = split_fields(line);
  if (!fields) return false;
  const std::string_view action = (*fields)[2];
  const std::optional<uint64_t> pointer = to_pointer((*fields)[3]);
  const std::optional<int64_t> bytes = to_number<int64_t>((*fields)[4]);
  const std::optional<uint64_t> stream = to_pointer((*fields)[5]);
  if (!pointer || !bytes || !stream) return false;
  if (action == "allocate failure") return true;
  if (action == "allocate") {
    if (*pointer != 0) builder.allocate(*pointer, *bytes, *stream);
    return true;
  }
  if (action != "free" && action != "deallocate") return false;
  if (*pointer != 0 && !builder.free(*pointer)) {
    builder.fail("the free of a block that is in use", fmt::format("{}, which is not", (*fields)[3]),
                 "log from the start of the program");
  }
  return true;
}

/// The whole file, decompressed if it is gzip. Bounded, so that a small file cannot take all memory.
std::string read_all(const std::filesystem::path& path) {
  const auto fail = [&](std::string_view needed, std::string_view got, std::string_view fix) {
    return data_error(path.string(), needed, got, fix);
  };
  const RegularFile input(path);
  const int descriptor = ::dup(input.descriptor());
  errno = 0;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzdopen(descriptor, "rb"), gzclose);
  if (!file) {
    if (descriptor >= 0) ::close(descriptor);
    throw fail("a trace", std::strerror(errno), "check the path");
  }
  // Text of a trace is about 10 times its gzip file.
  const uint64_t limit = (uint64_t{256} << 20) + 100 * input.bytes();
  std::string text;
  constexpr size_t kChunk = size_t{1} << 20;
  gzbuffer(file.get(), kChunk);
  for (;;) {
    const size_t size = text.size();
    text.resize(size + kChunk);
    const int count = gzread(file.get(), text.data() + size, kChunk);
    text.resize(size + static_cast<size_t>(std::max(count, 0)));
    int code = Z_OK;
    const std::string problem = gzerror(file.get(), &code);
    if (code == Z_ERRNO) throw fail("a trace", std::strerror(errno), "check the path");
    if (code != Z_OK) throw fail("a whole gzip file", problem, "copy it again");
    if (count == 0) return text;
    if (text.size() > limit) {
      throw fail(fmt::format("at most {} MiB of text (256 MiB and 100 times the file)", limit >> 20),
                 fmt::format("{} bytes or more", text.size()), "check the file, or decompress it");
    }
  }
}

bool starts_with_line(std::string_view text, std::string_view line) { return next_line(text) == line; }

}  // namespace

MemoryTrace parse_plain_trace(std::string_view text, const std::string& name, double scale) {
  TraceBuilder builder(name, "line", scale);
  for (int64_t line = 1; !text.empty(); ++line) {
    builder.at(line);
    const std::string_view words = next_line(text);
    if (!parse_plain_line(words, builder)) {
      builder.fail(R"("a ID BYTES [STREAM]", "f ID", "s STEP" or "# comment")", shown_line(words),
                   "correct or remove the line");
    }
  }
  return builder.finish();
}

MemoryTrace parse_rmm_trace(std::string_view text, const std::string& name, double scale) {
  TraceBuilder builder(name, "line", scale);
  for (int64_t line = 1; !text.empty(); ++line) {
    builder.at(line);
    const std::string_view fields = next_line(text);
    if (!parse_rmm_line(fields, builder)) {
      builder.fail(fmt::format("{} with the action allocate, free or \"allocate failure\"", kRmmHeader),
                   shown_line(fields), "correct or remove the line");
    }
  }
  return builder.finish();
}

MemoryTrace parse_memory_trace(std::string_view text, const std::string& name, double scale) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) throw data_error(name, "a trace", "an empty file", "record again");
  const bool pickle = text[0] == '\x80';
  if (pickle || text.starts_with("PK\x03\x04")) {
    throw data_error(name, "plain text, RMM's CSV or an allocator's history in JSON",
                     pickle ? "a Python pickle" : "a zip file",
                     "for a snapshot of PyTorch: scripts/pytorch-trace SNAPSHOT.pickle > trace.txt");
  }
  if (text[first] == '{') return parse_history_trace(text, name, scale);
  if (starts_with_line(text.substr(first), kRmmHeader)) return parse_rmm_trace(text, name, scale);
  return parse_plain_trace(text, name, scale);
}

MemoryTrace read_memory_trace(const std::filesystem::path& path, double scale) {
  return parse_memory_trace(read_all(path), path.string(), scale);
}

}  // namespace meshgrad
