// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>

#include <doctest/doctest.h>

namespace meshgrad {
namespace {

TEST_CASE("errors read [where] needed, got; fix") {
  CHECK(
      std::string(
          data_error("train.tfrecord: record 3", "a CRC of 0x1234", "0x9876", "download it again").what()) ==
      "[train.tfrecord: record 3] needed a CRC of 0x1234, got 0x9876; fix: download it again");
  CHECK(std::string(invalid_argument("linear.forward: x", "f32[9, 4]", "f32[9, 5]").what()) ==
        "[linear.forward: x] needed f32[9, 4], got f32[9, 5]");
}

TEST_CASE("every kind of error is caught as itself and as Error") {
  const auto kind_of = [](auto&& make) {
    try {
      throw make();
    } catch (const Error& error) {
      return error.kind();
    }
  };
  CHECK(kind_of([] { return invalid_argument("a", "b", "c"); }) == ErrorKind::invalid_argument);
  CHECK(kind_of([] { return config_error("a", "b", "c", "d"); }) == ErrorKind::config);
  CHECK(kind_of([] { return data_error("a", "b", "c", "d"); }) == ErrorKind::data);
  CHECK(kind_of([] { return device_error("a", "b", "c", "d"); }) == ErrorKind::device);
  CHECK(kind_of([] { return internal_error("a"); }) == ErrorKind::internal);
  CHECK(kind_of([] { return OutOfMemory("a"); }) == ErrorKind::out_of_memory);
  CHECK_THROWS_AS(throw config_error("a", "b", "c", "d"), ConfigError);
  CHECK_THROWS_AS(throw data_error("a", "b", "c", "d"), DataError);
  CHECK_THROWS_AS(throw device_error("a", "b", "c", "d"), DeviceError);
  CHECK_THROWS_AS(throw invalid_argument("a", "b", "c"), std::runtime_error);
}

TEST_CASE("an internal error names its source line") {
  const std::string text = internal_error("two blocks overlap").what();
  CHECK(text.find("two blocks overlap") == 0);
  CHECK(text.find("error_test.cpp:") != std::string::npos);
  CHECK(text.find("please report it") != std::string::npos);
  CHECK_NOTHROW(check_internal(true, "fine"));
  CHECK_THROWS_AS(check_internal(false, "not fine"), InternalError);
}

TEST_CASE("nearest_name suggests what was meant and nothing far-fetched") {
  const std::vector<std::string> keys = {"model.width", "model.blocks", "train.batch", "train.steps", "lr"};
  CHECK(nearest_name("model.widht", keys) == "model.width");
  CHECK(nearest_name("model.block", keys) == "model.blocks");
  CHECK(nearest_name("train.bach", keys) == "train.batch");
  CHECK(nearest_name("model.width", keys) == "model.width");
  CHECK(nearest_name("l", keys) == "lr");
  CHECK(nearest_name("optimizer.beta1", keys) == "");
  CHECK(nearest_name("x", keys) == "");
  CHECK(nearest_name("anything", {}) == "");
  // A third of nine letters: three edits are near, four are not.
  CHECK(nearest_name("abcdefghi", {"abcdefxyz"}) == "abcdefxyz");
  CHECK(nearest_name("abcdefghi", {"abcdewxyz"}) == "");
}

}  // namespace
}  // namespace meshgrad
