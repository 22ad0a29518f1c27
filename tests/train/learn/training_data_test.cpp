// SPDX-License-Identifier: Apache-2.0
// A model predicts data like those it was trained on; its noise is of the size of what it learns.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>

#include "train/process.h"
#include "train/small_run.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::ScratchDirectory;

namespace {

namespace fs = std::filesystem;

Dataset waves_with_dt(const fs::path& folder, double dt) {
  ConvertOptions options;
  options.input = folder / "waves";
  options.output = folder / "other.mgd";
  options.dt = dt;
  options.units = {{"velocity", "m/s"}};
  convert(options);
  return Dataset::open(options.output);
}

}  // namespace

TEST_CASE("a model is not evaluated on data of another dt") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 1;
  config.train.validate_every = 0;
  test::train_here(config);
  const std::string checkpoint = config.run.dir + "/checkpoints/last.safetensors";
  const std::string other = waves_with_dt(scratch.path, 0.05).path().string();
  const test::Outcome refused =
      test::run_meshgrad({"evaluate", config.run.dir, "--checkpoint", "last", "--data", other});
  CHECK(refused.code == 1);
  CHECK(contains(refused.err, "other.mgd] needed dt = 0.5 s, which " + checkpoint +
                                  " learned changes over, got dt = 0.05 s; fix: use data of that dt"));
  CHECK(test::run_meshgrad({"rollout", config.run.dir, "--data", other, "-o", (scratch.path / "r").string()})
            .code == 1);
  CHECK(test::run_meshgrad({"evaluate", config.run.dir, "--checkpoint", "last"}).code == 0);
  REQUIRE(checkpoint_training_data(checkpoint).has_value());
  CHECK(checkpoint_training_data(checkpoint)->dt == 0.5);
}

TEST_CASE("dt counts where it is known and time matters, offsets always") {
  const ScratchDirectory scratch;
  test::pack_waves(scratch.path);
  const Dataset data = waves_with_dt(scratch.path, 0.1);
  Config config = test::small_config(scratch.path, data.path());
  const auto error = [&](const TrainingData& trained) {
    const auto other = find_other_data("best.safetensors", trained, make_task(config, data), config);
    return other ? fmt::format("needed {}, got {}", other->needed, other->got) : "";
  };
  CHECK(error({0.1, {}}) == "");
  CHECK(error({static_cast<double>(0.1F), {}}) == "");
  CHECK(error({0, {}}) == "");
  CHECK(contains(error({0.2, {}}),
                 "needed dt = 0.2 s, which best.safetensors learned changes over, got dt = 0.1 s"));
  CHECK(contains(
      error({0.1, {{"velocity", {1e7, 0}}}}),
      "needed the offsets velocity 10000000 0 that best.safetensors was trained with, got no offsets"));
  config.task.name = TaskName::steady_field;
  config.data.inputs.clear();  // a steady task reads no target
  CHECK(error({0.2, {}}) == "");
  const TrainingData written{0.25, {{"u", {1.5, -2}}}};
  const TrainingData read = training_data_from_json(to_json(written), "x");
  CHECK(read.dt == written.dt);
  CHECK(read.offsets == written.offsets);
  const auto refusal = [](const char* text) {
    return message_of([&] { training_data_from_json(text, "x"); });
  };
  const std::string needed = "[x] needed a description of the training data, got ";
  CHECK(contains(refusal("{}"), needed + "one without a key that it needs; fix: "));
  CHECK(contains(refusal("{\n{"), needed + "an error in line 2; fix: "));
  CHECK(contains(refusal(R"({"dt": "fast"})"), needed + "a value of another type; fix: "));
}

TEST_CASE("noise far from what changes is reported") {
  const ScratchDirectory scratch;
  test::pack_waves(scratch.path);
  const Dataset data = waves_with_dt(scratch.path, 0.1);
  Config config = test::small_config(scratch.path, data.path());
  const auto warnings = [&](double noise) {
    config.train.noise = noise;
    return test::task_warnings(data, config, "train.noise");
  };
  const FieldStatistics change = data.field_stats("velocity", NodeTypeSet{0, 5}, Quantity::change);
  const double deviation = std::sqrt((change.std[0] * change.std[0] + change.std[1] * change.std[1]) / 2);
  REQUIRE(warnings(2 * deviation).size() == 1);
  CHECK(warnings(2 * deviation)[0] ==
        fmt::format(
            "train.noise is {:.3g} m/s, 2 times the standard deviation of velocity's change over a frame, "
            "{:.3g} m/s; 0.01 to 1 times is usual",
            2 * deviation, deviation));
  CHECK(warnings(0.009 * deviation).size() == 1);
  CHECK(warnings(0.011 * deviation).empty());
  CHECK(warnings(0.99 * deviation).empty());
  CHECK(warnings(0).empty());
  config.data.predict = Prediction::second_change;
  CHECK(contains(warnings(2 * deviation).at(0), "velocity's second change"));
  config.task.name = TaskName::steady_field;
  config.data.inputs.clear();  // a steady task reads no target
  CHECK(warnings(2 * deviation).empty());

  config = test::small_config(scratch.path, data.path());
  config.train.steps = 1;
  config.train.noise = 100;
  const test::Outcome trained = test::run_meshgrad({"train", test::write_config(scratch.path, config)});
  CHECK(trained.code == 0);
  CHECK(contains(trained.err, "warning: train.noise is 100 m/s, "));
}

TEST_CASE("what varies too little to be normalised is reported") {
  const ScratchDirectory scratch;
  const auto pack = [&](float field, float mesh) {
    const fs::path input = scratch.path / "small";
    fs::create_directories(input);
    test::write_meta(input, test::square_meta(6));
    test::SquareRecord record = test::wave_record(5, 6, 0.0);
    for (float& value : record.velocity) value *= field;
    for (float& value : record.mesh_pos) value *= mesh;
    test::write_bytes(input / "train.tfrecord", test::tfrecord_of({record}));
    test::write_bytes(input / "valid.tfrecord", test::tfrecord_of({record}));
    ConvertOptions options;
    options.input = input;
    options.output = scratch.path / "small.mgd";
    convert(options);
    return Dataset::open(options.output);
  };
  Config config = test::small_config(scratch.path, scratch.path / "small.mgd");
  const auto scale_warnings = [&](const Dataset& data) { return test::task_warnings(data, config, "scale"); };
  CHECK(scale_warnings(pack(1, 1)).empty());
  CHECK(scale_warnings(pack(1e-6F, 1e-6F)).empty());
  CHECK(scale_warnings(pack(0, 1)).empty());  // constant
  const std::vector<std::string> mesh = scale_warnings(pack(1, 1e-9F));
  REQUIRE(mesh.size() == 1);
  CHECK(contains(mesh[0], "mesh_pos: distances have a standard deviation of only "));
  const Dataset small = pack(1e-9F, 1);
  REQUIRE(scale_warnings(small).size() == 1);  // the noise is larger than the change
  CHECK(contains(scale_warnings(small)[0], "velocity has a standard deviation of only "));
  config.train.noise = 0;
  REQUIRE(scale_warnings(small).size() == 2);
  CHECK(contains(scale_warnings(small)[1], "velocity's change over a frame has "));

  config.train.steps = 1;
  config.train.validate_every = 0;
  const test::Outcome trained = test::run_meshgrad({"train", test::write_config(scratch.path, config)});
  CHECK(trained.code == 0);
  CHECK(contains(trained.err, "warning: velocity has a standard deviation of only "));
}

TEST_CASE("an evaluation says when the run's data has changed") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 1;
  config.train.validate_every = 0;
  test::train_here(config);
  const auto err = [&](std::vector<std::string> more) {
    std::vector<std::string> words{"evaluate", config.run.dir, "--checkpoint", "last"};
    words.insert(words.end(), more.begin(), more.end());
    const test::Outcome outcome = test::run_meshgrad(words);
    CHECK(outcome.code == 0);
    return outcome.err;
  };
  CHECK_FALSE(contains(err({}), "warning"));
  test::pack_waves(scratch.path, 8);
  CHECK(contains(err({}), "warning: [" + config.data.path + "] has other content than the data that "));
  CHECK_FALSE(contains(err({"--data", config.data.path}), "warning"));

  nlohmann::json meta = test::square_meta(14);
  meta.erase("dt");
  test::write_meta(scratch.path / "waves", meta);
  ConvertOptions options;
  options.input = scratch.path / "waves";
  options.output = scratch.path / "no_dt.mgd";
  convert(options);
  CHECK(contains(err({"--data", options.output.string()}),
                 "warning: [" + options.output.string() + "] has no dt, and " + config.run.dir));
}
