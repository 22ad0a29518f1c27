// SPDX-License-Identifier: Apache-2.0
// Plans without data, and for a GPU that is not there, in builds with and without CUDA.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/gpu_card.h>
#include <meshgrad/train/learn/task/largest_batch.h>
#include <meshgrad/train/tools/program/plan_text.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "support.h"
#include "train/graph_target_case.h"
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

TEST_CASE("a plan from sizes is the plan of such a file") {
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
      CHECK(contains(sizes.notes.front(), "fields [components]: velocity [2]"));
      CHECK(sizes.bound.has_value() == (config.run.device == "cuda"));
    }
  }
}

TEST_CASE("a plan from sizes has targets on graphs") {
  const ScratchDirectory scratch;
  Config config = test::target_config(scratch.path);
  config.model.pool = GraphPool::max;
  const Dataset::MeshSizes largest = Dataset::open(config.data.path).largest_mesh("train");
  const MemoryPlan packed = plan_memory(config, {.device_memory = kMemory});
  PlannedMesh mesh{.nodes = largest.nodes,
                   .edges = largest.edges,
                   .dim = 2,
                   .fields = {{"g", 1}, {"u", 1}, {"drag", 2}},
                   .on_graphs = {"drag"}};
  const auto plan = [&] { return plan_memory(config, {.device_memory = kMemory, .mesh = mesh}); };
  const MemoryPlan sizes = plan();
  CHECK(sizes.budget.parameters == packed.budget.parameters);
  CHECK(sizes.step.by_tag == packed.step.by_tag);
  CHECK(contains(sizes.notes.front(), "u [1], drag [2] on graphs, g [1]; on nodes where nothing else"));
  mesh.on_graphs.clear();
  CHECK(contains(test::message_of(plan), "[model.pool] needed \"mean\" where no target is on graphs"));
  mesh.on_graphs = {"length"};
  config.data.edge_inputs = {"length"};
  CHECK(contains(test::message_of(plan), "[data.edge_inputs] needed fields on edges, got length"));
}

TEST_CASE("a plan for a GPU needs no build with CUDA") {
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
  config.model.width = 64;
  config.model.path = ComputePath::op_by_op;
  const MemoryPlan by_ops = plan_memory(config, options);
  CHECK(by_ops.bound->ms > 2.0 * fused.bound->ms);
  CHECK(by_ops.bound->work.bytes > 2.0 * fused.bound->work.bytes);
}

TEST_CASE("a plan for a named card is of its kernels and memory") {
  using Names = std::vector<std::string>;
  const Names all{"MLP forward", "MLP backward", "edge update forward", "edge update backward"};
  const ScratchDirectory scratch;
  Config config = config_of(scratch, "auto", DType::f16);
  config.model.width = 128;
  config.model.hidden_layers = 2;
  config.train.batch = 1;
  PlanOptions options{.mesh = PlannedMesh{.nodes = 2000, .edges = 12000}};
  const auto planned = [&](const char* gpu) {
    options.gpu = gpu;
    const MemoryPlan plan = plan_memory(config, options);
    CHECK(plan.device.kind == DeviceKind::cuda);
    CHECK(plan.peaks == gpu);
    CHECK(plan.room.total == gpu::card(gpu).memory_bytes);
    return plan;
  };
  for (const char* gpu : {"h100", "h200", "b200", "a100", "rtx4070", "rtx4090", "l40s"}) {
    CAPTURE(gpu);
    const MemoryPlan plan = planned(gpu);
    CHECK(plan.fused == all);
    CHECK(plan.op_by_op.empty());
  }
  const MemoryPlan t4 = planned("t4");
  CHECK(t4.op_by_op == all);
  CHECK(contains(to_text(t4), "not as a fused kernel: compute capability 7.5, less than 8.0"));
  CHECK(contains(
      to_text(t4),
      "\nop by op, all or some calls: MLP forward, MLP backward, edge update forward, edge update "));
  CHECK(contains(to_text(t4), "static plan for t4: a step of batch 1 fits"));
  config.precision = DType::f32;  // a T4's tensor cores have no bf16
  CHECK(contains(planned("t4").choices[2].settings, "precision = \"f16\""));
  CHECK(contains(planned("a100").choices[2].settings, "precision = \"bf16\""));
  CHECK(planned("a100").op_by_op == all);
  config.precision = DType::f16;
  config.model.width = 64;
  CHECK(planned("rtx4070").fused == all);
  options.mode = PlanMode::measured;
  options.mesh.reset();
  CHECK_THROWS_AS(plan_memory(config, options), InvalidArgument);
  options.mode = PlanMode::predicted;
  config.run.device = "cpu";
  CHECK_THROWS_AS(plan_memory(config, options), InvalidArgument);
}

TEST_CASE("a plan of an impossible mesh is refused") {
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

/// The calls of one kernel, in order.
std::vector<Work> works_of(const std::vector<WorkTrace::Call>& calls, std::string_view kernel) {
  std::vector<Work> works;
  for (const WorkTrace::Call& call : calls)
    if (call.kernel == kernel) works.push_back(call.work);
  return works;
}

TEST_CASE("kernel calls of a planned step, counted by hand") {
  const ScratchDirectory scratch;
  Config config = config_of(scratch, "cuda", DType::f16);
  config.model.hidden_layers = 2;
  const double nodes = 2000, edges = 12000, product = 2.0 * 64 * 64, row = 2.0 * 64;
  const StepProbe probe(Dataset::open(config.data.path), {DeviceKind::cuda, 0});
  const BatchShape shape{.nodes = 2000, .edges = 12000};
  const std::vector<WorkTrace::Call> calls = kernel_calls(probe, config, shape);
  // Three blocks. The first block's edges make their node terms, those of the others come from the nodes.
  const std::vector<Work> forward = works_of(calls, "edge_update_forward");
  REQUIRE(forward.size() == 3);
  CHECK(forward[0].flops == (3 * edges + 2 * nodes) * product);
  CHECK(forward[1].flops == 3 * edges * product);
  CHECK(forward[2].flops == 3 * edges * product);
  // e, and e' but in the last block; S, R and the sums; two indices; weights and vectors below 1 %.
  const double rows = 2 * edges * row + 3 * nodes * row + 8 * edges;
  CHECK(forward[1].bytes == doctest::Approx(rows).epsilon(0.02));
  CHECK(forward[1].bytes > rows);
  CHECK(forward[2].bytes == forward[1].bytes - edges * row);
  // A fused backward recomputes what forward did not save.
  const std::vector<Work> backward = works_of(calls, "edge_update_backward");
  REQUIRE(backward.size() == 3);
  for (const Work& work : backward) CHECK(work.flops == 3 * (3 * edges + 2 * nodes) * product);
  // Two encoders, three blocks and the decoder.
  CHECK(works_of(calls, "mlp_forward").size() == 6);
  CHECK(works_of(calls, "mlp_backward").size() == 6);
  CHECK(works_of(calls, "mlp_forward")[2].flops == nodes * (4 + 2) * product);
  CHECK(works_of(calls, "mlp_forward")[4].flops == nodes * 4 * product);
  for (const char* once : {"masked_loss_forward", "masked_loss_backward", "note_loss", "optimizer_update"}) {
    CAPTURE(once);
    CHECK(works_of(calls, once).size() == 1);
  }
  config.graphs = GraphsMode::capture;  // whose capacities are no work
  CHECK(kernel_calls(probe, config, shape).size() == calls.size());
  config.recompute.mode = RecomputeMode::block;
  CHECK(works_of(kernel_calls(probe, config, shape), "edge_update_forward").size() > 3);
}

TEST_CASE("a dry run has the kernel calls of its step") {
  const ScratchDirectory scratch;
  Config config = config_of(scratch, "cpu", DType::f32);
  config.unroll.steps = 2;
  const Dataset dataset = Dataset::open(config.data.path);
  const Task task = make_task(config, dataset);
  const BatchShape shape = task.shape(config.data.train_split, largest_samples(config, task));
  const StepProbe probe(dataset, {});
  for (const RecomputeMode mode : {RecomputeMode::off, RecomputeMode::block}) {
    config.recompute.mode = mode;
    const std::vector<WorkTrace::Call> dry = kernel_calls(probe, config, shape);
    const WorkTrace trace;
    measured_memory(probe, config);  // runs three steps
    const std::vector<WorkTrace::Call>& run = trace.calls();
    REQUIRE(run.size() == 3 * dry.size());
    for (size_t i = 0; i < run.size(); ++i) {
      const WorkTrace::Call& planned = dry[i % dry.size()];
      CAPTURE(planned.kernel);
      CHECK(run[i].kernel == planned.kernel);
      CHECK(run[i].work.flops == planned.work.flops);
      CHECK(run[i].work.bytes == planned.work.bytes);
    }
  }
}

TEST_CASE("the bound of a step follows the GPU's peaks") {
  const ScratchDirectory scratch;
  Config config = config_of(scratch, "cuda", DType::f16);
  config.model.width = 128;
  config.model.blocks = 15;
  config.train.batch = 1;
  const auto planned = [&](const char* gpu) {
    return plan_memory(config, {.device_memory = int64_t{1} << 37,
                                .gpu = gpu,
                                .mesh = PlannedMesh{.nodes = 166'624, .edges = 999'744}});
  };
  const MemoryPlan h200 = planned("h200"), a100 = planned("a100");
  // Three layers of 15 blocks' edges: forward, recomputed in backward, and two gradients.
  const double edges_ms = 1e3 * 4 * 15 * 3 * 999'744.0 * 2 * 128 * 128 / 989e12;
  CHECK(h200.bound->ms > edges_ms);
  CHECK(h200.bound->ms < 2.0 * edges_ms);
  CHECK(h200.bound->work.flops == a100.bound->work.flops);
  CHECK(a100.bound->ms > 2.0 * h200.bound->ms);
  REQUIRE(h200.choices.size() == 4);
  CHECK(h200.choices[3].bound->ms > 1.1 * h200.choices[2].bound->ms);  // with recomputation, in 16 bits
  CHECK(h200.choices[0].bound->ms > h200.choices[2].bound->ms);        // in f32
}

TEST_CASE("meshgrad plan --nodes --edges plans for a GPU") {
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
  for (const char* part :
       {"static plan for cuda:0: a step of batch 4 fits", "time: at least ",
        " at the stated peaks of one h200: a bound, not measured\n",
        "  for a batch of 4, which has 600000 nodes and 3600000 directed edges in all\n", " GFLOP and ",
        "note: a mesh of 150000 nodes and 900000 directed edges", "at least, ms"})
    CHECK_MESSAGE(contains(text.out, part), part);
  std::vector<std::string> more = sizes;
  more.insert(more.end(), {"--json", "--gpu", "a100", "--dim", "3", "--field", "velocity=3"});
  const test::Outcome json = plan(more);
  REQUIRE(json.code == 0);
  const auto fields = nlohmann::json::parse(json.out);
  for (const char* part : {"ms", "flops", "bytes"}) CHECK(fields["bound"][part].get<double>() > 0.0);
  CHECK(fields["peaks"] == "a100");
  CHECK(fields["choices"][2]["bound"]["ms"] == fields["bound"]["ms"]);  // 16 bits, as configured
  const test::Outcome alone = plan({"--nodes", "5"});
  CHECK(alone.code == 2);
  CHECK(contains(alone.err, "--edges"));
  std::vector<std::string> on_graphs = sizes;
  on_graphs.insert(on_graphs.end(),
                   {"--set", R"(data.targets=["velocity", "drag"])", "--field", "drag=2@graph"});
  const test::Outcome drag = plan(on_graphs);
  CHECK_MESSAGE(contains(drag.out, "drag [2] on graphs"), drag.err);
  on_graphs.back() = "velocity=2@graph";
  CHECK(contains(plan(on_graphs).err, "[data.inputs] needed fields that are not targets, got velocity"));
  const test::Outcome field = plan({"--nodes", "5", "--edges", "4", "--field", "velocity"});
  CHECK(field.code == 2);
  CHECK(contains(field.err, "[--field] needed NAME=COMPONENTS"));
}

}  // namespace
}  // namespace meshgrad
