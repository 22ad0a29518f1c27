// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <optional>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/tf_example.h>

namespace meshgrad {
namespace {

using Bytes = std::span<const std::byte>;

enum class Wire : uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

struct WireField {
  uint64_t number = 0;
  Wire wire = Wire::varint;
  Bytes payload;  // of Wire::bytes
};

// Walks the fields of one message; nothing is trusted.
class Walker {
 public:
  Walker(Bytes message, std::string_view where) : rest_(message), where_(where) {}

  std::optional<WireField> next() {
    if (rest_.empty()) return std::nullopt;
    const uint64_t tag = varint();
    WireField field;
    field.number = tag >> 3U;
    switch (tag & 7U) {
      case 0:
        varint();
        break;
      case 1:
        field.wire = Wire::fixed64;
        take(8);
        break;
      case 2:
        field.wire = Wire::bytes;
        field.payload = take(varint());
        break;
      case 5:
        field.wire = Wire::fixed32;
        take(4);
        break;
      default:
        throw broken("an unknown wire type");
    }
    if (field.number == 0) throw broken("field number 0");
    return field;
  }

 private:
  DataError broken(std::string_view got) const {
    return data_error(
        where_, "a tf.Example message", got,
        "the file must hold DeepMind's tf.Example records; check that it is not another kind of data");
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) throw broken("a number that is cut short");
      const auto byte = static_cast<uint64_t>(rest_.front());
      rest_ = rest_.subspan(1);
      value |= (byte & 0x7fU) << shift;
      if ((byte & 0x80U) == 0) return value;
    }
    throw broken("a number of more than 64 bits");
  }

  Bytes take(uint64_t size) {
    if (size > rest_.size()) throw broken("a field that is cut short");
    const Bytes taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  Bytes rest_;
  std::string_view where_;
};

std::string_view text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Feature { oneof { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } },
// BytesList { repeated bytes value = 1; }
Bytes parse_feature(Bytes message, const std::string& name, std::string_view where) {
  const std::string here = std::string(where) + ", feature \"" + name + "\"";
  int values = 0;
  Bytes value;
  const char* got = "no value";
  Walker feature(message, here);
  while (const auto list = feature.next()) {
    if (list->wire != Wire::bytes) continue;
    if (list->number == 2) got = "a list of floats";
    if (list->number == 3) got = "a list of integers";
    if (list->number != 1) continue;
    Walker items(list->payload, here);
    while (const auto item = items.next()) {
      if (item->number != 1 || item->wire != Wire::bytes) continue;
      value = item->payload;
      if (++values > 1) got = "several values";
    }
  }
  if (values == 1) return value;
  throw data_error(here, "one raw buffer (a bytes_list of one value)", got,
                   "write the field as the bytes of its array, as DeepMind's data sets do");
}

void append_varint(std::vector<std::byte>& to, uint64_t value) {
  for (; value >= 0x80U; value >>= 7U) to.push_back(static_cast<std::byte>((value & 0x7fU) | 0x80U));
  to.push_back(static_cast<std::byte>(value));
}

void append_bytes_field(std::vector<std::byte>& to, uint64_t number, Bytes payload) {
  append_varint(to, (number << 3U) | 2U);
  append_varint(to, payload.size());
  to.insert(to.end(), payload.begin(), payload.end());
}

}  // namespace

// Example { Features features = 1; }, Features { map<string, Feature> feature = 1; }: a map entry is a
// message { string key = 1; Feature value = 2; }.
Example parse_example(Bytes message, std::string_view where) {
  Example example;
  Walker top(message, where);
  while (const auto features = top.next()) {
    if (features->number != 1 || features->wire != Wire::bytes) continue;
    Walker entries(features->payload, where);
    while (const auto entry = entries.next()) {
      if (entry->number != 1 || entry->wire != Wire::bytes) continue;
      std::string name;
      Bytes feature;
      Walker parts(entry->payload, where);
      while (const auto part = parts.next()) {
        if (part->wire != Wire::bytes) continue;
        if (part->number == 1) name = text_of(part->payload);
        if (part->number == 2) feature = part->payload;
      }
      example.insert_or_assign(name, parse_feature(feature, name, where));
    }
  }
  return example;
}

std::vector<std::byte> write_example(const std::vector<std::pair<std::string, Bytes>>& features) {
  std::vector<std::byte> map;
  for (const auto& [name, buffer] : features) {
    std::vector<std::byte> list;
    append_bytes_field(list, 1, buffer);
    std::vector<std::byte> feature;
    append_bytes_field(feature, 1, list);
    std::vector<std::byte> entry;
    append_bytes_field(entry, 1, std::as_bytes(std::span(name)));
    append_bytes_field(entry, 2, feature);
    append_bytes_field(map, 1, entry);
  }
  std::vector<std::byte> message;
  append_bytes_field(message, 1, map);
  return message;
}

}  // namespace meshgrad
