// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/tfrecord.h>
#include <meshgrad/train/learn/run/metrics_log.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>

namespace meshgrad {
namespace {

using nlohmann::json;

DataError failure(const std::filesystem::path& path, std::string_view needed, int error) {
  return data_error(path.string(), needed, std::generic_category().message(error),
                    error == ENOSPC || error == EDQUOT
                        ? "free space on that disk, then resume the run"
                        : "give a run directory that exists and can be written");
}

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
  const std::string name = fmt::format("events.out.tfevents.{:010}.{}.{}", static_cast<std::int64_t>(seconds),
                                       host.data(), ::getpid());
  std::filesystem::path path = directory / name;
  for (int number = 1; path_exists(path); ++number) path = directory / fmt::format("{}.{}", name, number);
  return path;
}

std::string value_text(const MetricValue& value) {
  if (const double* number = std::get_if<double>(&value)) {
    return std::isfinite(*number) ? fmt::format("{}", *number) : "null";
  }
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *integer);
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  return json(std::get<std::string>(value)).dump(-1, ' ', false, json::error_handler_t::replace);
}

/// The row of a line; nothing for anything but an object with a numeric "step".
std::optional<json> parsed_row(std::string_view line) {
  json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object() || !value.contains("step") || !value["step"].is_number()) return std::nullopt;
  return value;
}

/// Takes the first line off `text`, without its newline; nothing at an incomplete line or the end.
std::optional<std::string_view> take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  if (end == text.npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

struct KeptRows {
  std::string text;
  std::int64_t damaged = 0, last_step = 0;
};

/// The rows before the first whose step is beyond `last_step`, or that has the key `repeated` there. Damaged
/// lines after the last are not counted.
KeptRows rows_to_keep(std::string_view content, std::int64_t last_step, const std::string& repeated) {
  const auto last = static_cast<double>(last_step);
  KeptRows kept;
  std::int64_t damaged = 0;
  while (const auto line = take_line(content)) {
    const auto row = parsed_row(*line);
    const double step = row ? (*row)["step"].get<double>() : 0.0;
    if (row && (step > last || (step == last && !repeated.empty() && row->contains(repeated)))) break;
    if (row) {
      kept.text.append(*line).append("\n");
      kept.damaged = damaged;
      kept.last_step = static_cast<std::int64_t>(step);
    } else {
      ++damaged;
    }
  }
  return kept;
}

/// The step of an event; nothing for one without, such as the first of a file.
std::optional<std::int64_t> step_of_event(std::string_view event) {
  const auto take_varint = [&]() -> std::optional<std::uint64_t> {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !event.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(event.front());
      event.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    return std::nullopt;
  };
  while (!event.empty()) {
    const auto key = take_varint();
    if (!key) return std::nullopt;
    const std::uint64_t type = *key & 7;
    std::optional<std::uint64_t> size = type == 1 ? 8 : type == 5 ? 4 : take_varint();
    if (!size) return std::nullopt;
    if (*key == 2 << 3) return static_cast<std::int64_t>(*size);
    if (type == 0) size = 0;
    if (*size > event.size()) return std::nullopt;
    event.remove_prefix(*size);
  }
  return std::nullopt;
}

/// Where the first record begins that is beyond the step, repeated there, or no whole record.
std::size_t events_to_keep(std::span<const std::byte> file, const std::string& name, std::int64_t last_step,
                           std::string_view repeated) {
  std::size_t end = 0;
  while (end < file.size()) {
    std::size_t next = end;
    try {
      const std::span<const std::byte> record = read_record(file, next, name);
      const std::string_view event(reinterpret_cast<const char*>(record.data()), record.size());
      const std::int64_t step = step_of_event(event).value_or(0);
      if (step > last_step) break;
      if (step == last_step && !repeated.empty() && event.find(repeated) != event.npos) break;
    } catch (const DataError&) {
      break;
    }
    end = next;
  }
  return end;
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, std::uint64_t keep_bytes) : path_(std::move(path)) {
  // Without O_NONBLOCK a FIFO would wait for its reader.
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor_ < 0) throw failure(path_, "to open the file for appending", errno);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(std::exchange(descriptor_, -1));
    throw data_error(path_.string(), "a regular file to append to", "a device, FIFO or socket",
                     "remove it, or choose another run.dir");
  }
  if (::ftruncate(descriptor_, static_cast<off_t>(keep_bytes)) != 0) {
    const int error = errno;
    ::close(descriptor_);
    throw failure(path_, "to cut the file to its kept part", error);
  }
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void AppendFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ::ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw failure(path_, "to append to the file", written < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AppendFile::sync() {
  if (::fsync(descriptor_) != 0 && errno != EINVAL)
    throw failure(path_, "to flush the file to the disk", errno);
}

std::string metrics_line(const MetricsRow& row) {
  std::string line = "{";
  for (const auto& [key, value] : row) {
    if (line.size() > 1) line += ", ";
    line += json(key).dump(-1, ' ', false, json::error_handler_t::replace) + ": " + value_text(value);
  }
  return line + "}";
}

MetricsLog MetricsLog::create(const std::filesystem::path& path) { return MetricsLog(AppendFile(path, 0)); }

MetricsLog MetricsLog::resume(const std::filesystem::path& path, std::int64_t last_step,
                              const std::string& repeated) {
  if (!path_exists(path)) return create(path);
  const KeptRows kept = rows_to_keep(read_file(path), last_step, repeated);
  if (kept.damaged > 0) write_file_atomically(path, kept.text);
  MetricsLog log(AppendFile(path, kept.text.size()));
  log.damaged_lines_ = kept.damaged;
  log.last_kept_step_ = kept.last_step;
  return log;
}

void MetricsLog::write(const MetricsRow& row) {
  const bool has_step = std::ranges::any_of(row, [](const auto& item) {
    return item.first == "step" && std::holds_alternative<std::int64_t>(item.second);
  });
  if (!has_step)
    throw invalid_argument("MetricsLog::write", "a row with an integer \"step\"", metrics_line(row));
  const std::string line = metrics_line(row) + "\n";
  file_.append(std::as_bytes(std::span(line)));
}

std::vector<std::map<std::string, double>> read_metrics(const std::filesystem::path& path,
                                                        std::int64_t* damaged) {
  const std::string content = read_file(path);
  std::string_view rest = content;
  std::vector<std::map<std::string, double>> rows;
  std::int64_t bad = 0;
  while (const auto line = take_line(rest)) {
    const auto object = parsed_row(*line);
    if (!object) {
      ++bad;
      continue;
    }
    std::map<std::string, double>& row = rows.emplace_back();
    for (const auto& [key, value] : object->items()) {
      if (value.is_number()) row[key] = value.get<double>();
      if (value.is_boolean()) row[key] = value.get<bool>() ? 1.0 : 0.0;
      if (value.is_null()) row[key] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  if (damaged != nullptr) *damaged = bad;
  return rows;
}

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

void cut_events(const std::filesystem::path& directory, std::int64_t last_step, std::string_view repeated) {
  if (!path_exists(directory)) return;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::filesystem::path& path = entry.path();
    if (!path.filename().string().starts_with("events.out.tfevents.") || !entry.is_regular_file()) continue;
    const std::string content = read_file(path);
    const std::size_t keep =
        events_to_keep(std::as_bytes(std::span(content)), path.string(), last_step, repeated);
    if (keep < content.size()) const AppendFile cut(path, keep);
  }
}

}  // namespace meshgrad
