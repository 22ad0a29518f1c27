// SPDX-License-Identifier: Apache-2.0
// The parsers of bytes: CRC, TFRecord, tf.Example, meta.json, .npy.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/deepmind_source.h>
#include <meshgrad/train/convert/sources/hdf5_source.h>
#include <meshgrad/train/convert/sources/npy.h>
#include <meshgrad/train/data/crc32c.h>

#include <cstring>
#include <random>

#include "train/deepmind_folder.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::square_meta;
using meshgrad::test::SquareRecord;
using Bytes = std::vector<std::byte>;

namespace {

const std::vector<float>& floats(const RawField& field) { return std::get<std::vector<float>>(field.values); }

Bytes raw_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

template <class T>
Bytes raw_bytes(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// CRC-32C bit by bit, as its definition says.
uint32_t slow_crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = ~0U;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) * 0x82f63b78U);
  }
  return ~crc;
}

Bytes npy_file(const std::string& descr, bool fortran, const std::string& shape, const Bytes& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
                       ", 'shape': " + shape + ", }\n";
  std::string text("\x93NUMPY\x01\x00", 8);
  text += static_cast<char>(header.size());
  text += '\0';
  Bytes file = raw_bytes(text + header);
  file.insert(file.end(), data.begin(), data.end());
  return file;
}

DeepmindMeta parse_meta(const nlohmann::json& json, std::vector<std::string>* warnings = nullptr) {
  return parse_deepmind_meta(json.dump(), "meta.json", [warnings](const std::string& text) {
    if (warnings != nullptr) warnings->push_back(text);
  });
}

}  // namespace

TEST_CASE("CRC-32C has its published check value") {
  CHECK(crc32c(raw_bytes("123456789")) == 0xe3069283U);
  CHECK(crc32c({}) == 0U);
  std::mt19937 random(1);
  Bytes bytes;
  for (int i = 0; i < 50; ++i) {
    CHECK(crc32c(bytes) == slow_crc32c(bytes));
    bytes.push_back(static_cast<std::byte>(random()));
  }
  const uint32_t crc = crc32c(bytes);
  CHECK(masked_crc32c(bytes) == ((crc >> 15U) | (crc << 17U)) + 0xa282ead8U);
}

TEST_CASE("damaged records are told from short files") {
  Bytes file;
  write_record(file, raw_bytes("first"));
  write_record(file, {});
  write_record(file, raw_bytes("third record"));
  CHECK(count_records(file) == 3);
  size_t offset = 0;
  CHECK(message_of([&] {
          CHECK(read_record(file, offset, "0").size() == 5);
          CHECK(read_record(file, offset, "1").empty());
          CHECK(read_record(file, offset, "2").size() == 12);
        }) == "");
  CHECK(offset == file.size());

  for (size_t at = 0; at < 5 + 16; ++at) {  // every byte of the first record is covered by a CRC or is one
    Bytes damaged = file;
    damaged[at] ^= std::byte{0x10};
    size_t start = 0;
    CHECK(contains(message_of([&] { read_record(damaged, start, "a.tfrecord: record 0"); }),
                   "[a.tfrecord: record 0] needed the CRC 0x"));
  }
  for (size_t size = 0; size < 5 + 16; ++size) {
    size_t start = 0;
    CHECK(contains(message_of([&] { read_record(std::span(file).first(size), start, "x"); }), "cut short"));
  }
}

TEST_CASE("an example comes back, and what is none is refused") {
  const Bytes one = raw_bytes("abc");
  const Bytes message = write_example({{"a", one}, {"empty", {}}});
  const Example example = parse_example(message, "record 0");
  REQUIRE(example.size() == 2);
  CHECK(Bytes(example.at("a").begin(), example.at("a").end()) == one);
  CHECK(example.at("empty").empty());
  CHECK(parse_example({}, "record 0").empty());

  for (size_t size = 1; size < message.size(); ++size) {
    CHECK_THROWS_AS(parse_example(std::span(message).first(size), "record 0"), DataError);
  }
  // features { feature { key: "f" value { float_list {} } } }
  const Bytes floats{std::byte{0x0a}, std::byte{9},    std::byte{0x0a}, std::byte{7},
                     std::byte{0x0a}, std::byte{1},    std::byte{'f'},  std::byte{0x12},
                     std::byte{2},    std::byte{0x12}, std::byte{0}};
  CHECK(contains(
      message_of([&] { parse_example(floats, "record 0"); }),
      "[record 0, feature \"f\"] needed one raw buffer (a bytes_list of one value), got a list of floats"));
}

TEST_CASE("random bytes are refused or parsed, never read past") {
  std::mt19937 random(2);
  const Bytes good = SquareRecord(3).message();
  const DeepmindMeta meta = parse_meta(square_meta(3));
  int parsed = 0;
  for (int i = 0; i < 3000; ++i) {
    Bytes bytes = good;
    for (int k = 0; k < 3; ++k) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    bytes.resize(bytes.size() - random() % 3);
    try {
      trajectories_of_record(bytes, meta, "record", {});
      ++parsed;
    } catch (const DataError&) {
    }
  }
  CHECK(parsed > 0);
  CHECK(parsed < 3000);
}

TEST_CASE("the known fault of dtype is repaired and said") {
  nlohmann::json json = square_meta(3);
  json["features"]["velocity"]["dtype"] = "<dtype: 'float32'>";
  std::vector<std::string> warnings;
  CHECK(parse_meta(json, &warnings).features[3].type == NumberType::float32);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "meta.json: features.velocity"));
  json["features"]["velocity"]["dtype"] = "<dtype: 'complex64'>";
  CHECK_THROWS_AS(parse_meta(json), DataError);
}

TEST_CASE("a fault of meta.json names the key") {
  const auto without = [](auto change) {
    nlohmann::json json = square_meta(3);
    change(json);
    return message_of([&] { parse_meta(json); });
  };
  CHECK(contains(without([](auto& j) { j["features"].erase("velocity"); }),
                 "[meta.json: features] needed the key \"velocity\", got none"));
  CHECK(contains(without([](auto& j) { j.erase("field_names"); }), "the key \"field_names\""));
  CHECK(contains(without([](auto& j) { j["features"]["cells"].erase("shape"); }),
                 "[meta.json: features.cells] needed the key \"shape\""));
  CHECK(contains(without([](auto& j) { j["features"]["cells"]["type"] = "moving"; }), "got \"moving\""));
  CHECK(contains(without([](auto& j) { j["features"]["cells"]["shape"] = {1, 3, -1}; }), "got [1,3,-1]"));
  CHECK(contains(message_of([] { parse_deepmind_meta("{\n \"a\": ?", "meta.json", {}); }),
                 "[meta.json] needed JSON, got an error in line 2; fix:"));
}

TEST_CASE("static and dynamic fields of a record") {
  const SquareRecord record(3);
  const auto got = trajectories_of_record(record.message(), parse_meta(square_meta(3)), "r", {});
  REQUIRE(got.size() == 1);
  CHECK(got[0].frames == 3);
  CHECK(got[0].nodes == 4);
  CHECK(got[0].dim == 2);
  CHECK(got[0].dt == 0.5);
  CHECK(got[0].cells == record.cells);
  CHECK(got[0].nodes_per_cell == 3);
  CHECK(got[0].node_type == record.node_type);
  REQUIRE(got[0].fields.size() == 1);
  CHECK(floats(got[0].fields[0]) == record.velocity);
  CHECK(got[0].fields[0].dynamic);
}

TEST_CASE("a record that does not fit meta.json names record and field") {
  const DeepmindMeta meta = parse_meta(square_meta(3));
  const auto error = [&](const SquareRecord& record) {
    return message_of([&] { trajectories_of_record(record.message(), meta, "r 7", {}); });
  };
  CHECK(contains(error(SquareRecord(2)), "[r 7: field velocity] needed 3 frames of whole rows of 2"));
  SquareRecord types(3);
  types.node_type.pop_back();
  CHECK(error(types).empty());  // found by validate, which sees all fields
  const auto short_types = trajectories_of_record(types.message(), meta, "r 7", {});
  CHECK(contains(message_of([&] { validate(short_types[0]); }), "[r 7: field node_type]"));
  nlohmann::json json = square_meta(3);
  json["field_names"].push_back("pressure");
  json["features"]["pressure"] = json["features"]["velocity"];
  const DeepmindMeta more = parse_meta(json);
  CHECK(contains(message_of([&] { trajectories_of_record(SquareRecord(3).message(), more, "r 7", {}); }),
                 "[r 7] needed the field \"pressure\" that meta.json names, got none"));
}

TEST_CASE("a mesh that changes becomes one trajectory per mesh") {
  nlohmann::json json = square_meta(3);
  for (const char* name : {"cells", "mesh_pos", "node_type", "velocity"}) {
    json["features"][name]["type"] = "dynamic_varlen";
    json["features"][name]["shape"] = {-1, json["features"][name]["shape"][2]};
  }
  json["field_names"].push_back("sizing_field");
  json["features"]["sizing_field"] = {
      {"type", "dynamic_varlen"}, {"shape", {-1, 4}}, {"dtype", "<dtype: 'float32'>"}};
  const auto repeat = [](const auto& a, const auto& b) {
    auto all = a;
    all.insert(all.end(), a.begin(), a.end());
    all.insert(all.end(), b.begin(), b.end());
    return all;
  };
  // Two frames on the square, then one on the triangle 0-1-2.
  SquareRecord record(3);
  record.cells = repeat(std::vector<int32_t>{0, 1, 2, 0, 2, 3}, std::vector<int32_t>{0, 1, 2});
  record.mesh_pos = repeat(std::vector<float>{0, 0, 1, 0, 1, 1, 0, 1}, std::vector<float>{0, 0, 1, 0, 1, 1});
  record.node_type = repeat(std::vector<int32_t>{4, 0, 0, 6}, std::vector<int32_t>{4, 0, 0});
  record.velocity.resize(22);
  const std::vector<int32_t> rows{4, 4, 3};
  for (const char* name : {"mesh_pos", "node_type", "velocity", "sizing_field"}) {
    record.more.emplace_back(std::string("length_") + name, raw_bytes(rows));
  }
  record.more.emplace_back("length_cells", raw_bytes(std::vector<int32_t>{2, 2, 1}));
  std::vector<float> sizing(33);
  for (size_t i = 0; i < sizing.size(); ++i) sizing[i] = static_cast<float>(i);
  record.more.emplace_back("sizing_field", raw_bytes(sizing));

  std::vector<std::string> warnings;
  const WarningCallback warn = [&](const std::string& text) { warnings.push_back(text); };
  const DeepmindMeta meta = parse_deepmind_meta(json.dump(), "meta.json", warn);
  const auto got = trajectories_of_record(record.message(), meta, "r", warn);
  CHECK(warnings.size() == 3);  // dtype, shape, changing mesh
  REQUIRE(got.size() == 2);
  CHECK(got[0].frames == 2);
  CHECK(got[0].nodes == 4);
  CHECK(floats(got[0].fields[0]) ==
        std::vector<float>(record.velocity.begin(), record.velocity.begin() + 16));
  CHECK(got[1].first_frame == 2);
  CHECK(got[1].frames == 1);
  CHECK(got[1].cells == std::vector<int32_t>{0, 1, 2});
  CHECK(got[1].fields[1].components == 3);
  CHECK(floats(got[1].fields[1]) == std::vector<float>(sizing.begin() + 24, sizing.end()));
}

TEST_CASE("NumPy arrays of any order and type come back row by row") {
  const std::vector<float> values{0, 1, 2, 3, 4, 5};
  const Bytes rows = npy_file("<f4", false, "(2, 3)", raw_bytes(values));
  CHECK(to_floats(parse_npy(rows, "x")) == values);
  const Bytes columns = npy_file("<f4", true, "(2, 3)", raw_bytes(values));
  CHECK(to_floats(parse_npy(columns, "x")) == std::vector<float>{0, 2, 4, 1, 3, 5});
  const Bytes cube = npy_file("<f8", true, "(1, 3, 2)", raw_bytes(std::vector<double>{0, 1, 2, 3, 4, 5}));
  CHECK(to_floats(parse_npy(cube, "x")) == std::vector<float>{0, 3, 1, 4, 2, 5});
  const Bytes wide = npy_file("<i8", false, "(3,)", raw_bytes(std::vector<int64_t>{7, -2, int64_t{1} << 40}));
  CHECK(to_indices(parse_npy(wide, "x"), "x") == std::vector<int32_t>{7, -1, -1});
  CHECK(parse_npy(npy_file("<i4", false, "()", raw_bytes(std::vector<int32_t>{3})), "x").size() == 1);
  CHECK_THROWS_AS(to_indices(parse_npy(rows, "x"), "x"), DataError);
}

TEST_CASE("what is no NumPy array of numbers is refused") {
  const Bytes data = raw_bytes(std::vector<float>{0, 1, 2, 3, 4, 5});
  CHECK(contains(message_of([&] { parse_npy(npy_file("<f4", false, "(2, 4)", data), "a.npz: array u"); }),
                 "[a.npz: array u] needed an array written by NumPy, got 24 bytes of numbers"));
  CHECK(contains(message_of([&] { parse_npy(npy_file(">f4", false, "(2, 3)", data), "x"); }),
                 "NumPy type '>f4'"));
  for (const char* shape : {"(2, -3)", "(2 3)", "(9223372036854775807, 9)", "(a,)", "2", ""}) {
    CHECK_THROWS_AS(parse_npy(npy_file("<f4", false, shape, data), "x"), DataError);
  }
  const Bytes good = npy_file("<f4", false, "(2, 3)", data);
  for (size_t size = 0; size < good.size(); ++size) {
    CHECK_THROWS_AS(parse_npy(std::span(good).first(size), "x"), DataError);
  }
}

TEST_CASE("rows of one vector become one field") {
  const auto groups = group_rows({"x", "y", "z", "velocity_x", "velocity_y", "pressure", "x_disp", "y_disp",
                                  "z_disp", "force_x", "node_type"});
  std::vector<std::string> names;
  std::vector<size_t> sizes;
  for (const RowGroup& group : groups) {
    names.push_back(group.name);
    sizes.push_back(group.rows.size());
  }
  CHECK(names ==
        std::vector<std::string>{"mesh_pos", "velocity", "pressure", "disp", "force_x", "node_type"});
  CHECK(sizes == std::vector<size_t>{3, 2, 1, 3, 1, 1});
  CHECK(groups[1].rows == std::vector<size_t>{3, 4});
}
