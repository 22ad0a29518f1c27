// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/vtk_numbers.h>

namespace meshgrad {
namespace {

struct TypeName {
  std::string_view name;
  VtkType type;
};

// As an XML file and as a legacy file name them. A long has 8 bytes, as where VTK itself writes.
constexpr std::array<TypeName, 33> kTypes{{
    {"Float32", {'f', 4}},
    {"Float64", {'f', 8}},
    {"Int8", {'i', 1}},
    {"Int16", {'i', 2}},
    {"Int32", {'i', 4}},
    {"Int64", {'i', 8}},
    {"UInt8", {'u', 1}},
    {"UInt16", {'u', 2}},
    {"UInt32", {'u', 4}},
    {"UInt64", {'u', 8}},
    {"float", {'f', 4}},
    {"double", {'f', 8}},
    {"char", {'i', 1}},
    {"signed_char", {'i', 1}},
    {"short", {'i', 2}},
    {"int", {'i', 4}},
    {"long", {'i', 8}},
    {"long_long", {'i', 8}},
    {"vtkIdType", {'i', 8}},
    {"vtkidtype", {'i', 8}},
    {"vtktypeint8", {'i', 1}},
    {"vtktypeint16", {'i', 2}},
    {"vtktypeint32", {'i', 4}},
    {"vtktypeint64", {'i', 8}},
    {"unsigned_char", {'u', 1}},
    {"unsigned_short", {'u', 2}},
    {"unsigned_int", {'u', 4}},
    {"unsigned_long", {'u', 8}},
    {"unsigned_long_long", {'u', 8}},
    {"vtktypeuint8", {'u', 1}},
    {"vtktypeuint16", {'u', 2}},
    {"vtktypeuint32", {'u', 4}},
    {"vtktypeuint64", {'u', 8}},
}};

constexpr std::string_view kSpace = " \t\r\n\v\f";

// `T` as it is in the file, `As` as it is kept.
template <class T, class As>
std::vector<As> converted(std::span<const std::byte> bytes, bool big_endian) {
  std::vector<As> values(bytes.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    std::array<std::byte, sizeof(T)> raw{};
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(i * sizeof(T)), sizeof(T), raw.begin());
    if (big_endian) std::reverse(raw.begin(), raw.end());
    values[i] = static_cast<As>(std::bit_cast<T>(raw));
  }
  return values;
}

template <class Small, class Short, class Int, class Long>
std::vector<int64_t> integers(std::span<const std::byte> bytes, size_t size, bool big_endian) {
  if (size == 1) return converted<Small, int64_t>(bytes, big_endian);
  if (size == 2) return converted<Short, int64_t>(bytes, big_endian);
  if (size == 4) return converted<Int, int64_t>(bytes, big_endian);
  return converted<Long, int64_t>(bytes, big_endian);
}

/// A real number as Fortran writes it: with a plus sign, with D for E, or without the E of a long exponent,
/// as "0.100-104".
std::string with_exponent(std::string_view word) {
  std::string text(word.substr(word.starts_with('+') ? 1 : 0));
  for (char& c : text)
    if (c == 'D' || c == 'd') c = 'e';
  const size_t sign = text.find_first_of("+-", 1);
  const bool long_exponent =
      sign != std::string::npos && text.size() - sign == 4;  // of three digits, only then
  if (long_exponent && text[sign - 1] >= '0' && text[sign - 1] <= '9') text.insert(sign, 1, 'e');
  return text;
}

/// 0 or infinity, by the size of a number that double has no room for.
double out_of_range(std::string_view word) {
  const bool negative = word.starts_with('-');
  if (negative) word.remove_prefix(1);
  const size_t exponent = word.find_first_of("eE");
  const bool small = exponent == std::string_view::npos ? word.starts_with('0') || word.starts_with('.')
                                                        : word.substr(exponent + 1).starts_with('-');
  const double size = small ? 0.0 : std::numeric_limits<double>::infinity();
  return negative ? -size : size;
}

bool read_plain_number(std::string_view word, double& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error == std::errc()) return end == word.data() + word.size();
  if (error != std::errc::result_out_of_range) return false;
  value = out_of_range(word);
  return true;
}

bool read_number(std::string_view word, double& value) {
  if (read_plain_number(word, value)) return true;
  const bool numeric = !word.empty() && word.find_first_not_of("0123456789+-.dDeE") == std::string_view::npos;
  return numeric && read_plain_number(with_exponent(word), value);
}

bool read_number(std::string_view word, int64_t& value) {
  if (word.starts_with('+') && word.size() > 1 && word[1] != '-') word.remove_prefix(1);
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size();
}

template <class Read, class As>
std::optional<VtkValues> read_numbers(VtkText& text, size_t count) {
  if (count > text.rest().size()) return std::nullopt;  // each takes a character
  std::vector<As> values;
  values.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    Read number{};
    if (!read_number(text.word(), number)) return std::nullopt;
    values.push_back(static_cast<As>(number));
  }
  return values;
}

}  // namespace

std::optional<VtkType> vtk_type(std::string_view name) {
  const auto* found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeName& known) { return known.name == name; });
  if (found == kTypes.end()) return std::nullopt;
  return found->type;
}

VtkValues vtk_values(std::span<const std::byte> bytes, VtkType type, bool big_endian) {
  if (type.kind == 'f' && type.bytes == 4) return converted<float, float>(bytes, big_endian);
  if (type.kind == 'f') return converted<double, double>(bytes, big_endian);
  return type.kind == 'i' ? integers<int8_t, int16_t, int32_t, int64_t>(bytes, type.bytes, big_endian)
                          : integers<uint8_t, uint16_t, uint32_t, uint64_t>(bytes, type.bytes, big_endian);
}

std::string_view VtkText::word() {
  text_.remove_prefix(std::min(text_.find_first_not_of(kSpace), text_.size()));
  const std::string_view found = text_.substr(0, text_.find_first_of(kSpace));
  text_.remove_prefix(found.size());
  return found;
}

std::string_view VtkText::line() {
  const size_t end = std::min(text_.find('\n'), text_.size());
  std::string_view found = text_.substr(0, end);
  text_.remove_prefix(std::min(end + 1, text_.size()));
  if (found.ends_with('\r')) found.remove_suffix(1);
  return found;
}

std::string VtkText::fault(size_t count, VtkType type) const {
  VtkText text = *this;
  size_t found = 0;
  for (std::string_view word = text.word(); !word.empty(); word = text.word(), ++found) {
    double real = 0.0;
    int64_t whole = 0;
    const bool number = type.kind == 'f' ? read_number(word, real) : read_number(word, whole);
    if (!number || found == count) return fmt::format("\"{}\" at number {}", word.substr(0, 40), found);
  }
  return fmt::format("{}", found);
}

std::optional<VtkValues> VtkText::values(size_t count, VtkType type) {
  if (type.kind != 'f') return read_numbers<int64_t, int64_t>(*this, count);
  if (type.bytes == 4) return read_numbers<double, float>(*this, count);
  return read_numbers<double, double>(*this, count);
}

double time_in_text(std::string_view text, const std::string& file) {
  VtkText words(text);
  const auto numbers = words.values(1, {'f', 8});
  const double time = numbers ? std::get<std::vector<double>>(*numbers).front() : std::nan("");
  if (std::isfinite(time) && words.word().empty()) return time;
  throw data_error(file, "a time that is a number", fmt::format("\"{}\"", text),
                   "write times in seconds, as 0.5");
}

}  // namespace meshgrad
