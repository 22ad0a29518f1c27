// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/run/metrics_log.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;

namespace {

MetricsRow row(std::int64_t step, double loss) { return {{"step", step}, {"loss", loss}}; }

}  // namespace

TEST_CASE("a line is flat JSON in the order given") {
  CHECK(metrics_line({{"step", std::int64_t{7}},
                      {"loss", 0.1},
                      {"skipped", true},
                      {"phase", std::string("a \"b\"\n")},
                      {"nan", std::nan("")},
                      {"inf", std::numeric_limits<double>::infinity()}}) ==
        R"({"step": 7, "loss": 0.1, "skipped": true, "phase": "a \"b\"\n", "nan": null, "inf": null})");
}

TEST_CASE("doubles read back bit for bit") {
  const ScratchDirectory scratch;
  std::mt19937_64 random(3);
  std::vector<double> values{0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 1e22, 123456789012345680.0};
  while (values.size() < 500) {
    const std::uint64_t bits = random();
    double value;
    std::memcpy(&value, &bits, sizeof value);
    if (std::isfinite(value)) values.push_back(value);
  }
  MetricsLog log = MetricsLog::create(scratch.path / "m.jsonl");
  for (std::size_t i = 0; i < values.size(); ++i) log.write(row(static_cast<std::int64_t>(i), values[i]));
  const auto rows =
      read_metrics(scratch.path / "m.jsonl");  // while the log is open: each line is there at once
  REQUIRE(rows.size() == values.size());
  int different = 0;
  for (std::size_t i = 0; i < values.size(); ++i) different += rows[i].at("loss") == values[i] ? 0 : 1;
  CHECK(different == 0);
}

TEST_CASE("resuming drops repeated and incomplete lines") {
  const ScratchDirectory scratch;
  const std::filesystem::path path = scratch.path / "m.jsonl";
  {
    MetricsLog log = MetricsLog::create(path);
    for (std::int64_t step = 1; step <= 5; ++step) log.write(row(step, 0.5));
  }
  const std::string all = read_text(path);
  {
    MetricsLog log = MetricsLog::resume(path, 3);
    for (std::int64_t step = 4; step <= 5; ++step) log.write(row(step, 0.5));
  }
  CHECK(read_text(path) == all);
  std::ofstream(path, std::ios::app) << "{\"step\": 6, \"lo";
  CHECK(read_metrics(path).size() == 5);
  MetricsLog::resume(path, 100).write(row(6, 0.25));
  CHECK(read_text(path) == all + "{\"step\": 6, \"loss\": 0.25}\n");
  MetricsLog::resume(scratch.path / "new.jsonl", 0).write(row(1, 2));
  CHECK(read_text(scratch.path / "new.jsonl") == "{\"step\": 1, \"loss\": 2}\n");
  MetricsLog::create(path);
  CHECK(read_text(path).empty());
}

TEST_CASE("a damaged line of the log loses only that line") {
  const ScratchDirectory scratch;
  const std::filesystem::path path = scratch.path / "m.jsonl";
  std::ofstream(path) << R"({"step": 1, "loss": 2}
# note
{"step": "one"}
[1]
{"step": 2, "loss": 1}
{"step": 3, "loss": 1}
nonsense after the end
)";
  std::int64_t damaged = 0;
  CHECK(read_metrics(path, &damaged).size() == 3);
  CHECK(damaged == 4);
  MetricsLog log = MetricsLog::resume(path, 2);
  CHECK(log.damaged_lines() == 3);
  log.write(row(3, 0.5));
  CHECK(read_text(path) ==
        "{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"loss\": 1}\n{\"step\": 3, \"loss\": 0.5}\n");
  CHECK(read_metrics(path, &damaged).size() == 3);
  CHECK(damaged == 0);
}

TEST_CASE("reading: null is NaN, booleans are numbers") {
  const ScratchDirectory scratch;
  const std::filesystem::path path = scratch.path / "m.jsonl";
  std::ofstream(path) << "{\"step\": 1, \"loss\": null, \"ok\": true, \"phase\": \"x\"}\n";
  const auto rows = read_metrics(path);
  REQUIRE(rows.size() == 1);
  CHECK(std::isnan(rows[0].at("loss")));
  CHECK(rows[0].at("ok") == 1);
  CHECK_FALSE(rows[0].contains("phase"));
  CHECK_THROWS_AS(read_metrics(scratch.path / "absent"), DataError);
}

TEST_CASE("a log that cannot be written is refused") {
  const ScratchDirectory scratch;
  CHECK_THROWS_WITH_AS(MetricsLog::create(scratch.path / "absent" / "m"), doctest::Contains("fix: "),
                       DataError);
  MetricsLog log = MetricsLog::create(scratch.path / "m");
  CHECK_THROWS_AS(log.write({{"loss", 1.0}}), InvalidArgument);
  CHECK_THROWS_AS(log.write({{"step", 1.0}}), InvalidArgument);
  CHECK_THROWS_WITH_AS(AppendFile("/dev/full", 0), doctest::Contains("/dev/full"), DataError);
}
