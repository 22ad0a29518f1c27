// SPDX-License-Identifier: Apache-2.0
// verify: the engine agrees with values that another framework computed, and says so when it does not.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/extras/reference_values.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "paths.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;

std::string oracle(const std::string& name) { return test::data_file("oracles/") + name + ".safetensors"; }

/// The groups that do not pass, and how many there are in all unless `groups`.
std::string failures(const VerifyReport& report, size_t groups = 7) {
  std::string text = report.groups.size() == groups ? "" : std::to_string(report.groups.size()) + " groups;";
  for (const VerifyGroup& group : report.groups) {
    if (!group.passed()) text += " " + group.name + " (" + group.worst + ")";
    if (group.values == 0) text += " " + group.name + " is empty";
  }
  return text;
}

TEST_CASE("both oracles verify on every path and precision") {
  struct Path {
    bool fused, keep_hidden;
  };
  for (const std::string name : {"mgn_small", "mgn_batched"}) {
    for (const DType precision : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      for (const int threads : {1, 2}) {
        for (const Path path : {Path{true, true}, Path{true, false}, Path{false, true}}) {
          CAPTURE(name);
          CAPTURE(name_of(precision));
          CAPTURE(threads);
          CAPTURE(path.fused);
          CAPTURE(path.keep_hidden);
          Runtime runtime({.device = {}, .threads = threads});
          const VerifyReport report = verify(runtime, oracle(name), precision, path.fused, path.keep_hidden);
          CHECK(failures(report, size_of(precision) == 2 ? 5 : 7) == "");  // see tolerances_for
          CHECK(report.passed());
        }
      }
    }
  }
}

TEST_CASE("what was verified is reported") {
  Runtime runtime({.device = {}, .threads = 1});
  const VerifyReport small = verify(runtime, oracle("mgn_small"), DType::f64);
  CHECK(small.nodes == 61);
  CHECK(small.width == 16);
  CHECK(small.blocks == 3);
  CHECK(small.graphs == 1);
  CHECK(small.steps >= 3);
  CHECK(verify(runtime, oracle("mgn_batched"), DType::f64).graphs == 3);

  const test::Outcome outcome = test::run_meshgrad({"verify", oracle("mgn_small"), "--json"});
  REQUIRE(outcome.code == 0);
  const auto json = nlohmann::json::parse(outcome.out);
  CHECK(json["passed"] == true);
  CHECK(json["precision"] == "f64");
  std::vector<std::string> names;
  for (const auto& group : json["groups"]) {
    names.push_back(group["name"]);
    CHECK(group["relative"].get<double>() <= group["tolerance"].get<double>());
  }
  for (const char* name :
       {"prediction", "latents", "loss", "gradients", "gradient norms", "parameters after Adam"})
    CHECK(std::count(names.begin(), names.end(), name) == 1);
}

/// A copy of an oracle in which one value of `tensor` is `by` times the tensor's largest value further.
std::string perturbed(const fs::path& folder, const std::string& tensor, double by) {
  const fs::path path = folder / "perturbed.safetensors";
  bool found = false;
  test::change_tensors(oracle("mgn_small"), path, [&](const std::string& name, std::vector<double>& values) {
    if (name != tensor) return;
    found = true;
    double largest = 0.0;
    for (const double v : values) largest = std::max(largest, std::abs(v));
    values[values.size() / 2] += by * largest;
  });
  REQUIRE(found);
  return path.string();
}

TEST_CASE("one wrong value fails its group and names its tensor") {
  const test::ScratchDirectory scratch;
  const std::pair<const char*, const char*> cases[] = {
      {"out.prediction", "prediction"},
      {"out.edge_latent.2", "latents"},
      {"grad.processor.1.edge_mlp.linear_0.weight", "gradients"},
      {"grad.in.edge_features", "gradients"},
      {"adam.grad_norms", "gradient norms"},
      {"adam.param.node_decoder.linear_2.weight", "parameters after Adam"}};
  for (const auto& [tensor, group] : cases) {
    CAPTURE(tensor);
    const std::string file = perturbed(scratch.path, tensor, 1e-3);
    Runtime runtime({.device = {}, .threads = 1});
    CHECK(failures(verify(runtime, file, DType::f64)) == std::string(" ") + group + " (" + tensor + ")");
  }
  const std::string gradient = "grad.node_encoder.linear_1.bias";
  const test::Outcome outcome = test::run_meshgrad({"verify", perturbed(scratch.path, gradient, 1e-2)});
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.out, "FAILED\n  worst: " + gradient + "\n"));
  CHECK(contains(outcome.out, "not within tolerance"));
}

TEST_CASE("NaN in a reference is a failure") {
  const test::ScratchDirectory scratch;
  const std::string file = perturbed(scratch.path, "out.prediction", std::nan(""));
  Runtime runtime({.device = {}, .threads = 1});
  CHECK(failures(verify(runtime, file, DType::f64)) == " prediction (out.prediction)");
}

TEST_CASE("a file without processor blocks is a DataError") {
  const test::ScratchDirectory scratch;
  const SafetensorsFile file(oracle("mgn_small"));
  std::vector<SafetensorsTensor> tensors = file.view().tensors;
  for (SafetensorsTensor& tensor : tensors)
    if (tensor.name == "param.processor.0.edge_mlp.linear_0.weight") tensor.name = "param.other";
  const std::string path = (scratch.path / "no_blocks.safetensors").string();
  write_safetensors(path, tensors, file.view().metadata);
  const test::Outcome outcome = test::run_meshgrad({"verify", path});
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.err, "no_blocks.safetensors"));
  CHECK(contains(outcome.err, "processor.0.edge_mlp"));
}

TEST_CASE("a cut, foreign or missing file is a DataError") {
  const test::ScratchDirectory scratch;
  const std::string bytes = test::read_text(oracle("mgn_small"));
  const std::string path = (scratch.path / "cut.safetensors").string();
  Runtime runtime({.device = {}, .threads = 1});
  for (const size_t size : {size_t{0}, size_t{7}, size_t{100}, bytes.size() / 2, bytes.size() - 1}) {
    CAPTURE(size);
    std::ofstream(path, std::ios::binary) << bytes.substr(0, size);
    CHECK_THROWS_AS(verify(runtime, path, DType::f64), DataError);
  }
  CHECK(contains(message_of([&] { verify(runtime, path, DType::f64); }), "cut.safetensors"));
  const test::Outcome cut = test::run_meshgrad({"verify", path});
  CHECK(cut.code == 1);
  CHECK(contains(cut.err, "cut.safetensors"));
  const double one = 1.0;
  write_safetensors(path, std::vector<SafetensorsTensor>{
                              {"x", SafetensorsDtype::f64, {1}, std::as_bytes(std::span(&one, 1))}});
  CHECK_THROWS_AS(verify(runtime, path, DType::f64), DataError);
  CHECK_THROWS_AS(verify(runtime, "/nonexistent.safetensors", DType::f64), DataError);
}

}  // namespace
}  // namespace meshgrad
