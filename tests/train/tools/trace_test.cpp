// SPDX-License-Identifier: Apache-2.0
// Recorded allocations: every format that is read, and what is said of those that are wrong.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/extras/replay/trace.h>
#include <zlib.h>

#include "paths.h"
#include "train/process.h"

namespace meshgrad {
namespace {

std::string recorded_trace(const std::string& name) { return test::data_file("traces/") + name; }

/// "a0:512" allocates in slot 0, "f0" frees it, each with "@1" on stream 1.
std::string events_text(const MemoryTrace& trace) {
  std::string text;
  for (const MemoryTrace::Event& event : trace.events) {
    text += text.empty() ? "" : " ";
    text += event.allocates() ? "a" : "f";
    text += std::to_string(event.slot);
    if (event.allocates()) text += ":" + std::to_string(event.bytes);
    if (event.stream != 0) text += "@" + std::to_string(event.stream);
  }
  return text;
}

std::string data_error_text(const std::string& text, double scale = 1.0) {
  try {
    parse_memory_trace(text, "trace", scale);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

void check_refused(const std::string& text, const std::string& part) {
  CAPTURE(text);
  const std::string error = data_error_text(text);
  CAPTURE(error);
  CHECK(error.find(part) != std::string::npos);
  CHECK(error.find("; fix: ") != std::string::npos);
}

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string gzipped(const std::string& text) {
  const test::ScratchDirectory scratch;
  const std::string path = (scratch.path / "file.gz").string();
  const gzFile file = gzopen(path.c_str(), "wb9");
  REQUIRE(gzwrite(file, text.data(), static_cast<unsigned>(text.size())) == static_cast<int>(text.size()));
  REQUIRE(gzclose(file) == Z_OK);
  return test::read_text(path);
}

TEST_CASE("plain text") {
  const MemoryTrace trace = parse_memory_trace(
      "# a comment\n"
      "s 0\n"
      "a 7 1000\r\n"
      "  a 18446744073709551615\t24 3  \n"
      "\n"
      "f 7\n"
      "s 1\n"
      "a 7 10\n"
      "a 9 0\n"
      "f 9\n"
      "a 10 4000 0",
      "trace");
  CHECK(events_text(trace) == "a0:1000 a1:24@1 f0 a0:10 a2:4000");
  CHECK(trace.slots == 3);
  CHECK(trace.streams == 2);
  CHECK(trace.steps == 2);
  CHECK(trace.allocations == 4);
  CHECK(trace.peak_requested == 24 + 10 + 4000);
  CHECK(trace.names.at(trace.events[0].name).empty());
}

TEST_CASE("sizes are scaled, none of them away") {
  const std::string text = "a 0 1000\na 1 1\nf 1\na 2 3\n";
  CHECK(events_text(parse_memory_trace(text, "trace", 0.5)) == "a0:500 a1:1 f1 a1:1");
  CHECK(events_text(parse_memory_trace(text, "trace", 2)) == "a0:2000 a1:2 f1 a1:6");
  CHECK(parse_memory_trace(text, "trace", 0.5).peak_requested == 501);
  CHECK(data_error_text("a 0 17592186044416\n", 2).find("use a smaller --scale") != std::string::npos);
}

TEST_CASE("the log of RMM's adaptor") {
  const MemoryTrace trace = parse_memory_trace(
      "Thread,Time,Action,Pointer,Size,Stream\n"
      "1979932,14:21:19.998533,allocate,0x30a000000,256,0x2\n"
      "1979932,14:21:19.998534,allocate failure,(nil),99999999,0x2\n"
      "1979933,14:21:19.998535,allocate,0x30a000100,512,0\n"
      "1979932,14:21:19.998536,allocate,(nil),0,0\n"
      "1979932,14:21:19.998536,allocate,(nil),0,0\n"
      "1979932,14:21:32.661875,free,0x30a000000,256,0x2\n"
      "1979932,14:21:32.661875,free,(nil),0,0\n"
      "1979933,14:21:32.661876,allocate,0x30a000000,1024,0x2\n"
      "1979933,14:21:32.661877,deallocate,0x30a000100,512,0\n",
      "trace");
  CHECK(events_text(trace) == "a0:256 a1:512@1 f0 a0:1024 f1");
  CHECK(trace.streams == 2);
  CHECK(trace.peak_requested == 1536);
}

const std::string kHistory = R"({
  "format": "meshgrad-memory-history", "version": 1, "extra": {"events": {"kind": "alloc"}, "version": 9},
  "events": [
    {"kind": "free_requested", "address": 5, "bytes": 1, "stream": 0, "tag": "data", "name": 0, "time_ns": 1},
    {"kind": "free_completed", "address": 5, "bytes": 1, "stream": 0, "tag": "data", "name": 0, "time_ns": 1},
    {"kind": "segment_map", "address": 4096, "bytes": 2097152, "stream": 0, "tag": "host", "name": 0, "time_ns": 2},
    {"kind": "alloc", "address": 4096, "bytes": 100, "stream": 2, "tag": "recompute", "name": 1, "time_ns": 3},
    {"kind": "alloc", "address": 8192, "bytes": 200, "stream": 5, "tag": "workspace", "name": 0, "more": [1, {"bytes": 7}]},
    {"kind": "free_requested", "address": 4096, "bytes": 100, "stream": 2, "tag": "recompute", "name": 1},
    {"kind": "alloc", "address": 12288, "bytes": 50, "stream": 2, "tag": "data", "name": 0},
    {"kind": "free_completed", "address": 4096, "bytes": 100, "stream": 2, "tag": "recompute", "name": 1},
    {"kind": "out_of_memory", "address": 0, "bytes": 1000000, "stream": 0, "tag": "data", "name": 1},
    {"kind": "alloc", "address": 4096, "bytes": 300, "stream": 2, "tag": "data", "name": 99}],
  "names": ["", "block 3/edges"], "dropped": 4})";

TEST_CASE("an allocator's history") {
  const MemoryTrace trace = parse_memory_trace(kHistory, "trace");
  CHECK(events_text(trace) == "a0:100 a1:200@1 f0 a0:50 a2:300");
  CHECK(trace.unmatched_frees == 1);
  CHECK(trace.events[0].tag == Tag::recompute);
  CHECK(trace.names.at(trace.events[0].name) == "block 3/edges");
  CHECK(trace.events[1].tag == Tag::workspace);
  CHECK(trace.names.at(trace.events[1].name).empty());
  CHECK(trace.names.at(trace.events[4].name).empty());  // there is no name 99
}

TEST_CASE("files, compressed or not") {
  const test::ScratchDirectory scratch;
  const std::filesystem::path file = scratch.path / "trace";
  for (const std::string& text : {std::string("a 0 512\nf 0\n"), kHistory}) {
    write(file, text);
    const std::string plain = events_text(read_memory_trace(file));
    CHECK(plain == events_text(parse_memory_trace(text, "trace")));
    write(file, gzipped(text));
    CHECK(events_text(read_memory_trace(file)) == plain);
  }
  const std::string whole = gzipped(std::string(test::read_text(test::source_file("README.md"))));
  write(file, whole.substr(0, whole.size() / 2));
  CHECK_THROWS_WITH_AS(read_memory_trace(file), doctest::Contains("needed a whole gzip file"), DataError);
  CHECK_THROWS_WITH_AS(read_memory_trace(scratch.path / "none"), doctest::Contains("No such file"),
                       DataError);
  CHECK_THROWS_WITH_AS(read_memory_trace(scratch.path), doctest::Contains("a folder"), DataError);

  const MemoryTrace recorded = read_memory_trace(recorded_trace("mgn_train.txt.gz"));
  CHECK(recorded.steps == 24);
  CHECK(recorded.streams == 1);
  CHECK(recorded.peak_requested == 1698627652);
}

TEST_CASE("what is wrong is named with its line and a fix") {
  check_refused("", "[trace] needed a trace, got an empty file");
  check_refused(" \n\n", "an empty file");
  check_refused("# nothing\ns 0\n", "needed at least one allocation, got none");
  check_refused("a 0 1\n\nx 1 2\n", "[trace:3] needed \"a ID BYTES [STREAM]\"");
  for (const char* line : {"a 0", "a 0 1 2 3", "a -1 5", "a x 5", "a 1 5.5", "a 1 5B", "f", "f 0 1", "s",
                           "add 0 1", "a 0 99999999999999999999", "a\x01", "\x01"})
    check_refused(std::string("a 100 1\n") + line + "\n", "[trace:2] needed \"a ID BYTES [STREAM]\"");
  check_refused("a 0 -5\n", "[trace:1] needed a size from 0 to 16 TiB, got -5 bytes");
  check_refused("a 0 17592186044417\n", "[trace:1] needed a size from 0 to 16 TiB");
  check_refused("a 0 17592186044416\na 1 1\n", "[trace:2] needed at most 16 TiB in use at once");
  check_refused("a 0 5\nf 1\n", "[trace:2] needed the free of a block that is in use, got 1, which is not");
  check_refused("a 0 5\nf 0\nf 0\n", "[trace:3] needed the free of a block");
  check_refused("a 0 5\na 0 6\n",
                "[trace:2] needed a block that is not in use, got a block in use since trace:1");
  check_refused("a 0 0\na 0 0\n", "[trace:2] needed a block that is not in use");
  check_refused("\x80\x04}", "scripts/pytorch-trace");
  check_refused(std::string("PK\x03\x04rest"), "scripts/pytorch-trace");
}

TEST_CASE("so is it in a log of RMM") {
  const std::string header = "Thread,Time,Action,Pointer,Size,Stream\n";
  check_refused(header, "at least one allocation");
  for (const char* line : {"1,2,allocate,0x10,256", "1,2,allocate,0x10,256,0,0", "1,2,allocate,zz,256,0",
                           "1,2,allocate,0x10,many,0", "1,2,realloc,0x10,256,0", "a 0 5"})
    check_refused(header + line + "\n", "[trace:2] needed Thread,Time,Action,Pointer,Size,Stream");
  check_refused(header + "1,2,allocate,0x10,-256,0\n", "[trace:2] needed a size");
  check_refused(header + "1,2,free,0x10,256,0\n",
                "[trace:2] needed the free of a block that is in use, got 0x10");
  check_refused(header + "1,2,allocate,0x10,8,0\n1,2,allocate,0x10,8,0\n",
                "got a block in use since trace:2");
}

TEST_CASE("and in a history") {
  for (size_t length = 1; length < kHistory.size(); ++length) {
    CAPTURE(length);
    CHECK_THROWS_AS(parse_memory_trace(kHistory.substr(0, length), "trace"), DataError);
  }
  const size_t line = kHistory.find("out_of_memory");
  check_refused(kHistory.substr(0, line), "[trace:12] needed well-formed JSON, got the end of the file");
  check_refused("{]", "[trace:1] needed well-formed JSON");
  check_refused("{}", "needed \"format\": \"meshgrad-memory-history\", got \"\"");
  const std::string start = R"({"format": "meshgrad-memory-history", "version": 1, "events": [)";
  check_refused(R"({"format": "meshgrad-memory-history", "version": 2, "events": []})",
                "needed \"version\": 1, got 2");
  check_refused(start + "]}", "at least one allocation");
  const auto check_event = [&](const std::string& event, const std::string& part) {
    check_refused(start + R"({"kind": "alloc", "address": 1, "bytes": 1},)" + event + "]}",
                  "[trace: event 2] needed " + part);
  };
  check_event(R"({"kind": "alloc", "address": 1, "bytes": 1})", "a block that is not in use");
  check_event(R"({"kind": "alloc", "address": 2, "bytes": -1})", "a size");
  check_event(R"({"kind": "alloc", "address": 2, "bytes": 18446744073709551615})", "a size");
  check_event(R"({"kind": "alloc", "address": 2, "bytes": 1.5})", "an integer as \"bytes\", got 1.5");
  check_event(R"({"kind": "alloc", "address": 2, "bytes": "1"})", "an integer \"bytes\"");
  check_event(R"({"kind": "alloc", "bytes": 1})", "an integer \"address\"");
  check_event(R"({"kind": "alloc", "address": 2, "bytes": 1, "tag": "fun"})",
              "one of the allocator's tags, got \"fun\"");
}

}  // namespace
}  // namespace meshgrad
