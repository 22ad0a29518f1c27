// SPDX-License-Identifier: Apache-2.0
// Plans without data, and for a GPU that is not there, in builds with and without CUDA.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/train/learn/planning/plan.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "support.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

using test::contains;
using test::ScratchDirectory;

constexpr int64_t kMemory = int64_t{8} << 30;

Config config_of(const ScratchDirectory& scratch, const char* device, DType precision) {
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 9, 14, true));
  config.run.device = device;
  config.run.threads = 2;
  config.precision = precision;
  config.model.width = 64;
  config.model.blocks = 3;
  config.train.batch = 4;
  return config;
}

TEST_CASE("a plan from the sizes of a mesh is the plan of a packed file of these sizes") {
  const ScratchDirectory scratch;
  for (const char* device : {"cpu", "cuda"}) {
    for (const DType precision : {DType::f32, DType::f16}) {
      Config config = config_of(scratch, device, precision);
      const Dataset dataset = Dataset::open(config.data.path);
      const Dataset::MeshSizes largest = dataset.largest_mesh("train");
      CAPTURE(device);
      CAPTURE(name_of(precision));
      const MemoryPlan packed = plan_memory(config, {.device_memory = kMemory});
      config.data.path.clear();
      const PlannedMesh mesh{.nodes = largest.nodes, .edges = largest.edges, .dim = 2, .fields = {}};
      const MemoryPlan sizes = plan_memory(config, {.device_memory = kMemory, .mesh = mesh});
      CHECK(sizes.device == packed.device);
      CHECK(packed.budget.parameters > 0);
      CHECK(to_text(sizes.budget) == to_text(packed.budget));
      CHECK(sizes.step.by_tag == packed.step.by_tag);
      CHECK(sizes.step.reserved == packed.step.reserved);
      REQUIRE(sizes.choices.size() == packed.choices.size());
      for (size_t i = 0; i < sizes.choices.size(); ++i)
        CHECK(sizes.choices[i].predicted.reserved == packed.choices[i].predicted.reserved);
      REQUIRE(sizes.notes.size() == packed.notes.size() + 1);
      CHECK(contains(sizes.notes.front(), "fields on nodes [components]: velocity [2]"));
      CHECK(sizes.time.has_value() == (config.run.device == "cuda"));
    }
  }
}

TEST_CASE("a plan for a GPU runs the kernels' host code, in a build without CUDA, too") {
  const ScratchDirectory scratch;
  Config config = config_of(scratch, "cuda", DType::f16);
  const PlanOptions options{.device_memory = kMemory, .mesh = PlannedMesh{.nodes = 2000, .edges = 12000}};
  const MemoryPlan fused = plan_memory(config, options);
  CHECK(fused.device.kind == DeviceKind::cuda);
  CHECK(fused.notes.size() == 1);
  // The fused kernels save nothing but their inputs, and cuBLASLt is not called.
  config.model.width = 96;
  const MemoryPlan general = plan_memory(config, options);
  CHECK(general.step.of(Tag::activations) > 3 * fused.step.of(Tag::activations));
  CHECK(general.step.of(Tag::workspace) > int64_t{8} << 20);
  CHECK(std::any_of(general.notes.begin(), general.notes.end(), [](const std::string& note) {
    return contains(note, "edge update forward runs op by op") && contains(note, "hidden width 96");
  }));
  CHECK(general.time->expected_ms > fused.time->expected_ms);
}

TEST_CASE("a mesh that cannot be is refused, and values of planned data cannot be read") {
  const ScratchDirectory scratch;
  const Config config = config_of(scratch, "cpu", DType::f32);
  const auto plan = [&](PlannedMesh mesh, PlanMode mode = PlanMode::predicted) {
    plan_memory(config, {.mode = mode, .device_memory = kMemory, .mesh = mesh});
  };
  CHECK_THROWS_AS(plan({.nodes = 0, .edges = 1}), InvalidArgument);
  CHECK_THROWS_AS(plan({.nodes = 1, .edges = INT32_MAX}), InvalidArgument);
  CHECK_THROWS_AS(plan({.nodes = 1, .edges = 1, .dim = 4}), InvalidArgument);
  CHECK_THROWS_AS(plan({.nodes = 9, .edges = 9}, PlanMode::measured), InvalidArgument);
  const Dataset sizes = Dataset::of_sizes(9, 12, 2, {{.name = "velocity", .components = 2}}, 5, "train");
  CHECK(sizes.largest_mesh("train").edges == 12);
  CHECK(sizes.frames("train", 0) == 5);
  CHECK_THROWS_AS(sizes.trajectory("train", 0), DataError);
}

TEST_CASE("the modelled work is that of the standard model, counted by hand") {
  constexpr double kGiga = 1e9;
  Config config;
  config.precision = DType::f16;
  const ModelSizes sizes{.node_inputs = 11, .edge_inputs = {3}, .edge_set_names = {"mesh"}, .outputs = 2};
  const std::vector<LaunchWork> work =
      work_of_step(config, sizes, {.nodes = 166'624, .edges = 999'744}, true);
  const auto of = [&](std::string_view name) {
    const auto found =
        std::find_if(work.begin(), work.end(), [&](const LaunchWork& one) { return one.name == name; });
    REQUIRE(found != work.end());
    return *found;
  };
  // 3 matrices of 128 x 128, 2 FLOPs each, for each edge and block; rows of 256 bytes: e, S, e', two indices.
  CHECK(of("edge_forward").flops / config.model.blocks ==
        doctest::Approx(999'744.0 * 3 * 2 * 128 * 128).epsilon(1e-12));
  CHECK(of("edge_forward").bytes / config.model.blocks ==
        doctest::Approx(999'744.0 * (3 * 256 + 8) + 2 * 166'624.0 * 256).epsilon(1e-12));
  CHECK(of("edge_forward").launches == config.model.blocks);
  CHECK(of("edge_backward").flops == doctest::Approx(2 * of("edge_forward").flops));
  // Nodes: 4 matrices in each block, and 2 in all but the last for the next one's node terms.
  CHECK(of("node_terms_forward").launches == 1);
  CHECK(of("mlp_forward").flops ==
        doctest::Approx(166'624.0 * (15 * 4 + 14 * 2) * 2 * 128 * 128).epsilon(1e-12));
  CHECK(of("mlp_forward").bytes == doctest::Approx(166'624.0 * (15 * 3 + 14 * 2) * 256).epsilon(1e-12));
  // The cycle model's 15 469 cycles for eight tiles of 32 edges, on 132 multiprocessors of 4096 FLOPs a
  // cycle.
  const double hertz = device_peaks("h200").flops_per_s_16 / (132 * 4096);
  const StepTime edges_alone = modelled_time({of("edge_forward")}, device_peaks("h200"), DType::f16);
  const double launches_ms = 2.5e-3 * static_cast<double>(config.model.blocks);
  CHECK(edges_alone.expected_ms - launches_ms ==
        doctest::Approx(1e3 * config.model.blocks * 999'744.0 / (256 * 132) * 14'959 / hertz).epsilon(1e-6));
  double flops = 0;
  for (const LaunchWork& one : work) flops += one.flops;
  CHECK(flops / kGiga > 15 * 4 * 120.0);  // backward is three times forward
  CHECK(flops / kGiga < 15 * 4 * 150.0);
  const StepTime h200 = modelled_time(work, device_peaks("h200"), DType::f16);
  const StepTime a100 = modelled_time(work, device_peaks("a100"), DType::f16);
  CHECK(h200.at_peaks_ms > 15.0);
  CHECK(h200.at_peaks_ms < h200.expected_ms);
  CHECK(h200.expected_ms < 40.0);
  const auto part = [](const StepTime& time, StepPart which) {
    return time.expected_ms_of[static_cast<size_t>(which)];
  };
  CHECK(part(h200, StepPart::forward) > 4.0);
  CHECK(part(h200, StepPart::backward) > 3.0 * part(h200, StepPart::forward));
  CHECK(part(h200, StepPart::recomputation) == 0.0);
  CHECK(part(h200, StepPart::forward) + part(h200, StepPart::backward) + part(h200, StepPart::optimizer) ==
        doctest::Approx(h200.expected_ms).epsilon(1e-12));
  CHECK(a100.at_peaks_ms > 2.0 * h200.at_peaks_ms);
  CHECK_THROWS_AS(device_peaks("b300"), InvalidArgument);
  for (const bool fused : {true, false})
    for (const LaunchWork& launch : work_of_step(config, sizes, {.nodes = 166'624, .edges = 999'744}, fused))
      CHECK_MESSAGE(launch.launches == std::floor(launch.launches), launch.name);
  config.recompute.mode = RecomputeMode::block;
  const StepTime recomputed =
      modelled_time(work_of_step(config, sizes, {.nodes = 166'624, .edges = 999'744}, true),
                    device_peaks("h200"), DType::f16);
  CHECK(recomputed.expected_ms > h200.expected_ms);
  CHECK(part(recomputed, StepPart::recomputation) > 0.9 * part(h200, StepPart::forward));
  CHECK(part(recomputed, StepPart::backward) == part(h200, StepPart::backward));
}

TEST_CASE("meshgrad plan --nodes --edges plans for a GPU, with time beside memory") {
  const ScratchDirectory scratch;
  Config config = config_of(scratch, "cuda", DType::f16);
  config.data.path.clear();
  const std::string file = test::write_config(scratch.path, config);
  const auto plan = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", file});
    return test::run_meshgrad(words);
  };
  const std::vector<std::string> sizes{"--nodes", "150000", "--edges", "900000", "--device-memory", "80GiB"};
  const test::Outcome text = plan(sizes);
  CAPTURE(text.err);
  REQUIRE(text.code == 0);
  for (const char* part : {"static plan for cuda:0: a step of batch 4 fits", "time, modelled (no GPU was",
                           "expected: forward ", ", backward ", ", optimizer ",
                           "  for a batch of 4, which has 600000 nodes and 3600000 directed edges in all",
                           "note: a mesh of 150000 nodes and 900000 directed edges", "modelled ms"})
    CHECK_MESSAGE(contains(text.out, part), part);
  std::vector<std::string> more = sizes;
  more.insert(more.end(), {"--json", "--gpu", "a100", "--dim", "3", "--field", "velocity=3"});
  const test::Outcome json = plan(more);
  REQUIRE(json.code == 0);
  const auto fields = nlohmann::json::parse(json.out);
  CHECK(fields["time"]["source"] == "modelled");
  CHECK(fields["time"]["expected_ms"].get<double>() > fields["time"]["at_peaks_ms"].get<double>());
  const nlohmann::json& parts = fields["time"]["expected_ms_of"];
  CHECK(parts["forward"].get<double>() + parts["backward"].get<double>() + parts["optimizer"].get<double>() ==
        doctest::Approx(fields["time"]["expected_ms"].get<double>()));
  double expected_ms = 0.0;
  for (const nlohmann::json& launch : fields["launches"]) {
    expected_ms += launch["expected_ms"].get<double>();
    CHECK(launch["expected_ms"].get<double>() > launch["at_peaks_ms"].get<double>());
  }
  CHECK(expected_ms == doctest::Approx(fields["time"]["expected_ms"].get<double>()));
  CHECK(fields["peaks"] == "a100");
  CHECK(fields["choices"][0]["time"]["source"] == "modelled");
  CHECK_FALSE(contains(text.out, "node_terms_backward"));
  more = sizes;
  more.emplace_back("--launches");
  const test::Outcome launches = plan(more);
  REQUIRE(launches.code == 0);
  CHECK(launches.out.starts_with(text.out));
  for (const char* line : {"\nmodelled launches ", "\n  node_terms_backward ", "\nbackward ", "\nstep "})
    CHECK_MESSAGE(contains(launches.out, line), line);
  more.insert(more.end(), {"--set", "run.device=cpu"});
  const test::Outcome on_cpu = plan(more);
  CHECK(on_cpu.code == 2);
  CHECK(contains(on_cpu.err, "[run.device] needed \"cuda\" with --launches, got \"cpu\""));
  more = sizes;
  more.insert(more.end(), {"--launches", "--ranks", "2"});
  CHECK(contains(plan(more).err, "[--launches] needed a plan for one rank, got --ranks 2"));
  const test::Outcome alone = plan({"--nodes", "5"});
  CHECK(alone.code == 2);
  CHECK(contains(alone.err, "--edges"));
  const test::Outcome field = plan({"--nodes", "5", "--edges", "4", "--field", "velocity"});
  CHECK(field.code == 2);
  CHECK(contains(field.err, "[--field] needed NAME=COMPONENTS"));
}

}  // namespace
}  // namespace meshgrad
