// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/mapped_file.h>
#include <meshgrad/train/data/safetensors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

namespace meshgrad {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little endian");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kFetchAgain = "write or download the file again";

struct DtypeRow {
  std::string_view name;
  std::size_t size;
};
constexpr std::array<DtypeRow, 10> kDtypes = {{{"F64", 8},
                                               {"F32", 4},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"I64", 8},
                                               {"I32", 4},
                                               {"I16", 2},
                                               {"I8", 1},
                                               {"U8", 1},
                                               {"BOOL", 1}}};

const DtypeRow& row(SafetensorsDtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)]; }

/// product(shape) * size, or nothing when it does not fit 63 bits.
std::optional<std::uint64_t> bytes_of(std::span<const std::int64_t> shape, std::size_t size) {
  std::int64_t total = static_cast<std::int64_t>(size);
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(total, extent, &total)) return std::nullopt;
  }
  return static_cast<std::uint64_t>(total);
}

/// What the header says of one tensor, before it is checked.
struct HeaderEntry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<std::int64_t>> shape;
  std::optional<std::vector<std::int64_t>> offsets;
};

/// Receives the header's JSON events. A document object would be simpler, but silently keeps the last of two
/// equal keys. Depth 1 is the table of tensors, 2 a tensor or the metadata, 3 a list of integers.
class SafetensorsHeaderReader {
 public:
  explicit SafetensorsHeaderReader(std::string_view file) : file_(file) {}

  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_float(double, const std::string& text) { return unexpected("the number " + text); }
  bool binary(const nlohmann::json::binary_t&) { return unexpected("binary"); }
  bool number_integer(std::int64_t value) { return unexpected(fmt::format("the number {}", value)); }

  bool number_unsigned(std::uint64_t value) {
    if (depth_ != 3 || !std::in_range<std::int64_t>(value)) {
      return unexpected(fmt::format("the number {}", value));
    }
    list_->push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool string(std::string& value) {
    if (depth_ == 2 && in_metadata_) {
      if (!metadata.emplace(field_, std::move(value)).second) fail_duplicate();
      return true;
    }
    if (depth_ != 2 || field_ != "dtype") return unexpected("a string");
    if (entries.back().dtype) fail_duplicate();
    entries.back().dtype = std::move(value);
    return true;
  }

  bool start_object(std::size_t) {
    if (depth_ == 1) {
      in_metadata_ = name_ == kMetadataKey;
      if (in_metadata_ ? std::exchange(seen_metadata_, true) : !names_.insert(name_).second) {
        throw data_error(where(), "each name once", "the name twice", kFetchAgain);
      }
      if (!in_metadata_) entries.push_back({name_, {}, {}, {}});
      field_.clear();
    } else if (depth_ != 0) {
      return unexpected("an object");
    }
    ++depth_;
    return true;
  }

  bool start_array(std::size_t) {
    if (depth_ != 2 || in_metadata_ || (field_ != "shape" && field_ != "data_offsets")) {
      return unexpected("a list");
    }
    auto& target = field_ == "shape" ? entries.back().shape : entries.back().offsets;
    if (target) fail_duplicate();
    list_ = &target.emplace();
    ++depth_;
    return true;
  }

  bool key(std::string& value) {
    (depth_ == 1 ? name_ : field_) = std::move(value);
    if (depth_ == 2 && !in_metadata_ && field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
      throw data_error(where(), "only the fields dtype, shape and data_offsets",
                       fmt::format("\"{}\"", field_), kFetchAgain);
    }
    return true;
  }

  bool end_object() {
    --depth_;
    field_.clear();
    return true;
  }

  bool end_array() {
    --depth_;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    throw data_error(fmt::format("{}: header", file_), "valid JSON",
                     fmt::format("an error at byte {}", position + 7), kFetchAgain);
  }

 private:
  std::string where() const {
    if (name_.empty()) return fmt::format("{}: header", file_);
    if (field_.empty()) return fmt::format("{}: tensor \"{}\"", file_, name_);
    return fmt::format("{}: tensor \"{}\", field \"{}\"", file_, name_, field_);
  }

  bool unexpected(const std::string& got) const {
    std::string_view needed = "a table of tensors";
    if (depth_ == 1) needed = "a table with dtype, shape and data_offsets";
    if (depth_ == 2)
      needed = in_metadata_ ? "a string" : field_ == "dtype" ? "a string" : "a list of integers";
    if (depth_ == 3) needed = "integers from 0 to 2^63 - 1";
    throw data_error(where(), needed, got, kFetchAgain);
  }

  void fail_duplicate() const {
    throw data_error(where(), "each field once", "the field twice", kFetchAgain);
  }

  std::string_view file_;
  std::string name_, field_;
  std::set<std::string> names_;
  std::vector<std::int64_t>* list_ = nullptr;
  int depth_ = 0;
  bool in_metadata_ = false;
  bool seen_metadata_ = false;
};

/// The JSON text between the length and the data.
std::string_view header_text(std::span<const std::byte> bytes, std::string_view file) {
  if (bytes.size() < 8) {
    throw data_error(file, "at least 8 bytes of header length", fmt::format("{} bytes", bytes.size()),
                     kFetchAgain);
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxHeaderBytes) {
    throw data_error(file, "a safetensors file",
                     fmt::format("a file that begins with {}, which is no length of a header", length),
                     "check the path");
  }
  if (length > bytes.size() - 8) {
    throw data_error(file, fmt::format("{} bytes for the header", length + 8),
                     fmt::format("a file of {} bytes", bytes.size()),
                     "the file is cut short: write or download it again");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  if (!text.starts_with('{')) {
    throw data_error(file, "a JSON header that begins with '{'",
                     text.empty() ? "an empty header"
                                  : fmt::format("byte 0x{:02x}", static_cast<unsigned char>(text.front())),
                     "this is not a safetensors file, or it is damaged: check the path");
  }
  return text;
}

/// Checks one entry against itself and against the size of the data.
SafetensorsTensor checked_tensor(HeaderEntry&& entry, std::span<const std::byte> data,
                                 std::string_view file) {
  const std::string where = fmt::format("{}: tensor \"{}\"", file, entry.name);
  if (!entry.dtype || !entry.shape || !entry.offsets) {
    throw data_error(where, "the fields dtype, shape and data_offsets",
                     !entry.dtype   ? "no dtype"
                     : !entry.shape ? "no shape"
                                    : "no data_offsets",
                     kFetchAgain);
  }
  const auto found = std::ranges::find(kDtypes, std::string_view(*entry.dtype), &DtypeRow::name);
  if (found == kDtypes.end()) {
    throw data_error(where, "a dtype of F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL",
                     fmt::format("\"{}\"", *entry.dtype),
                     "convert the tensor to one of these and save again");
  }
  const auto& offsets = *entry.offsets;
  if (offsets.size() != 2 || offsets[0] > offsets[1] || std::cmp_greater(offsets[1], data.size())) {
    throw data_error(where, fmt::format("data_offsets [begin, end] within the {} bytes of data", data.size()),
                     fmt::format("[{}]", fmt::join(offsets, ", ")),
                     "the file is cut short: write or download it again");
  }
  const auto needed = bytes_of(*entry.shape, found->size);
  const auto length = static_cast<std::uint64_t>(offsets[1] - offsets[0]);
  if (!needed || *needed != length) {
    throw data_error(where,
                     fmt::format("{} bytes for {} [{}]", needed ? std::to_string(*needed) : "more than 2^63",
                                 found->name, fmt::join(*entry.shape, ", ")),
                     fmt::format("{} bytes in data_offsets", length), kFetchAgain);
  }
  return {std::move(entry.name), static_cast<SafetensorsDtype>(found - kDtypes.begin()),
          std::move(*entry.shape), data.subspan(static_cast<std::size_t>(offsets[0]), length)};
}

/// Puts the tensors in the order of their bytes and checks that they cover the data exactly.
void check_cover(std::vector<SafetensorsTensor>& tensors, std::span<const std::byte> data,
                 std::string_view file) {
  std::ranges::stable_sort(tensors, [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
  });
  std::size_t end = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const auto begin = static_cast<std::size_t>(tensor.bytes.data() - data.data());
    if (begin != end) {
      throw data_error(fmt::format("{}: tensor \"{}\"", file, tensor.name),
                       fmt::format("its data to begin at byte {}, where the tensor before it ends", end),
                       fmt::format("byte {} ({})", begin, begin < end ? "overlapping data" : "a hole"),
                       kFetchAgain);
    }
    end = begin + tensor.bytes.size();
  }
  if (end != data.size()) {
    throw data_error(file, fmt::format("{} bytes of data, as the header says", end),
                     fmt::format("{} bytes", data.size()), kFetchAgain);
  }
}

}  // namespace

std::string_view dtype_name(SafetensorsDtype dtype) { return row(dtype).name; }
std::size_t dtype_size(SafetensorsDtype dtype) { return row(dtype).size; }

SafetensorsDtype safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return SafetensorsDtype::f16;
    case DType::bf16:
      return SafetensorsDtype::bf16;
    case DType::f32:
      return SafetensorsDtype::f32;
    case DType::f64:
      return SafetensorsDtype::f64;
    case DType::i32:
      return SafetensorsDtype::i32;
    case DType::i64:
      return SafetensorsDtype::i64;
    case DType::u8:
      return SafetensorsDtype::u8;
  }
  throw internal_error("a dtype without a name in safetensors");
}

const SafetensorsTensor& SafetensorsView::at(const std::string& name) const {
  const auto found = index.find(name);
  if (found != index.end()) return tensors[found->second];
  std::vector<std::string> names;
  for (const auto& [key, position] : index) names.push_back(key);
  const std::string near = nearest_name(name, names);
  throw data_error(file, fmt::format("a tensor \"{}\"", name),
                   fmt::format("{} tensors of other names", tensors.size()),
                   near.empty() ? "give the file that was written for this purpose"
                                : fmt::format("did you mean \"{}\"?", near));
}

const SafetensorsTensor& SafetensorsView::at(const std::string& name, SafetensorsDtype dtype,
                                             std::span<const std::int64_t> shape) const {
  const SafetensorsTensor& tensor = at(name);
  if (tensor.dtype != dtype || !std::ranges::equal(tensor.shape, shape)) {
    throw data_error(fmt::format("{}: tensor \"{}\"", file, name),
                     fmt::format("{} [{}]", dtype_name(dtype), fmt::join(shape, ", ")),
                     fmt::format("{} [{}]", dtype_name(tensor.dtype), fmt::join(tensor.shape, ", ")),
                     "give the file that was written for this model and these settings");
  }
  return tensor;
}

const std::string& SafetensorsView::metadata_at(const std::string& key) const {
  const auto found = metadata.find(key);
  if (found != metadata.end()) return found->second;
  throw data_error(file, fmt::format("a metadata entry \"{}\"", key),
                   fmt::format("{} entries of other names", metadata.size()),
                   "give the file that was written for this purpose");
}

SafetensorsView parse_safetensors(std::span<const std::byte> bytes, std::string_view file) {
  const std::string_view text = header_text(bytes, file);
  // The parser takes a zero byte for the end of its input and would not look at what follows.
  if (const std::size_t zero = text.find('\0'); zero != text.npos) {
    throw data_error(fmt::format("{}: header", file), "JSON", fmt::format("a zero byte at byte {}", zero + 8),
                     kFetchAgain);
  }
  SafetensorsHeaderReader reader(file);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  const std::span<const std::byte> data = bytes.subspan(8 + text.size());
  SafetensorsView view;
  view.file = file;
  view.metadata = std::move(reader.metadata);
  view.tensors.reserve(reader.entries.size());
  for (HeaderEntry& entry : reader.entries) {
    view.tensors.push_back(checked_tensor(std::move(entry), data, file));
  }
  check_cover(view.tensors, data, file);
  for (std::size_t i = 0; i < view.tensors.size(); ++i) view.index.emplace(view.tensors[i].name, i);
  return view;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : mapping_(std::make_shared<const MappedFile>(path)),
      view_(parse_safetensors(mapping_->bytes(), path.string())) {}

}  // namespace meshgrad
