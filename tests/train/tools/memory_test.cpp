// SPDX-License-Identifier: Apache-2.0
// `meshgrad memory replay`: what it prints, and its errors.
#include <doctest/doctest.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/train/tools/extras/replay/replay.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "train/process.h"

namespace meshgrad {
namespace {

nlohmann::json replay_json(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"memory", "replay"});
  arguments.push_back("--json");
  const test::Outcome outcome = test::run_meshgrad(arguments);
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  return nlohmann::json::parse(outcome.out);
}

TEST_CASE("the command prints an object a policy") {
  const test::ScratchDirectory scratch;
  const std::string path = (scratch.path / "trace.txt").string();
  std::ofstream(path) << "s 0\na 0 16777216\nf 0\na 1 33554432\n";
  const nlohmann::json all = replay_json({path});
  REQUIRE(all.size() == replay_policies().size());
  CHECK(all[0]["policy"] == "default");
  for (const nlohmann::json& one : all) {
    CAPTURE(one.dump());
    CHECK(one["trace"] == path);
    CHECK(one["peak_requested"] == 32 * kMiB);
    CHECK(one["peak_reserved"].get<int64_t>() >= 32 * kMiB);
    CHECK(one["min_capacity"].get<int64_t>() >= 32 * kMiB);
    CHECK(one["driver_calls"].get<int64_t>() >= 1);
    CHECK(one["flushes_at_1_05"].is_number_integer());
    CHECK(one["driver_calls_at_1_05"].is_number_integer());
    CHECK(one["oom_at_1_05"].is_boolean());
    CHECK(one["ns_per_operation"].get<double>() > 0);
    CHECK_FALSE(one.contains("capacity"));
  }
  const nlohmann::json native = replay_json(
      {path, path, "--policy", "pytorch-native", "--policy=best-fit", "--scale", "2", "--capacity", "70MiB"});
  REQUIRE(native.size() == 4);
  CHECK(native[1]["policy"] == "best-fit");
  CHECK(native[2]["policy"] == "pytorch-native");
  CHECK(native[2]["peak_requested"] == 64 * kMiB);
  CHECK(native[2]["peak_reserved"] == 96 * kMiB);
  CHECK(native[2]["ratio"] == 1.5);
  CHECK(native[2]["min_capacity"] == 64 * kMiB);
  CHECK(native[2]["min_capacity_ratio"] == 1.0);
  CHECK(native[2]["flushes_at_1_05"] == 1);
  CHECK(native[2]["oom_at_1_05"] == false);
  CHECK(native[2]["capacity"] == 70 * kMiB);
  CHECK(native[2]["completes_at_capacity"] == true);
  CHECK(native[2]["flushes_at_capacity"] == 1);
  CHECK(native[2]["driver_calls_at_capacity"] == 3);
  CHECK(native[2]["peak_reserved_at_capacity"] == 64 * kMiB);
  CHECK(replay_json({path, "--capacity", "1048576", "--policy", "first-fit"})[0]["completes_at_capacity"] ==
        false);

  const test::Outcome text = test::run_meshgrad({"memory", "replay", path, "--capacity", "70MiB"});
  CHECK(text.code == 0);
  CHECK(text.out.find("2 allocations, 1 step, 1 stream, peak requested 32.0 MiB") != std::string::npos);
  for (const ReplayPolicy& policy : replay_policies()) CHECK(text.out.find(policy.name) != std::string::npos);
  CHECK(text.out.find(" 70MiB ") != std::string::npos);
}

TEST_CASE("the command's errors") {
  const test::ScratchDirectory scratch;
  const std::string path = (scratch.path / "trace.txt").string();
  std::ofstream(path) << "a 0 16\nf 1\n";
  const auto check_fails = [](std::vector<std::string> arguments, int code, const std::string& part) {
    CAPTURE(part);
    arguments.insert(arguments.begin(), {"memory", "replay"});
    const test::Outcome outcome = test::run_meshgrad(arguments);
    CHECK(outcome.code == code);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.find(part) != std::string::npos);
  };
  check_fails({path}, 1, path + ":2] needed the free of a block that is in use");
  check_fails({path + "x"}, 1, "No such file");
  check_fails({path, "--policy", "best-fitt"}, 2, "did you mean \"best-fit\"?");
  check_fails({path, "--capacity", "much"}, 2, "[--capacity] needed a size, got \"much\"");
  check_fails({path, "--capacity", "0"}, 2, "[--capacity] needed a size");
  check_fails({path, "--scale", "0"}, 2, "[--scale] needed a factor");
  check_fails({path, "--scale", "nan"}, 2, "[--scale] needed a factor");
  check_fails({}, 2, "TRACE");
}

}  // namespace
}  // namespace meshgrad
