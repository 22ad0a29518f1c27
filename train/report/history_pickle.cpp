// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/io/atomic_file.h>
#include <meshgrad/train/report/history_pickle.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

namespace meshgrad {
namespace {

/// Python's pickle, protocol 2, with those opcodes only that the viewer's own reader knows. Lists grow by one
/// item at a time: the viewer puts a batch on JavaScript's stack, which has room for some 100,000.
class Pickle {
 public:
  explicit Pickle(AtomicFile& file) : file_(file) { write("\x80\x02"); }

  void begin_dict() { write("}"); }
  void begin_list() { write("]"); }
  /// Puts the value written last, under the key before it, into the dict.
  void set() { write("s"); }
  /// Puts the value written last at the end of the list.
  void append() { write("a"); }
  void end() { write("."); }

  void boolean(bool value) { write(value ? "\x88" : "\x89"); }
  void integer(int64_t value) {
    if (value >= 0 && value < 256) return write_opcode('K', static_cast<uint64_t>(value), 1);
    if (value >= INT32_MIN && value <= INT32_MAX) return write_opcode('J', static_cast<uint64_t>(value), 4);
    write("\x8a");
    write_opcode('\x08', static_cast<uint64_t>(value), 8);
  }
  void real(double value) {
    write("G");
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int shift = 56; shift >= 0; shift -= 8) put(static_cast<char>(bits >> shift));
  }
  /// Text is written once and then referred to.
  void text(std::string_view value) {
    const auto [known, is_new] = texts_.emplace(value, memos_);
    if (!is_new) return recall(known->second);
    write_opcode('X', value.size(), 4);
    write(value);
    memorise();
  }
  /// Gives the value written last a number, for `recall`.
  uint32_t memorise() {
    write_opcode('r', memos_, 4);
    return memos_++;
  }
  void recall(uint32_t number) { number < 256 ? write_opcode('h', number, 1) : write_opcode('j', number, 4); }

  void set_integer(std::string_view key, int64_t value) {
    text(key);
    integer(value);
    set();
  }
  void set_text(std::string_view key, std::string_view value) {
    text(key);
    text(value);
    set();
  }
  void set_boolean(std::string_view key, bool value) {
    text(key);
    boolean(value);
    set();
  }

 private:
  void put(char byte) { file_.write(std::string_view(&byte, 1)); }
  void write(std::string_view bytes) { file_.write(bytes); }
  /// A byte, and the lowest `width` bytes of the value, lowest first.
  void write_opcode(char opcode, uint64_t value, int width) {
    char bytes[9] = {opcode};
    for (int i = 0; i < width; ++i) bytes[1 + i] = static_cast<char>(value >> (8 * i));
    write({bytes, static_cast<size_t>(1 + width)});
  }

  AtomicFile& file_;
  std::unordered_map<std::string, uint32_t> texts_;
  uint32_t memos_ = 0;
};

/// With the replacement character for what is no UTF-8, which Python would refuse.
std::string as_utf8(const std::string& text) {
  return nlohmann::json::parse(
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// Writes [{name, filename, line}], each once for each name and tag.
class Frames {
 public:
  explicit Frames(Pickle& pickle) : pickle_(pickle) {}

  void set(const std::string& name, Tag tag) {
    pickle_.text("frames");
    const auto known = numbers_.find({name, tag});
    if (known != numbers_.end()) {
      pickle_.recall(known->second);
    } else {
      pickle_.begin_list();
      pickle_.begin_dict();
      // The viewer leaves out frames of functions that look like an interpreter's, which a tag never does.
      pickle_.set_text("name", name_of(tag));
      pickle_.set_text("filename", name.empty() ? "unnamed" : as_utf8(name));
      pickle_.set_integer("line", 0);
      pickle_.append();
      numbers_.emplace(std::pair(name, tag), pickle_.memorise());
    }
    pickle_.set();
  }
  void set_none() {
    pickle_.text("frames");
    pickle_.begin_list();
    pickle_.set();
  }

 private:
  struct Hash {
    size_t operator()(const std::pair<std::string, Tag>& key) const {
      return std::hash<std::string>()(key.first) * kTagCount + static_cast<size_t>(key.second);
    }
  };
  Pickle& pickle_;
  std::unordered_map<std::pair<std::string, Tag>, uint32_t, Hash> numbers_;
};

std::string_view action_of(MemoryEvent::Kind kind) {
  return kind == MemoryEvent::Kind::out_of_memory ? "oom" : name_of(kind);
}

void write_block(Pickle& pickle, Frames& frames, const MemorySnapshot::Block& block) {
  const bool used = block.state == MemorySnapshot::State::used;
  pickle.begin_dict();
  pickle.set_integer("address", block.address);
  pickle.set_integer("size", block.bytes);
  pickle.set_integer("requested_size", block.requested);
  // A free block is never pending here: in the history, too, a free completes at once.
  pickle.set_text("state", used ? "active_allocated" : "inactive");
  used ? frames.set(block.name, block.tag) : frames.set_none();
  pickle.append();
}

void write_segment(Pickle& pickle, Frames& frames, const MemorySnapshot::Segment& segment,
                   const AllocatorOptions& options) {
  int64_t allocated = 0, requested = 0;
  bool small = true;
  for (const MemorySnapshot::Block& block : segment.blocks) {
    if (block.state == MemorySnapshot::State::used) allocated += block.bytes;
    requested += block.requested;
    small = small && block.small;
  }
  pickle.begin_dict();
  pickle.set_integer("device", 0);
  pickle.set_integer("address", segment.address);
  pickle.set_integer("total_size", segment.bytes);
  pickle.set_integer("allocated_size", allocated);
  pickle.set_integer("active_size", allocated);
  pickle.set_integer("requested_size", requested);
  pickle.set_integer("stream", segment.stream);
  pickle.set_text("segment_type", small ? "small" : "large");
  pickle.set_boolean("is_expandable", options.expandable_segments);
  frames.set_none();
  pickle.text("segment_pool_id");
  pickle.begin_list();
  for (int i = 0; i < 2; ++i) {
    pickle.integer(0);
    pickle.append();
  }
  pickle.set();
  pickle.text("blocks");
  pickle.begin_list();
  for (const MemorySnapshot::Block& block : segment.blocks) write_block(pickle, frames, block);
  pickle.set();
  pickle.append();
}

void write_event(Pickle& pickle, Frames& frames, const MemoryEvent& event,
                 const std::vector<std::string>& names) {
  const bool short_of_memory = event.kind == MemoryEvent::Kind::out_of_memory;
  pickle.begin_dict();
  pickle.set_text("action", action_of(event.kind));
  pickle.set_integer(short_of_memory ? "device_free" : "addr", event.address);
  pickle.set_integer("size", event.bytes);
  pickle.set_integer("stream", event.stream);
  pickle.set_integer("time_us", event.nanoseconds / 1000);
  const bool of_segment =
      event.kind == MemoryEvent::Kind::segment_map || event.kind == MemoryEvent::Kind::segment_unmap;
  of_segment || event.name >= names.size() ? frames.set_none() : frames.set(names[event.name], event.tag);
  pickle.append();
}

/// One list of events for each device, with a last one that says where the snapshot was taken.
void write_traces(Pickle& pickle, Frames& frames, const MemorySnapshot& snapshot,
                  const MemoryHistory& history) {
  pickle.begin_list();
  pickle.begin_list();
  for (const MemoryEvent& event : history.events) write_event(pickle, frames, event, history.names);
  pickle.begin_dict();
  pickle.set_text("action", "snapshot");
  pickle.set_integer("addr", 0);
  pickle.set_integer("size", snapshot.stats.allocated.current);
  pickle.set_integer("stream", 0);
  pickle.set_integer("time_us", history.events.empty() ? 0 : history.events.back().nanoseconds / 1000);
  frames.set_none();
  pickle.append();
  pickle.append();
}

void write_settings(Pickle& pickle, const AllocatorOptions& options) {
  pickle.begin_dict();
  pickle.set_text("PYTORCH_CUDA_ALLOC_CONF", "");
  pickle.set_integer("max_split_size", -1);
  pickle.text("garbage_collection_threshold");
  pickle.real(options.garbage_collection_threshold);
  pickle.set();
  pickle.set_boolean("expandable_segments", options.expandable_segments);
  pickle.set_integer("memory_limit", options.memory_limit);
}

}  // namespace

void write_history_pickle(const std::filesystem::path& path, const MemorySnapshot& snapshot,
                          const MemoryHistory& history, const AllocatorOptions& options) {
  AtomicFile file(path);
  Pickle pickle(file);
  Frames frames(pickle);
  pickle.begin_dict();
  pickle.text("segments");
  pickle.begin_list();
  for (const MemorySnapshot::Segment& segment : snapshot.segments)
    write_segment(pickle, frames, segment, options);
  pickle.set();
  pickle.text("device_traces");
  write_traces(pickle, frames, snapshot, history);
  pickle.set();
  pickle.text("allocator_settings");
  write_settings(pickle, options);
  pickle.set();
  pickle.end();
  file.commit();
}

}  // namespace meshgrad
