// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/tfrecord.h>
#include <meshgrad/train/learn/run/tensorboard.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string_view>
#include <system_error>
#include <vector>

namespace meshgrad {
namespace {

/// Appends protocol buffer fields. A field's key is its number times 8 plus the wire type.
class Message {
 public:
  void varint(int field, std::uint64_t value) {
    raw_varint(static_cast<std::uint64_t>(field) << 3);
    raw_varint(value);
  }
  void fixed64(int field, double value) {
    raw_varint(static_cast<std::uint64_t>(field) << 3 | 1);
    raw(&value, sizeof value);
  }
  void bytes(int field, std::string_view value) {
    raw_varint(static_cast<std::uint64_t>(field) << 3 | 2);
    raw_varint(value.size());
    text_ += value;
  }
  void fixed32(int field, float value) {
    raw_varint(static_cast<std::uint64_t>(field) << 3 | 5);
    raw(&value, sizeof value);
  }
  const std::string& text() const { return text_; }

 private:
  void raw(const void* data, std::size_t size) { text_.append(static_cast<const char*>(data), size); }
  void raw_varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) text_ += static_cast<char>(value | 128);
    text_ += static_cast<char>(value);
  }
  std::string text_;
};

void append_record(AppendFile& file, const Message& message) {
  std::vector<std::byte> record;
  write_record(record, std::as_bytes(std::span(message.text())));
  file.append(record);
}

std::filesystem::path event_path(const std::filesystem::path& directory, double seconds) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    throw data_error(directory.string(), "to make the directory", error.message(),
                     "give a run directory that can be written");
  }
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"localhost"};
  return directory / fmt::format("events.out.tfevents.{:010}.{}.{}", static_cast<std::int64_t>(seconds),
                                 host.data(), ::getpid());
}

}  // namespace

double TensorboardWriter::wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TensorboardWriter::TensorboardWriter(const std::filesystem::path& directory, Clock clock)
    : clock_(std::move(clock)), file_(event_path(directory, clock_()), 0) {
  Message event;
  event.fixed64(1, clock_());
  event.bytes(3, "brain.Event:2");
  append_record(file_, event);
}

void TensorboardWriter::scalars(std::int64_t step, std::span<const std::pair<std::string, double>> values) {
  Message summary;
  for (const auto& [tag, number] : values) {
    Message value;
    value.bytes(1, tag);
    value.fixed32(2, static_cast<float>(number));
    summary.bytes(1, value.text());
  }
  Message event;
  event.fixed64(1, clock_());
  event.varint(2, static_cast<std::uint64_t>(step));
  event.bytes(5, summary.text());
  append_record(file_, event);
}

}  // namespace meshgrad
