// SPDX-License-Identifier: Apache-2.0
// Weights as a file for other frameworks, edited there, and back.
#include <doctest/doctest.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/tools/extras/exported_weights.h>

#include "support.h"
#include "train/process.h"
#include "train/small_run.h"

#include <algorithm>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::ScratchDirectory;

/// A run of two steps and what export writes of it.
struct Exported {
  ScratchDirectory scratch;
  Config config;
  fs::path checkpoint, file, back;
  Runtime runtime = test::make_runtime();

  explicit Exported(const std::function<void(Config&)>& change = {}) {
    config = test::small_config(scratch.path, test::pack_waves(scratch.path));
    config.train.steps = 2;
    config.train.accumulate = 1;
    config.train.validate_every = 0;
    if (change) change(config);
    test::train_here(config);
    checkpoint = fs::path(config.run.dir) / "checkpoints/last.safetensors";
    file = scratch.path / "weights.safetensors";
    back = scratch.path / "back/checkpoints/last.safetensors";
    export_weights(runtime, checkpoint, file);
  }

  nlohmann::ordered_json description() const {
    return nlohmann::ordered_json::parse(SafetensorsFile(file).view().metadata_at("meshgrad"));
  }

  /// The target fields one frame after the first of the test split.
  std::vector<float> next_of(const fs::path& from) {
    const Predictor predictor(runtime, from);
    const TrajectoryView trajectory = predictor.dataset().trajectory("test", 0);
    const int64_t t = 1;
    return predict_next(predictor, trajectory, t, state_at(predictor, trajectory, t));
  }

  std::string import_error(const std::vector<std::string>& settings = {}) {
    try {
      import_exported(runtime, file, settings, back);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_CASE("exported weights come back bit for bit") {
  Exported run;
  const ImportReport report = import_exported(run.runtime, run.file, {}, run.back);
  CHECK(report.width == 16);
  CHECK(report.blocks == 2);
  const SafetensorsFile before(run.checkpoint), exported(run.file), after(run.back);
  size_t weights = 0;
  for (const SafetensorsTensor& tensor : before.view().tensors) {
    if (!tensor.name.starts_with("model.")) continue;
    ++weights;
    const SafetensorsTensor& plain = exported.at(tensor.name.substr(6));
    CHECK(plain.shape == tensor.shape);
    CHECK(std::ranges::equal(plain.bytes, tensor.bytes));
    CHECK(std::ranges::equal(after.at(tensor.name).bytes, tensor.bytes));
  }
  CHECK(exported.view().tensors.size() == weights + 6);
  CHECK(run.next_of(run.back) == run.next_of(run.checkpoint));
  for (const char* const key : {"config", "data", "data_fingerprint"})
    CHECK(after.view().metadata_at(key) == before.view().metadata_at(key));
}

TEST_CASE("an exported file describes what shapes do not show") {
  Exported run([](Config& config) {
    config.model.concat_order = ConcatOrder::edge_sender_receiver;
    config.model.aggregate = AggregateOrder::after_residual;
    config.model.activation = Activation::silu;
  });
  const auto json = run.description();
  CHECK(json.at("node_columns").dump() ==
        R"([{"name":"velocity","width":2},{"name":"node type, one-hot","width":9}])");
  CHECK(json.at("edge_columns").dump() ==
        R"({"mesh":[{"name":"relative position","width":2},{"name":"distance","width":1}]})");
  CHECK(json.at("target_columns").dump() == R"([{"name":"change of velocity","width":2}])");
  CHECK(json.at("edge_mlp").dump() == R"(["edge","sender","receiver"])");
  CHECK(json.at("node_mlp").dump() == R"(["sum","node"])");
  CHECK(json.at("aggregate") == "after_residual");
  CHECK(json.at("activation") == "silu");
  CHECK(json.at("eps") == 1e-5);
  CHECK(json.at("hops") == 1);
  CHECK(json.at("offsets").dump() == "{}");
  const Exported far([](Config& config) { config.data.hops = 2; });
  CHECK(far.description().at("hops") == 2);
  int64_t width = 0;
  for (const auto& group : json.at("node_columns")) width += group.at("width").get<int64_t>();
  CHECK(SafetensorsFile(run.file).at("node_encoder.linear_0.weight").shape ==
        std::vector<int64_t>{16, width});
}

TEST_CASE("an edit of exported weights is in the prediction") {
  Exported run;
  test::change_tensors(run.file, run.file, [](const std::string& name, std::vector<double>& values) {
    if (name == "node_decoder.linear_2.bias") values[1] += 0.25;
  });
  import_exported(run.runtime, run.file, {}, run.back);
  const std::vector<float> before = run.next_of(run.checkpoint), after = run.next_of(run.back);
  const double step = 0.25 * to_f64(SafetensorsFile(run.file).at("normalizer.targets.std"))[1];
  size_t changed = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const double difference = static_cast<double>(after[i]) - static_cast<double>(before[i]);
    if (difference == 0.0) continue;  // a node that keeps the data's value, or the other component
    ++changed;
    CHECK(i % 2 == 1);
    CHECK(difference == doctest::Approx(step).epsilon(1e-5));
  }
  CHECK(changed == 30);
}

TEST_CASE("the average of train.ema is what export writes") {
  const Exported run([](Config& config) { config.train.ema = 0.5; });
  const SafetensorsFile before(run.checkpoint), exported(run.file);
  CHECK(std::ranges::equal(exported.at("node_decoder.linear_2.bias").bytes,
                           before.at("ema.node_decoder.linear_2.bias").bytes));
}

/// Rewrites a file by a function of its tensors and its metadata.
void rewrite_exported(const fs::path& path,
                      const std::function<void(std::map<std::string, SafetensorsTensor>&,
                                               std::map<std::string, std::string>&)>& change) {
  const SafetensorsFile file(path);
  std::map<std::string, SafetensorsTensor> tensors;
  for (const SafetensorsTensor& tensor : file.view().tensors) tensors[tensor.name] = tensor;
  std::map<std::string, std::string> metadata = file.view().metadata;
  change(tensors, metadata);
  std::vector<SafetensorsTensor> list;
  for (auto& [name, tensor] : tensors) {
    tensor.name = name;
    list.push_back(tensor);
  }
  write_safetensors(path, list, metadata);
}

TEST_CASE("edited files that fit no model name what differs") {
  Exported run;
  const std::string original = test::read_text(run.file);
  const auto error_of = [&](const auto& change) {
    std::ofstream(run.file, std::ios::binary) << original;
    rewrite_exported(run.file, change);
    return run.import_error();
  };
  using Tensors = std::map<std::string, SafetensorsTensor>;
  using Metadata = std::map<std::string, std::string>;
  CHECK(contains(error_of([](Tensors& tensors, Metadata&) { tensors.erase("edge_encoder.linear_1.bias"); }),
                 "weights.safetensors] needed tensor edge_encoder.linear_1.bias [16], got none"));
  CHECK(contains(error_of([](Tensors& tensors, Metadata&) {
                   tensors["head.bias"] = tensors.at("node_decoder.linear_2.bias");
                 }),
                 "head.bias] needed no such tensor, as the exported file has none, got [2]"));
  CHECK(contains(error_of([](Tensors& tensors, Metadata&) {
                   tensors.at("edge_encoder.linear_0.weight").shape = {3, 16};
                 }),
                 "edge_encoder.linear_0.weight] needed [16, 3], got [3, 16]"));
  const std::vector<double> far{0.0, 1e300}, small{1.0, 1e-9};
  CHECK(contains(error_of([&](Tensors& tensors, Metadata&) {
                   tensors.at("node_decoder.linear_2.bias").dtype = SafetensorsDtype::f64;
                   tensors.at("node_decoder.linear_2.bias").bytes = std::as_bytes(std::span(far));
                 }),
                 "node_decoder.linear_2.bias] needed finite values, at most 3.4e+38, got 1e+300 at 1"));
  CHECK(contains(error_of([&](Tensors& tensors, Metadata&) {
                   tensors.at("normalizer.targets.std").bytes = std::as_bytes(std::span(small));
                 }),
                 "normalizer.targets.std] needed standard deviations from 1e-8 to 1e150, got 1e-09 at 1"));
  const std::vector<int32_t> integers{0, 1};
  CHECK(contains(error_of([&](Tensors& tensors, Metadata&) {
                   tensors.at("node_decoder.linear_2.bias").dtype = SafetensorsDtype::i32;
                   tensors.at("node_decoder.linear_2.bias").bytes = std::as_bytes(std::span(integers));
                 }),
                 "node_decoder.linear_2.bias] needed floating-point values, got I32"));
  const std::vector<float> nan{0.0f, std::nanf("")};
  CHECK(contains(error_of([&](Tensors& tensors, Metadata&) {
                   tensors.at("node_decoder.linear_2.bias").bytes = std::as_bytes(std::span(nan));
                 }),
                 "node_decoder.linear_2.bias] needed finite values, at most 3.4e+38, got nan at 1"));
  const std::vector<double> negative{1.0, -1.0};
  CHECK(contains(error_of([&](Tensors& tensors, Metadata&) {
                   tensors.at("normalizer.targets.std").bytes = std::as_bytes(std::span(negative));
                 }),
                 "normalizer.targets.std] needed standard deviations from 1e-8 to 1e150, got -1 at 1"));
  CHECK(contains(error_of([](Tensors&, Metadata& metadata) { metadata.erase("meshgrad"); }),
                 "metadata=file.metadata()"));
  const auto described = [&](const auto& change) {
    return error_of([&](Tensors&, Metadata& metadata) {
      auto json = nlohmann::ordered_json::parse(metadata.at("meshgrad"));
      change(json);
      metadata["meshgrad"] = json.dump();
    });
  };
  CHECK(contains(
      described([](auto& json) { json["activation"] = "silu"; }),
      "metadata \"meshgrad\": activation] needed \"relu\", as in the file's configuration, got \"silu\""));
  CHECK(contains(described([](auto& json) { json["more"] = 1; }), "more] needed no such entry, got 1"));
  CHECK(contains(run.import_error({"model.blocks=3"}), "blocks] needed 3"));
}

TEST_CASE("a changed description and its key are a model of their own") {
  Exported run;
  rewrite_exported(run.file, [](auto&, auto& metadata) {
    auto json = nlohmann::ordered_json::parse(metadata.at("meshgrad"));
    json["activation"] = "silu";
    metadata["meshgrad"] = json.dump();
  });
  CHECK(run.import_error({"model.activation=silu"}) == "no error");
  CHECK(checkpoint_config(run.back).model.activation == Activation::silu);
}

TEST_CASE("meshgrad export and import, and a run that starts so") {
  Exported run;
  const std::string file = (run.scratch.path / "by_program.safetensors").string();
  const test::Outcome made = test::run_meshgrad({"export", run.config.run.dir, "-o", file});
  CHECK(made.err == "");
  CHECK(contains(made.out, "checkpoints/last.safetensors"));
  CHECK(test::read_text(file) == test::read_text(run.file));
  CHECK(contains(test::run_meshgrad({"export", run.config.run.dir, "-o", file}).err, "--force"));
  CHECK(test::run_meshgrad({"export", run.checkpoint.string(), "-o", file, "--force"}).code == 0);
  const std::string folder = run.back.parent_path().parent_path().string();
  const test::Outcome back =
      test::run_meshgrad({"import", file, "--from", "meshgrad", "-o", run.back.string()});
  CHECK(back.err == "");
  CHECK(contains(back.out, "optimizer   new, at step 0"));
  CHECK(test::run_meshgrad({"evaluate", folder, "--split", "test"}).code == 0);
  CHECK(contains(test::run_meshgrad({"import", file, "--from", "meshgrad", "--check"}).err, "--check"));
  CHECK(contains(test::run_meshgrad({"import", file, "--from", "deepmind", "--check"}).err,
                 "deepmind-research/meshgraphnets"));
  Config next = run.config;
  next.run.dir = (run.scratch.path / "next").string();
  next.train.init = folder;
  CHECK(test::train_here(next).state.step == 2);
}

}  // namespace
}  // namespace meshgrad
