// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/crc32c.h>
#include <meshgrad/train/data/tfrecord.h>

namespace meshgrad {
namespace {

constexpr size_t kHeaderBytes = 12;
constexpr size_t kFooterBytes = 4;
constexpr const char* kDownloadAgain =
    "copy or download the file again; if it was being written, wait for its end";

template <class T>
T load(std::span<const std::byte> bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

void check_crc(std::span<const std::byte> data, uint32_t stored, const char* of, std::string_view where) {
  const uint32_t computed = masked_crc32c(data);
  if (computed == stored) return;
  throw data_error(where, fmt::format("the CRC 0x{:08x} stored for its {}", stored, of),
                   fmt::format("0x{:08x}: the file is damaged", computed), kDownloadAgain);
}

DataError cut_short(std::string_view where, uint64_t needed, size_t left) {
  return data_error(where, fmt::format("{} bytes", needed), fmt::format("{}: the file is cut short", left),
                    kDownloadAgain);
}

}  // namespace

std::span<const std::byte> read_record(std::span<const std::byte> file, size_t& offset,
                                       std::string_view where) {
  const std::span<const std::byte> rest = file.subspan(offset);
  if (rest.size() < kHeaderBytes) throw cut_short(where, kHeaderBytes, rest.size());
  check_crc(rest.first(8), load<uint32_t>(rest, 8), "length", where);
  const auto length = load<uint64_t>(rest, 0);
  const size_t available = rest.size() - kHeaderBytes;
  if (available < kFooterBytes || length > available - kFooterBytes) {
    throw cut_short(where, length, available < kFooterBytes ? 0 : available - kFooterBytes);
  }
  const auto data = rest.subspan(kHeaderBytes, length);
  check_crc(data, load<uint32_t>(rest, kHeaderBytes + length), "data", where);
  offset += kHeaderBytes + length + kFooterBytes;
  return data;
}

int64_t count_records(std::span<const std::byte> file) {
  int64_t count = 0;
  while (!file.empty()) {
    ++count;
    if (file.size() < kHeaderBytes) break;
    const auto length = load<uint64_t>(file, 0);
    const size_t available = file.size() - kHeaderBytes;
    if (available < kFooterBytes || length > available - kFooterBytes) break;
    file = file.subspan(kHeaderBytes + length + kFooterBytes);
  }
  return count;
}

void write_record(std::vector<std::byte>& to, std::span<const std::byte> data) {
  const auto append = [&to](const auto& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    to.insert(to.end(), bytes.begin(), bytes.end());
  };
  const uint64_t length = data.size();
  append(length);
  append(masked_crc32c(std::as_bytes(std::span(&length, 1))));
  to.insert(to.end(), data.begin(), data.end());
  append(masked_crc32c(data));
}

}  // namespace meshgrad
