// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/tools/program/markup.h>
#include <meshgrad/train/tools/program/npz_file.h>

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <type_traits>

namespace meshgrad {
namespace {

static_assert(std::endian::native == std::endian::little);

/// Numbers of 2 and 4 bytes, one after another.
struct ZipBytes {
  std::string text;
  ZipBytes& two(uint64_t value) { return number(value, 2); }
  ZipBytes& four(uint64_t value) { return number(value, 4); }
  ZipBytes& number(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xffU);
    return *this;
  }
};

/// An extra field of a zip entry, of a number that no program has registered: names who wrote the file.
std::string extra_field() {
  ZipBytes extra;
  extra.two(0x474d).two(kMarkWords.size());
  return extra.text + std::string(kMarkWords);
}

/// What the header of an entry and its line of the directory share.
std::string entry_fields(uint32_t crc, uint64_t size, size_t name, size_t extra) {
  constexpr uint64_t kUtf8 = 0x800, kStored = 0, kDate = 0x21;  // 1 January 1980
  ZipBytes fields;
  fields.two(20).two(kUtf8).two(kStored).two(0).two(kDate).four(crc).four(size).four(size);
  return fields.two(name).two(extra).text;
}

uint32_t crc_of(std::string_view header, std::span<const std::byte> values) {
  uLong crc = crc32(0, nullptr, 0);
  crc = crc32(crc, reinterpret_cast<const Bytef*>(header.data()), static_cast<uInt>(header.size()));
  return static_cast<uint32_t>(
      crc32(crc, reinterpret_cast<const Bytef*>(values.data()), static_cast<uInt>(values.size())));
}

}  // namespace

void NpzFile::add(const std::string& name, std::string_view type, const std::vector<int64_t>& shape,
                  std::span<const std::byte> values) {
  check_internal(std::ranges::find(members_, name, &Member::name) == members_.end(), "an array named twice");
  std::string sizes;
  for (const int64_t size : shape) sizes += fmt::format("{}, ", size);
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type, sizes);
  constexpr size_t kStart = 10, kAlignment = 64;  // of the values
  text.append(kAlignment - 1 - (kStart + text.size()) % kAlignment, ' ');
  text += '\n';
  ZipBytes header{std::string("\x93NUMPY\x01\x00", 8)};
  header.two(text.size());
  members_.push_back({name, header.text + text, {values.begin(), values.end()}});
}

template <class T>
void NpzFile::add(const std::string& name, const std::vector<int64_t>& shape, std::span<const T> values) {
  const char* type = std::is_same_v<T, float>    ? "<f4"
                     : std::is_same_v<T, double> ? "<f8"
                     : sizeof(T) == 4            ? "<i4"
                                                 : "<i8";
  add(name, type, shape, std::as_bytes(values));
}
template void NpzFile::add(const std::string&, const std::vector<int64_t>&, std::span<const float>);
template void NpzFile::add(const std::string&, const std::vector<int64_t>&, std::span<const double>);
template void NpzFile::add(const std::string&, const std::vector<int64_t>&, std::span<const int32_t>);
template void NpzFile::add(const std::string&, const std::vector<int64_t>&, std::span<const int64_t>);

void NpzFile::write(const std::filesystem::path& path) const {
  uint64_t bytes = 0;
  for (const Member& member : members_) bytes += member.header.size() + member.values.size();
  if (bytes > kMostBytes) {
    throw data_error(path.string(), "arrays of less than 4 GiB in an NPZ file",
                     fmt::format("{} bytes", bytes), "predict fewer steps, or write VTU only (--format vtu)");
  }
  AtomicFile file(path);
  std::string directory;
  for (const Member& member : members_) {
    const std::string name = member.name + ".npy", extra = extra_field();
    const uint32_t crc = crc_of(member.header, member.values);
    const std::string fields =
        entry_fields(crc, member.header.size() + member.values.size(), name.size(), extra.size());
    ZipBytes line;
    line.four(0x02014b50).two(20);
    line.text += fields;
    line.two(0).two(0).two(0).four(0).four(file.size());
    directory += line.text + name + extra;
    file.write(ZipBytes().four(0x04034b50).text + fields + name + extra + member.header);
    file.write(member.values);
  }
  ZipBytes end;
  end.four(0x06054b50).two(0).two(0).two(members_.size()).two(members_.size());
  end.four(directory.size()).four(file.size()).two(0);
  file.write(directory + end.text);
  file.commit();
}

}  // namespace meshgrad
