// SPDX-License-Identifier: Apache-2.0
// scripts/memory-pickle on histories that the library wrote.
#include <doctest/doctest.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source_host.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/run/history_json.h>
#include <meshgrad/train/tools/extras/replay/trace.h>

#include "paths.h"
#include "train/process.h"

namespace meshgrad {
namespace {

test::Outcome run_memory_script(const std::string& name, std::vector<std::string> arguments) {
  return test::Process(std::move(arguments), test::source_file("scripts/") + name).wait();
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Blocks of many sizes come and go, memory runs out, and in the end eleven blocks stay.
struct RecordedHistory {
  explicit RecordedHistory(int64_t history)
      : allocator(
            CachingAllocator::create(std::make_shared<HostMemorySource>(256 * kMiB), {.history = history})) {
    for (int64_t i = 0; i < 3000; ++i) {
      const auto draw = static_cast<uint64_t>(i);
      const auto bytes = static_cast<int64_t>(uniform_below(5, 0, draw, 3 * kMiB)) + 1;
      if (held.size() == 40) held.erase(held.begin() + static_cast<ptrdiff_t>(draw % held.size()));
      const MemoryScope scope(*allocator, "block." + std::to_string(i % 7));
      take(bytes, static_cast<Tag>(uniform_below(5, 1, draw, kTagCount)), i % 2 == 0 ? "nodes" : "edges");
    }
    CHECK_THROWS_AS(take(1000 * kMiB, Tag::workspace, "too much"), OutOfMemory);
    held.resize(10);
    allocator->release_cached();
    take(77, Tag::activations, "last \xff");
    write_history_json(history_path(), allocator->snapshot(), allocator->history(), allocator->options());
  }
  void take(int64_t bytes, Tag tag, std::string_view name) {
    held.push_back(allocator->allocate(bytes, 64, stream, tag, name));
  }
  std::string history_path() const { return (scratch.path / "history.json").string(); }

  const test::ScratchDirectory scratch;
  Stream stream{Device{}};
  std::shared_ptr<CachingAllocator> allocator;
  std::vector<StoragePtr> held;
};

const char* const kCheckPickle = R"py(
import pickle, pickletools, sys
path, events = sys.argv[1], int(sys.argv[2])
raw = open(path, 'rb').read()
known = set('PROTO EMPTY_DICT EMPTY_LIST BINUNICODE BINPUT LONG_BINPUT BINGET LONG_BINGET BININT BININT1 BININT2 '
            'LONG1 NEWTRUE NEWFALSE BINFLOAT NONE MARK SETITEM SETITEMS APPEND APPENDS STOP'.split())
used = {opcode.name for opcode, _, _ in pickletools.genops(raw)}
assert used <= known, used - known
assert raw[1] == 2 and all(a is None or not isinstance(a, int) or abs(a) < 2 ** 53
                           for _, a, _ in pickletools.genops(raw))
s = pickle.loads(raw)
assert set(s) == {'segments', 'device_traces', 'allocator_settings'}
assert s['allocator_settings']['expandable_segments'] is True
def check_frames(frames):
    for f in frames:
        assert set(f) == {'name', 'filename', 'line'} and f['line'] == 0
live = {}
for g in s['segments']:
    address = g['address']
    for b in g['blocks']:
        assert b['address'] == address and b['size'] > 0, 'blocks tile a segment, in order'
        address += b['size']
        assert b['state'] in ('active_allocated', 'inactive')
        assert (b['requested_size'] > 0) == (b['state'] == 'active_allocated') == (len(b['frames']) == 1)
        check_frames(b['frames'])
        if b['frames']: live[b['address']] = b['requested_size'], b['frames'][0]
    assert address == g['address'] + g['total_size']
    used = [b for b in g['blocks'] if b['state'] == 'active_allocated']
    assert g['allocated_size'] == g['active_size'] == sum(b['size'] for b in used)
    assert g['requested_size'] == sum(b['requested_size'] for b in used)
    assert g['device'] == 0 and g['is_expandable'] and g['segment_type'] in ('small', 'large') and g['stream'] == 0
trace, = s['device_traces']
assert len(trace) == events + 1 and trace[-1]['action'] == 'snapshot'
assert trace[-1]['time_us'] == trace[-2]['time_us']
known = {'alloc', 'free_requested', 'free_completed', 'segment_map', 'segment_unmap', 'oom', 'snapshot'}
assert {t['action'] for t in trace} <= known
assert all(('device_free' in t) == (t['action'] == 'oom') != ('addr' in t) for t in trace)
assert [t['time_us'] for t in trace] == sorted(t['time_us'] for t in trace)
again, mapped = {}, 0
for t in trace:
    check_frames(t['frames'])
    if t['action'] == 'alloc': again[t['addr']] = t['size'], t['frames'][0]
    if t['action'] == 'free_completed': del again[t['addr']]
    if t['action'] == 'segment_map': mapped += t['size']
    if t['action'] == 'segment_unmap': mapped -= t['size']
assert again == live, 'the trace ends in what the segments show'
assert mapped == sum(g['total_size'] for g in s['segments'])
print(sum(size for size, _ in live.values()), len(live), sorted({f['name'] for _, f in live.values()})[0],
      ascii(trace[-2]['frames'][0]['filename']))
)py";

TEST_CASE("Python reads the pickle of memory events") {
  const RecordedHistory recorded(1'000'000);
  const MemoryHistory history = recorded.allocator->history();
  CHECK(history.dropped == 0);
  const test::Outcome pickle = run_memory_script("memory-pickle", {recorded.history_path()});
  REQUIRE_MESSAGE(pickle.code == 0, pickle.err);
  const std::string path = (recorded.scratch.path / "snapshot.pickle").string();
  write_bytes(path, pickle.out);
  const test::Outcome python =
      test::Process({"python3", "-c", kCheckPickle, path, std::to_string(history.events.size())},
                    "/usr/bin/env")
          .wait();
  CHECK_MESSAGE(python.code == 0, python.err);
  CHECK(python.out ==
        std::to_string(recorded.allocator->stats().requested.current) + " 11 activations 'last \\ufffd'\n");

  // As a snapshot of PyTorch it is the trace that the history is.
  const test::Outcome trace = run_memory_script("pytorch-trace", {path});
  CHECK_MESSAGE(trace.code == 0, trace.err);
  CHECK(parse_memory_trace(trace.out, "trace").peak_requested ==
        read_memory_trace(recorded.history_path()).peak_requested);
}

TEST_CASE("a truncated history's segments show all blocks") {
  const RecordedHistory recorded(8);
  const test::Outcome pickle = run_memory_script("memory-pickle", {recorded.history_path()});
  REQUIRE_MESSAGE(pickle.code == 0, pickle.err);
  const std::string path = (recorded.scratch.path / "snapshot.pickle").string();
  write_bytes(path, pickle.out);
  const char* const count = R"py(
import pickle, sys
s = pickle.load(open(sys.argv[1], 'rb'))
print(len(s['device_traces'][0]), sum(b['requested_size'] for g in s['segments'] for b in g['blocks']))
)py";
  const test::Outcome python = test::Process({"python3", "-c", count, path}, "/usr/bin/env").wait();
  CHECK_MESSAGE(python.code == 0, python.err);
  CHECK(python.out == "9 " + std::to_string(recorded.allocator->stats().requested.current) + "\n");
}

TEST_CASE("what is no history is refused with a fix") {
  const test::ScratchDirectory scratch;
  const std::string path = (scratch.path / "history.json").string();
  const auto check_fails = [&](const std::string& text, const std::string& part) {
    write_bytes(path, text);
    const test::Outcome outcome = run_memory_script("memory-pickle", {path});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 1);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.find("memory-pickle: error: [" + path + "] needed ") == 0);
    CHECK(outcome.err.find(part) != std::string::npos);
    CHECK(outcome.err.find("; fix: ") != std::string::npos);
  };
  check_fails("{\"format\"", "an allocator's history in JSON");
  check_fails("\xff", "an allocator's history in JSON");
  check_fails("[]", "got \"list\"");
  check_fails("{\"format\": 1}", "got \"1\"");
  check_fails(R"({"format": "meshgrad-memory-history", "version": 1, "names": [], "events": []})",
              "KeyError");
  std::filesystem::remove(path);
  CHECK(run_memory_script("memory-pickle", {path}).err.find("No such file") != std::string::npos);
}

}  // namespace
}  // namespace meshgrad
