// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/npy.h>

namespace meshgrad {
namespace {

// The header is a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class NpyHeaderReader {
 public:
  NpyHeaderReader(std::string_view text, std::string_view where) : rest_(text), where_(where) {}

  NpyArray read() {
    NpyArray array;
    int found = 0;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr") {
        read_type(quoted(), array);
      } else if (key == "fortran_order") {
        array.fortran_order = boolean();
      } else if (key == "shape") {
        array.shape = tuple();
      } else {
        throw broken(fmt::format("an unknown key in its header"));
      }
      ++found;
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (found != 3) throw broken("a header without descr, fortran_order and shape");
    return array;
  }

 private:
  DataError broken(std::string_view got) const {
    return data_error(where_, "an array of numbers written by NumPy", got, "save it again with numpy.savez");
  }

  void skip_spaces() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n')) rest_.remove_prefix(1);
  }
  bool accept(char c) {
    skip_spaces();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) throw broken(fmt::format("a header without '{}' where it must be", c));
  }
  std::string_view quoted() {
    expect('\'');
    const size_t end = rest_.find('\'');
    if (end == std::string_view::npos) throw broken("a header with an open quote");
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return text;
  }
  bool boolean() {
    skip_spaces();
    for (const std::string_view word : {"True", "False"}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return word == "True";
    }
    throw broken("a fortran_order that is neither True nor False");
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> numbers;
    expect('(');
    while (!accept(')')) {
      skip_spaces();
      int64_t number = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
      if (error != std::errc{} || number < 0 || numbers.size() == 32) throw broken("a shape that is none");
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      numbers.push_back(number);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return numbers;
  }
  void read_type(std::string_view type, NpyArray& array) const {
    for (const std::string_view known :
         {"<f4", "<f8", "<i4", "<i8", "<i2", "|i1", "<u2", "<u4", "<u8", "|u1", "|b1"}) {
      if (type != known) continue;
      array.kind = known[1];
      array.bytes = known[2] - '0';
      return;
    }
    throw data_error(where_, "little-endian floats of 4 or 8 bytes, integers or booleans",
                     fmt::format("NumPy type '{}'", type), "save it as float32 or int32");
  }

  std::string_view rest_;
  std::string_view where_;
};

template <class From, class To>
To narrow(From value) {
  if constexpr (!std::is_same_v<To, int32_t>) {
    return static_cast<To>(value);
  } else {
    return std::in_range<int32_t>(value) ? static_cast<int32_t>(value) : -1;
  }
}

// Calls f(offset of the number in row-major order) in the order in which the file stores them.
template <class F>
void for_each_place(const NpyArray& array, F f) {
  const int64_t size = array.size();
  if (!array.fortran_order) {
    for (int64_t i = 0; i < size; ++i) f(i);
    return;
  }
  std::vector<int64_t> strides(array.shape.size(), 1);
  for (size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * array.shape[d];
  for (int64_t i = 0; i < size; ++i) {
    int64_t left = i;
    int64_t place = 0;
    for (size_t d = 0; d < strides.size(); ++d) {
      place += left % array.shape[d] * strides[d];
      left /= array.shape[d];
    }
    f(place);
  }
}

template <class From, class To>
std::vector<To> convert_numbers(const NpyArray& array) {
  std::vector<To> numbers(static_cast<size_t>(array.size()));
  const std::byte* at = array.data.data();
  for_each_place(array, [&](int64_t place) {
    From value{};
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    numbers[static_cast<size_t>(place)] = narrow<From, To>(value);
  });
  return numbers;
}

template <class To>
std::vector<To> integers_to(const NpyArray& array) {
  const bool is_signed = array.kind == 'i';
  switch (array.bytes) {
    case 1:
      return is_signed ? convert_numbers<int8_t, To>(array) : convert_numbers<uint8_t, To>(array);
    case 2:
      return is_signed ? convert_numbers<int16_t, To>(array) : convert_numbers<uint16_t, To>(array);
    case 4:
      return is_signed ? convert_numbers<int32_t, To>(array) : convert_numbers<uint32_t, To>(array);
    default:
      return is_signed ? convert_numbers<int64_t, To>(array) : convert_numbers<uint64_t, To>(array);
  }
}

}  // namespace

int64_t NpyArray::size() const {
  int64_t size = 1;
  for (const int64_t dim : shape) size *= dim;
  return size;
}

NpyArray parse_npy(std::span<const std::byte> file, std::string_view where) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const auto broken = [&](std::string_view got) {
    return data_error(where, "an array written by NumPy", got, "save it again with numpy.savez");
  };
  if (file.size() < 12) throw broken(fmt::format("{} bytes", file.size()));
  if (!text.starts_with(kMagic)) throw broken("a file that does not begin with NumPy's signature");
  const int version = static_cast<unsigned char>(text[6]);
  if (version < 1 || version > 3) throw broken(fmt::format("format version {}", version));
  const size_t prefix = version == 1 ? 10 : 12;
  uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data() + 8, version == 1 ? 2 : 4);
  if (header_bytes > file.size() - prefix) throw broken("a file that is cut short");
  NpyArray array = NpyHeaderReader(text.substr(prefix, header_bytes), where).read();
  array.data = file.subspan(prefix + header_bytes);
  int64_t bytes = array.bytes;
  bool overflow = false;
  for (const int64_t dim : array.shape) overflow |= __builtin_mul_overflow(bytes, dim, &bytes);
  if (overflow || static_cast<uint64_t>(bytes) > array.data.size()) {
    throw broken(fmt::format("{} bytes of numbers, fewer than its shape has", array.data.size()));
  }
  array.data = array.data.first(static_cast<size_t>(bytes));
  return array;
}

std::vector<float> to_floats(const NpyArray& array) {
  if (array.kind != 'f') return integers_to<float>(array);
  return array.bytes == 4 ? convert_numbers<float, float>(array) : convert_numbers<double, float>(array);
}

std::vector<double> to_doubles(const NpyArray& array) {
  if (array.kind != 'f') return integers_to<double>(array);
  return array.bytes == 4 ? convert_numbers<float, double>(array) : convert_numbers<double, double>(array);
}

std::vector<int32_t> to_indices(const NpyArray& array, std::string_view where) {
  if (array.kind == 'f') {
    throw data_error(where, "integers", "floating-point numbers", "save it as int32");
  }
  std::vector<int32_t> indices = integers_to<int32_t>(array);
  for (int32_t& index : indices) index = std::max(index, -1);
  return indices;
}

FieldValues to_field_values(const NpyArray& array, std::string_view where) {
  if (array.kind == 'f') return to_floats(array);
  if (array.bytes < 4 || (array.bytes == 4 && array.kind == 'i')) return integers_to<int32_t>(array);
  std::vector<int64_t> numbers = integers_to<int64_t>(array);
  // Casting wraps what is too large to a negative number.
  const auto large = std::ranges::find_if(numbers, [](int64_t n) { return n < 0; });
  if (array.kind == 'u' && large != numbers.end()) {
    throw data_error(where, "integers up to 9223372036854775807",
                     fmt::format("{}", static_cast<uint64_t>(*large)), "save it as int64");
  }
  return numbers;
}

}  // namespace meshgrad
