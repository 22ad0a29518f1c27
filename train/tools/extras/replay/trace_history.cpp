// SPDX-License-Identifier: Apache-2.0
// The JSON of an allocator's history, read event by event: a parsed document in memory would be ten times as
// large as the file.
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/extras/replay/trace_builder.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

namespace meshgrad {
namespace {

using Json = nlohmann::json;

std::optional<Tag> to_tag(std::string_view text) {
  for (int i = 0; i < kTagCount; ++i) {
    if (name_of(static_cast<Tag>(i)) == text) return static_cast<Tag>(i);
  }
  return std::nullopt;
}

/// Called by the parser for every token. Unknown members are skipped with their contents.
class HistoryReader : public nlohmann::json_sax<Json> {
 public:
  HistoryReader(std::string_view text, const std::string& name, double scale)
      : builder_(name, "event", scale), text_(text), name_(name) {}

  MemoryTrace finish() {
    if (format_ != kFormat)
      throw data_error(name_, fmt::format("\"format\": \"{}\"", kFormat), '"' + format_ + '"', kFix);
    if (version_ != 1) throw data_error(name_, "\"version\": 1", std::to_string(version_), kFix);
    if (!names_.empty()) builder_.set_names(std::move(names_));
    return builder_.finish();
  }

  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override {
    if (depth_ == kInEvent && in_events()) add_event();
    return close();
  }
  bool end_array() override { return close(); }
  bool key(std::string& text) override {
    if (depth_ == 1) section_ = text;
    member_ = text;
    return true;
  }
  bool string(std::string& text) override {
    if (depth_ == 1 && section_ == "format") format_ = text;
    if (depth_ == 2 && section_ == "names") names_.push_back(text);
    if (depth_ != kInEvent || !in_events()) return true;
    if (member_ == "kind") event_.kind = text;
    if (member_ == "tag") event_.tag = text;
    return true;
  }
  bool number_integer(int64_t number) override { return read_number(number); }
  bool number_unsigned(uint64_t number) override {
    return read_number(static_cast<int64_t>(std::min<uint64_t>(number, INT64_MAX)));
  }
  bool number_float(double number, const std::string&) override {
    if (depth_ == kInEvent && in_events() && is_known(member_)) {
      builder_.at(events_ + 1);
      builder_.fail(fmt::format("an integer as \"{}\"", member_), fmt::format("{}", number), kFix);
    }
    return true;
  }
  bool boolean(bool) override { return true; }
  bool null() override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool parse_error(size_t position, const std::string& token, const Json::exception&) override {
    const size_t end = std::min(position, text_.size());
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    constexpr size_t kLongest = 40;
    throw data_error(
        fmt::format("{}:{}", name_, line), "well-formed JSON",
        position > text_.size() || token.empty() ? "the end of the file" : token.substr(0, kLongest),
        "write the history again: this one is cut short or was changed");
  }

 private:
  static constexpr std::string_view kFormat = "meshgrad-memory-history";
  static constexpr std::string_view kFix = "write the history with this version of meshgrad";
  static constexpr int kInEvent = 3;  // the document, its events, one of them

  struct Event {
    std::string kind;
    std::string tag;
    std::optional<int64_t> address, bytes;
    int64_t stream = 0;
    int64_t name = 0;
  };

  bool open() {
    ++depth_;
    if (depth_ == kInEvent && in_events()) event_ = {};
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }
  bool in_events() const { return section_ == "events"; }
  static bool is_known(std::string_view member) {
    return member == "address" || member == "bytes" || member == "stream" || member == "name";
  }

  bool read_number(int64_t number) {
    if (depth_ == 1 && section_ == "version") version_ = number;
    if (depth_ != kInEvent || !in_events()) return true;
    if (member_ == "address") event_.address = number;
    if (member_ == "bytes") event_.bytes = number;
    if (member_ == "stream") event_.stream = number;
    if (member_ == "name") event_.name = number;
    return true;
  }

  void add_event() {
    builder_.at(++events_);
    // A block's life ends at free_requested; free_completed says when it can be reused.
    const bool allocates = event_.kind == name_of(MemoryEvent::Kind::alloc);
    if (!allocates && event_.kind != name_of(MemoryEvent::Kind::free_requested)) return;
    if (!event_.address) builder_.fail("an integer \"address\"", "none", kFix);
    const auto block = static_cast<uint64_t>(*event_.address);
    if (!allocates) {
      if (!builder_.free(block)) builder_.count_unmatched_free();
      return;
    }
    if (!event_.bytes) builder_.fail("an integer \"bytes\"", "none", kFix);
    const std::optional<Tag> tag = event_.tag.empty() ? Tag::activations : to_tag(event_.tag);
    if (!tag) builder_.fail("one of the allocator's tags", '"' + event_.tag + '"', kFix);
    builder_.allocate(block, *event_.bytes, static_cast<uint64_t>(event_.stream), *tag,
                      static_cast<uint32_t>(std::clamp<int64_t>(event_.name, 0, UINT32_MAX)));
  }

  TraceBuilder builder_;
  std::string_view text_;
  std::string name_;
  std::string format_;
  int64_t version_ = 0;
  std::vector<std::string> names_;
  int depth_ = 0;
  std::string section_;  // the member of the document that is being read
  std::string member_;
  Event event_;
  int64_t events_ = 0;
};

}  // namespace

MemoryTrace parse_history_trace(std::string_view text, const std::string& name, double scale) {
  HistoryReader reader(text, name, scale);
  Json::sax_parse(text.begin(), text.end(), &reader);
  return reader.finish();
}

}  // namespace meshgrad
