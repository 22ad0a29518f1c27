// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/safetensors.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "support.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;

namespace {

using test::contains;

namespace fs = std::filesystem;

/// A file of this header and this much data.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\x01');
}

SafetensorsView parse_tensors(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "w.st");
}

/// The error text, or empty when the file is accepted.
std::string fault(const std::string& file) {
  try {
    parse_tensors(file);
    return {};
  } catch (const DataError& error) {
    return error.what();
  }
}

std::string fault_of_header(const std::string& header, std::size_t data_bytes) {
  return fault(file_of(header, data_bytes));
}

template <class T>
SafetensorsTensor tensor_of(std::string name, SafetensorsDtype dtype, std::vector<std::int64_t> shape,
                            const std::vector<T>& values) {
  return {std::move(name), dtype, std::move(shape), std::as_bytes(std::span(values))};
}

}  // namespace

TEST_CASE("a safetensors file reads back what was written") {
  const ScratchDirectory scratch;
  const std::vector<float> weights{1.5F, -2.25F, 0.1F, 7, 8, 9};
  const std::vector<double> losses{1e-300, -3.75};
  const std::vector<std::int64_t> step{-5};
  const std::vector<std::uint8_t> mask{0, 1, 1};
  const std::vector<SafetensorsTensor> tensors{
      tensor_of("z.weight", SafetensorsDtype::f32, {2, 3}, weights),
      tensor_of("mask", SafetensorsDtype::boolean, {3}, mask),
      tensor_of("a \"quoted\" \xc3\xa9", SafetensorsDtype::f64, {2}, losses),
      tensor_of("step", SafetensorsDtype::i64, {}, step),
      {"empty", SafetensorsDtype::f16, {0, 4}, {}},
  };
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"note", "two\nlines"}};
  write_safetensors(scratch.path / "a.safetensors", tensors, metadata);
  const SafetensorsFile file(scratch.path / "a.safetensors");
  const SafetensorsView& view = file.view();
  CHECK(view.metadata == metadata);
  CHECK(view.metadata_at("format") == "pt");
  REQUIRE(view.tensors.size() == 5);
  CHECK(view.tensors.front().name == "a \"quoted\" \xc3\xa9");  // widest first, then by name
  CHECK(view.tensors.back().name == "mask");
  CHECK(to_f32(file.at("z.weight")) == weights);
  CHECK(to_f64(file.at("a \"quoted\" \xc3\xa9")) == losses);
  CHECK(to_i64(file.at("step")) == step);
  CHECK(file.at("step").shape.empty());
  CHECK(to_i64(file.at("mask")) == std::vector<std::int64_t>{0, 1, 1});
  CHECK(file.at("empty").shape == std::vector<std::int64_t>{0, 4});
  CHECK(file.at("empty").elements() == 0);
  CHECK_NOTHROW(view.at("z.weight", SafetensorsDtype::f32, std::vector<std::int64_t>{2, 3}));
  for (const SafetensorsTensor& tensor : view.tensors) {
    CHECK(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % dtype_size(tensor.dtype) == 0);
  }
}

TEST_CASE("the order of tensors does not change the bytes") {
  const ScratchDirectory scratch;
  const std::vector<float> a{1, 2};
  const std::vector<double> b{3};
  std::vector<SafetensorsTensor> tensors{tensor_of("b", SafetensorsDtype::f32, {2}, a),
                                         tensor_of("a", SafetensorsDtype::f32, {1, 2}, a),
                                         tensor_of("c", SafetensorsDtype::f64, {1}, b)};
  write_safetensors(scratch.path / "1", tensors, {{"k", "v"}});
  std::swap(tensors[0], tensors[2]);
  write_safetensors(scratch.path / "2", tensors, {{"k", "v"}});
  CHECK(read_text(scratch.path / "1") == read_text(scratch.path / "2"));
  CHECK(read_text(scratch.path / "1").size() % 8 == 0);
  write_safetensors(scratch.path / "none", {});
  CHECK(SafetensorsFile(scratch.path / "none").view().tensors.empty());
}

TEST_CASE("every dtype converts") {
  using D = SafetensorsDtype;
  const auto value = [](D dtype, auto bits) {
    const std::vector<decltype(bits)> one{bits};
    return to_f64(tensor_of("x", dtype, {}, one)).at(0);
  };
  CHECK(value(D::f16, std::uint16_t{0x3c00}) == 1.0);
  CHECK(value(D::f16, std::uint16_t{0xc001}) == doctest::Approx(-2.001953125));
  CHECK(value(D::f16, std::uint16_t{0x0001}) == std::ldexp(1.0, -24));
  CHECK(value(D::f16, std::uint16_t{0x7c00}) == std::numeric_limits<double>::infinity());
  CHECK(std::isnan(value(D::f16, std::uint16_t{0x7e00})));
  CHECK(value(D::bf16, std::uint16_t{0x3fc0}) == 1.5);
  CHECK(value(D::i16, std::int16_t{-300}) == -300);
  CHECK(value(D::i8, std::int8_t{-3}) == -3);
  CHECK(value(D::u8, std::uint8_t{250}) == 250);
  CHECK(value(D::boolean, std::uint8_t{7}) == 1);
  CHECK(value(D::i32, std::int32_t{-70000}) == -70000);
  const std::vector<float> number{1};
  CHECK_THROWS_AS(to_i64(tensor_of("x", D::f32, {1}, number)), DataError);
}

TEST_CASE("a damaged header names file, tensor and fix") {
  CHECK(fault_of_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8).empty());
  CHECK(fault_of_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   )", 8).empty());
  CHECK(fault_of_header("{}", 0).empty());
  const auto rejects = [](std::string_view part, const std::string& header, std::size_t data) {
    const std::string text = fault_of_header(header, data);
    CHECK_MESSAGE(contains(text, part), header << " -> " << text);
    CHECK_MESSAGE(contains(text, "w.st"), text);
    CHECK_MESSAGE(contains(text, "fix: "), text);
  };
  const auto one = [](const std::string& body) { return "{\"a\":{" + body + "}}"; };
  rejects("begins with '{'", "[]", 0);
  rejects("begins with '{'", " {}", 0);
  rejects("valid JSON", "{", 0);
  rejects("valid JSON", "{}{}", 0);
  rejects("valid JSON", "{\"a\xff\":1}", 0);
  rejects("zero byte", std::string("{}\0x", 4), 0);
  rejects("dtype, shape and data_offsets", "{\"a\":3}", 0);
  rejects("no dtype", one(R"("shape":[2],"data_offsets":[0,8])"), 8);
  rejects("no shape", one(R"("dtype":"F32","data_offsets":[0,8])"), 8);
  rejects("no data_offsets", one(R"("dtype":"F32","shape":[2])"), 8);
  rejects("\"a\"", one(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"), 8);
  rejects("F33", one(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"), 8);
  rejects("a string", one(R"("dtype":3,"shape":[2],"data_offsets":[0,8])"), 8);
  rejects("list of integers", one(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), 8);
  rejects("integers from 0", one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8);
  rejects("integers from 0", one(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 8);
  rejects("integers from 0", one(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), 8);
  rejects("integers from 0", one(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8])"), 8);
  rejects("more than 2^63", one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"), 8);
  rejects("12 bytes for F32 [3]", one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8);
  rejects("within the 8 bytes", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), 8);
  rejects("within the 8 bytes", one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8);
  rejects("within the 7 bytes", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 7);
  rejects("8 bytes of data", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 9);
  rejects("only the fields", one(R"("dtype":"F32","shape":[2],"offsets":[0,8])"), 8);
  rejects("field twice", one(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), 8);
  rejects("field twice", one(R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])"), 8);
  rejects("a string", R"({"__metadata__":{"k":1}})", 0);
  rejects("field twice", R"({"__metadata__":{"k":"1","k":"2"}})", 0);
  rejects("name twice", R"({"__metadata__":{},"__metadata__":{}})", 0);
}

TEST_CASE("tensors may neither overlap nor leave holes nor share a name") {
  const auto two = [](const char* name, const char* first, const char* second) {
    return std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + first + "},\"" + name +
           R"(":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  CHECK(fault_of_header(two("b", "[4,8]", "[0,4]"), 8).empty());
  CHECK(parse_tensors(file_of(two("b", "[4,8]", "[0,4]"), 8)).tensors.at(0).name == "b");
  CHECK(contains(fault_of_header(two("a", "[0,4]", "[4,8]"), 8), "name twice"));
  CHECK(contains(fault_of_header(two("b", "[0,4]", "[2,6]"), 6), "overlap"));
  CHECK(contains(fault_of_header(two("b", "[0,4]", "[0,4]"), 4), "overlap"));
  CHECK(contains(fault_of_header(two("b", "[0,4]", "[5,9]"), 9), "hole"));
  CHECK(contains(fault_of_header(two("b", "[1,5]", "[5,9]"), 9), "hole"));
}

TEST_CASE("a damaged header is named by its byte, in no library's words") {
  const std::string text = fault(file_of("{\"a\": {\"dtype\" \xff", 0));
  CHECK(contains(text, "needed valid JSON, got an error at byte "));
  CHECK_FALSE(contains(text, "parse"));
}

TEST_CASE("short and missing safetensors files are refused") {
  CHECK(contains(fault(""), "at least 8 bytes"));
  CHECK(contains(fault("1234567"), "at least 8 bytes"));
  CHECK(contains(fault(std::string(8, '\xff')), "which is no length of a header"));
  CHECK(contains(fault(file_of("{}", 0).substr(0, 9)), "cut short"));
  CHECK_THROWS_WITH_AS(SafetensorsFile("/nonexistent/x.safetensors"),
                       doctest::Contains("/nonexistent/x.safetensors"), DataError);
  CHECK_THROWS_AS(SafetensorsFile{fs::temp_directory_path()}, DataError);
  const ScratchDirectory scratch;
  std::ofstream(scratch.path / "empty").flush();
  CHECK_THROWS_AS(SafetensorsFile(scratch.path / "empty"), DataError);
}

TEST_CASE("a missing or different tensor is named with the nearest one") {
  const std::string file =
      file_of(R"({"decoder.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  const SafetensorsView view = parse_tensors(file);
  CHECK_THROWS_WITH_AS(view.at("decoder.wieght"), doctest::Contains("did you mean \"decoder.weight\"?"),
                       DataError);
  CHECK_THROWS_WITH_AS(view.at("decoder.weight", SafetensorsDtype::f32, std::vector<std::int64_t>{1, 2}),
                       doctest::Contains("needed F32 [1, 2], got F32 [2]"), DataError);
  CHECK_THROWS_WITH_AS(view.metadata_at("width"), doctest::Contains("\"width\""), DataError);
}

TEST_CASE("writing refuses what a reader would refuse") {
  const ScratchDirectory scratch;
  const std::vector<float> values{1, 2};
  const auto write = [&](std::vector<SafetensorsTensor> tensors) {
    write_safetensors(scratch.path / "w", tensors, {});
  };
  const auto good = tensor_of("a", SafetensorsDtype::f32, {2}, values);
  CHECK_THROWS_AS(write({good, good}), InvalidArgument);
  CHECK_THROWS_AS(write({tensor_of("", SafetensorsDtype::f32, {2}, values)}), InvalidArgument);
  CHECK_THROWS_AS(write({tensor_of("__metadata__", SafetensorsDtype::f32, {2}, values)}), InvalidArgument);
  CHECK_THROWS_AS(write({tensor_of("a", SafetensorsDtype::f32, {3}, values)}), InvalidArgument);
  CHECK_THROWS_AS(write({tensor_of("a", SafetensorsDtype::f32, {-1, -2}, values)}), InvalidArgument);
  CHECK_THROWS_AS(write({tensor_of("\xff", SafetensorsDtype::f32, {2}, values)}), InvalidArgument);
  CHECK(fs::is_empty(scratch.path));
}

TEST_CASE("mutated safetensors files are parsed or refused") {
  const std::string good = file_of(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I8","shape":[],"data_offsets":[8,9]}})",
      9);
  REQUIRE(fault(good).empty());
  std::mt19937_64 random(7);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bad = good;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int edit = 0; edit < edits; ++edit) {
      const std::size_t at = random() % bad.size();
      switch (random() % 3) {
        case 0:
          bad[at] = static_cast<char>(random());
          break;
        case 1:
          bad[at] = "{}[]:,\"0129-.eE\\u"[random() % 17];
          break;
        default:
          bad.resize(std::max<std::size_t>(at, 1));
      }
    }
    refused += fault(bad).empty() ? 0 : 1;
  }
  CHECK(refused > 1000);
  CHECK(refused < 20000);
}
