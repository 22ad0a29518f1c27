// SPDX-License-Identifier: Apache-2.0
// `meshgrad report`: the data on the page, and what is refused. How it looks is for people with a browser.
#include <doctest/doctest.h>
#include <meshgrad/train/embed/predictor.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support.h"
#include "train/fault_case.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

nlohmann::json data_of(const fs::path& page) {
  const std::string text = test::read_text(page);
  const std::string begin = "id=\"data\">";
  const size_t at = text.find(begin);
  REQUIRE(at != std::string::npos);
  const size_t end = text.find("</script>", at);
  return nlohmann::json::parse(text.substr(at + begin.size(), end - at - begin.size()));
}

/// Of a page's base64: little-endian u16.
std::vector<double> page_numbers(const std::string& text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<unsigned> bytes;
  unsigned bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<unsigned>(kDigits.find(c));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(bits >> count & 255);
  }
  std::vector<double> numbers;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) numbers.push_back(bytes[i] + 256.0 * bytes[i + 1]);
  return numbers;
}

std::vector<double> page_values(const nlohmann::json& field) {
  const double low = field["low"], high = field["high"];
  std::vector<double> values = page_numbers(field["values"]);
  for (double& value : values) value = low + (high - low) * value / 65534;
  return values;
}

fs::path train_run(const test::ScratchDirectory& scratch, const std::string& name, int64_t steps) {
  const fs::path data = scratch.path / "waves.mgd";
  Config config = test::small_config(scratch.path, fs::exists(data) ? data : test::pack_waves(scratch.path));
  config.run.dir = (scratch.path / name).string();
  config.train.steps = steps;
  config.train.log_every = 1;
  config.train.validate_every = steps / 2;
  Runtime runtime({.threads = 1});
  TrainOptions options;
  options.trace_step = steps - 1;
  train(runtime, config, options);
  return config.run.dir;
}

}  // namespace

TEST_CASE("a report has the metrics, errors and pictures of its runs") {
  const test::ScratchDirectory scratch;
  const std::string first = train_run(scratch, "first", 6).string();
  const std::string second = train_run(scratch, "<!--<script>", 4).string();
  const std::string page = (scratch.path / "r.html").string();
  const test::Outcome outcome =
      test::run_meshgrad({"report", first, second, "-o", page, "--split", "valid", "--pictures", "3"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const nlohmann::json data = data_of(page);
  REQUIRE(data["runs"].size() == 2);
  const nlohmann::json& run = data["runs"][0];
  CHECK(run["name"] == "first");
  CHECK(run["training"]["step"] == nlohmann::json({1, 2, 3, 4, 5, 6}));
  CHECK(run["training"]["loss"].size() == 6);
  CHECK(run["validation"]["step"] == nlohmann::json({0, 3, 6}));
  CHECK(run["validation"]["valid_baseline"].size() == 3);
  CHECK(run["verdict"]["kind"] == "worse_than_baseline");
  CHECK(test::contains(run["verdict"]["text"].get<std::string>(), "(nothing changes)"));
  const nlohmann::json& memory = run["memory"];
  REQUIRE(memory["step"].size() >= 1);
  int64_t peak = 0;
  for (const auto& [tag, bytes] : memory.items())
    if (tag != "step") peak += bytes.back().get<int64_t>();
  std::map<std::string, double> last;  // of the epochs
  for (const auto& row : read_metrics(fs::path(first) / "metrics.jsonl"))
    if (row.contains("epoch")) last = row;
  CHECK(static_cast<double>(peak) == last.at("memory_peak_bytes"));
  CHECK(memory.contains("optimizer"));
  const nlohmann::json& traced = run["step_memory"];
  CHECK(traced["of"] == 5);
  CHECK(traced["step"].size() == traced["optimizer"].size());
  CHECK(std::ranges::is_sorted(traced["step"].get<std::vector<double>>()));
  CHECK(traced["step"].back().get<double>() <= traced["until"].get<double>());
  const auto activations = traced["activations"].get<std::vector<int64_t>>();
  CHECK(activations.back() == 0);
  CHECK(*std::ranges::max_element(activations) > 10000);
  CHECK(traced["phases"][0][0] == "load batch");
  CHECK(data["tags"][0] == "parameters");
  CHECK(run["evaluation"]["split"] == "valid");
  CHECK(run["evaluation"]["fields"].size() >= 1);
  CHECK(run["evaluation"]["rollouts"].size() >= 1);
  REQUIRE(run["pictures"].size() == 3);
  CHECK(test::contains(run["pictures"][0]["caption"].get<std::string>(), "step 1 of"));
  const nlohmann::json& picture = run["pictures"][2];
  CHECK(test::contains(picture["caption"].get<std::string>(), "of valid.tfrecord"));
  REQUIRE(run["meshes"].size() == 1);
  const std::vector<double> x = page_numbers(run["meshes"][0]["x"]);
  CHECK(x.size() == 49);
  CHECK(x.front() == 0);
  CHECK(x[6] == 65535);
  CHECK(page_numbers(run["meshes"][0]["triangles"]).size() == size_t{3} * 72);
  // The error is of the difference, whose magnitudes are at most those of the two fields.
  const std::vector<double> ours = page_values(picture["prediction"]), truth = page_values(picture["truth"]);
  const std::vector<double> error = page_values(picture["error"]);
  REQUIRE(ours.size() == 49);
  for (size_t i = 0; i < ours.size(); ++i) CHECK(std::abs(ours[i] - truth[i]) <= error[i] + 1e-3);
  CHECK(*std::ranges::max_element(truth) == doctest::Approx(picture["high"].get<double>()));
  CHECK(*std::ranges::max_element(error) == doctest::Approx(picture["largest"].get<double>()));
  CHECK(run["environment"].is_object());
  CHECK(test::contains(run["config"].get<std::string>(), "[train]"));
  CHECK(data["runs"][1]["name"] == "<!--<script>");
}

TEST_CASE("a report without the run's data says why") {
  const test::ScratchDirectory scratch;
  const std::string run = train_run(scratch, "run", 4).string();
  fs::remove(scratch.path / "waves.mgd");
  const std::string page = (scratch.path / "r.html").string();
  CHECK(test::run_meshgrad({"report", run, "-o", page}).code == 0);
  CHECK(test::contains(data_of(page)["runs"][0]["without_evaluation"].get<std::string>(), "waves.mgd"));
  CHECK(test::run_meshgrad({"report", run, "-o", page, "--no-evaluation"}).code == 0);
  CHECK(data_of(page)["runs"][0]["evaluation"].is_null());
  for (const char* const damaged : {"{", "[]", R"({"traceEvents":[{"pid":1}]})"}) {
    std::ofstream(fs::path(run) / "trace-3.json") << damaged;
    CHECK(test::run_meshgrad({"report", run, "-o", page, "--no-evaluation"}).code == 0);
    CHECK(data_of(page)["runs"][0]["step_memory"].is_null());
  }
  test::check_one_error(test::run_meshgrad({"report", (scratch.path / "no").string()}), 2, {"metrics.jsonl"});
}

}  // namespace meshgrad
