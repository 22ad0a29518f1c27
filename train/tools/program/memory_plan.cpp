// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/planning/measured_step.h>
#include <meshgrad/train/learn/run/batch_order.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/learn/task/graph_inputs.h>
#include <meshgrad/train/learn/task/largest_batch.h>
#include <meshgrad/train/tools/program/memory_plan.h>
#include <meshgrad/train/tools/program/precision_gain.h>
#include <meshgrad/train/tools/program/teacher_plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

bool has_16_bits(const Config& config) {
  return config.precision == DType::f16 || config.precision == DType::bf16;
}

/// What a user can do about a step's memory without a smaller model: two switches, four combinations.
Config with_choice(Config config, bool recompute, bool narrow, Device device) {
  const bool chosen =
      config.recompute.mode != RecomputeMode::off && config.recompute.mode != RecomputeMode::automatic;
  if (!chosen) config.recompute.mode = RecomputeMode::block;
  if (!recompute) {
    config.recompute.mode = RecomputeMode::off;
    config.model.keep_hidden = true;
  }
  if (narrow != has_16_bits(config)) config.precision = narrow ? narrow_precision_for(device) : DType::f32;
  return config;
}

std::string settings_of(const Config& config) {
  std::string text;
  for (const char* key : {"precision", "recompute.mode", "model.keep_hidden"}) {
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", key, toml_literal(*find_key(key), config));
  }
  return text;
}

/// See MemoryPlan::world_edges_per_node.
double world_edges_in_bound(const Task& task, const Config& config, bool has_data) {
  if (config.data.world_radius <= 0.0) return 0.0;
  const double room = config.data.world_edges_per_node;
  if (!has_data) return room;
  const MeshTask& mesh = task.mesh();
  const std::vector<double> counts =
      world_edges_per_node(mesh.dataset, mesh.fields.moving(), mesh.world.options());
  double sum = 0.0;
  for (const double count : counts) sum += std::min(count, room);
  return counts.empty() ? room : sum / static_cast<double>(counts.size());
}

std::optional<StepBound> bound_of(const StepProbe& probe, const Config& config, const MemoryPlan& plan) {
  if (plan.peaks.empty()) return std::nullopt;
  return step_bound(kernel_calls(probe, config, plan.bounded), gpu::card(plan.peaks), config);
}

/// See MemoryPlan::fused; the step's messages say what runs op by op.
void add_kernels(MemoryPlan& plan, const std::vector<WorkTrace::Call>& calls, const Config& config) {
  struct Op {
    std::string_view kernel, name;
  };
  constexpr Op kOps[] = {{"mlp_forward", "MLP forward"},
                         {"mlp_backward", "MLP backward"},
                         {"edge_update_forward", "edge update forward"},
                         {"edge_update_backward", "edge update backward"}};
  for (const Op& op : kOps) {
    const auto called = [&](const WorkTrace::Call& call) { return call.kernel == op.kernel; };
    if (std::none_of(calls.begin(), calls.end(), called)) continue;
    const std::string start = fmt::format("{} runs op by op", op.name);
    const auto tells = [&](const std::string& text) { return text.starts_with(start); };
    const std::vector<std::string>& messages = plan.step.messages;
    const bool all = has_16_bits(config) && std::none_of(messages.begin(), messages.end(), tells);
    (all ? plan.fused : plan.op_by_op).emplace_back(op.name);
  }
  // A model that asks for another sum calls none of them for its edges.
  const bool reduces =
      config.model.name == ModelName::mesh_graph_net && config.model.reduce != EdgeReduce::sum;
  if (reduces) plan.op_by_op.emplace_back("edge update");
}

/// Of what fits, in the configuration's precision if anything does, what takes least time; what recomputes
/// takes more.
void recommend(MemoryPlan& plan) {
  for (const bool other : {false, true}) {
    for (int i = 0; i < 4; ++i) {
      const MemoryPlan::Choice& choice = plan.choices[static_cast<size_t>(i)];
      if (!choice.fits || ((i >= 2) != plan.narrow) != other) continue;
      const auto faster = [&](const MemoryPlan::Choice& than) {
        return choice.bound && than.bound && choice.bound->ms < than.bound->ms;
      };
      if (plan.recommended < 0 || faster(plan.choices[static_cast<size_t>(plan.recommended)]))
        plan.recommended = i;
    }
    if (plan.recommended >= 0) return;
  }
}

void add_choices(MemoryPlan& plan, const StepProbe& probe, const Config& config) {
  constexpr std::string_view kNames[] = {"baseline", "recomputation", "16 bits", "both"};
  for (int i = 0; i < 4; ++i) {
    const Config chosen = with_choice(config, i % 2 == 1, i >= 2, plan.device);
    MemoryPlan::Choice choice{.name = std::string(kNames[i]), .settings = settings_of(chosen)};
    try {
      choice.predicted = probe.predict(chosen);
    } catch (const ConfigError&) {  // no choice keeps within recompute.budget
      choice.possible = false;
      plan.choices.push_back(std::move(choice));
      continue;
    }
    choice.bound = bound_of(probe, chosen, plan);
    int64_t correction = 0;
    if (plan.mode == PlanMode::measured) {
      choice.measured = measured_if_it_fits(probe, chosen);
      if (choice.measured) correction = correction_of(probe, chosen, *choice.measured);
    }
    choice.batch_size = memory_budget(probe, chosen, plan.room, correction).batch_size;
    choice.fits = choice.predicted.reserved + correction <= plan.usable &&
                  (choice.measured || plan.mode == PlanMode::predicted);
    plan.choices.push_back(std::move(choice));
  }
  plan.narrow = has_16_bits(config);
  recommend(plan);
  if (config.precision != DType::f32 || plan.peaks.empty()) return;
  const size_t now = config.recompute.mode == RecomputeMode::off ? 0 : 1;
  if (!plan.choices[now].possible || !plan.choices[now + 2].possible) return;
  const auto of = [&](size_t choice, DType precision) {
    return PrecisionChoice{precision, plan.choices[choice].predicted.reserved, plan.choices[choice].bound};
  };
  const std::string gain =
      precision_gain(of(now, DType::f32), of(now + 2, narrow_precision_for(plan.device)), plan.peaks);
  if (!gain.empty()) plan.notes.push_back(gain);
}

/// Of this machine, not of one to plan for.
bool times_steps(const MemoryPlan& plan, const PlanOptions& options) {
  return options.time && plan.device.kind == DeviceKind::cpu && !options.mesh && options.device_memory == 0;
}

/// Of a step on this CPU, and how many steps a run has.
void add_time(MemoryPlan& plan, const StepProbe& probe, const Config& step, const Task& task) {
  constexpr int kSteps = 10;
  constexpr double kLimit = 30.0;
  try {
    const double seconds = MeasuredStep(probe, step).seconds(kSteps, kLimit);
    if (std::isfinite(seconds)) {
      plan.step_seconds = seconds;
    } else {
      plan.notes.push_back(fmt::format("a step takes more than {} s on this CPU", kLimit));
    }
  } catch (const OutOfMemory&) {
    plan.notes.emplace_back("the time of a step was not measured: there is not enough memory for one now");
  }
  plan.steps = step.train.steps;
  if (step.train.epochs > 0) {
    const int64_t batches = BatchOrder(step, task).batches_of(step.train.epochs);
    plan.steps = (batches - 1) / step.train.accumulate + 1;
  }
}

/// Powers of two that the data has frames for, and what the configuration says.
std::vector<int64_t> steps_of_grid(const Dataset& dataset, const Config& config) {
  std::vector<int64_t> steps{config.unroll.steps};
  if (!find_key("unroll.steps")->applies_to(config.task.name)) return steps;
  const SplitSamples samples = make_task(config, dataset).for_validation().samples(config.data.train_split);
  int64_t most = 0;
  for (int64_t i = 0; i < dataset.size(config.data.train_split); ++i)
    most = std::max(most, samples.in_trajectory(i));
  for (const int64_t power : {1, 2, 4, 8}) {
    if (power <= most && power != config.unroll.steps) steps.push_back(power);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

/// Batches: powers of two until two in a row do not fit, and the largest that does.
void add_grid(MemoryPlan& plan, const StepProbe& probe, const Config& config, int64_t correction) {
  std::vector<int64_t> batches;
  for (int64_t batch = 1; batch <= plan.budget.max_batch; batch *= 2) {
    batches.push_back(batch);
    if (batch > 2 * plan.budget.batch_size) break;
  }
  if (config.train.batch_nodes == 0) batches.push_back(plan.batch);
  if (plan.budget.batch_size > 0) batches.push_back(plan.budget.batch_size);
  std::sort(batches.begin(), batches.end());
  batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  const std::vector<int64_t> all_steps = steps_of_grid(probe.dataset(), config);
  for (const int64_t batch : batches) {
    Config cell = with_batch(config, batch);
    for (const int64_t steps : all_steps) {
      cell.unroll.steps = steps;
      try {
        const StepMemory step = probe.predict(cell);
        plan.grid.push_back({.batch = batch,
                             .steps = steps,
                             .bytes = step.reserved + correction,
                             .fits = needed_bytes(config, step) + correction <= plan.usable});
      } catch (const ConfigError&) {
        break;  // no choice keeps within recompute.budget
      }
    }
  }
}

/// As many frames as the grid of a plan and unrolled steps can ask for.
constexpr int64_t kPlannedFrames = 64;

Dataset planned_dataset(const Config& config, const PlannedMesh& mesh, std::vector<std::string>& notes) {
  constexpr int64_t kMost = INT32_MAX - 1;
  if (mesh.nodes < 1 || mesh.nodes > kMost || mesh.edges < 1 || mesh.edges > kMost || mesh.dim < 2 ||
      mesh.dim > 3) {
    throw invalid_argument("mesh to plan for", "1 to 2^31 - 2 nodes and edges in 2 or 3 dimensions",
                           fmt::format("{} nodes and {} edges in {}", mesh.nodes, mesh.edges, mesh.dim),
                           "give the sizes of your largest mesh");
  }
  std::vector<FieldInfo> fields;
  std::string text;
  const std::string& world = config.data.world_position;
  const std::vector<std::string> positions(world.empty() ? 0 : 1, world);
  for (const std::vector<std::string>* names : {&config.data.targets, &config.data.inputs, &positions}) {
    for (const std::string& name : *names) {
      const auto same = [&](const FieldInfo& field) { return field.name == name; };
      if (std::any_of(fields.begin(), fields.end(), same)) continue;
      const auto given = mesh.fields.find(name);
      const bool on_graphs = mesh.on_graphs.contains(name);
      fields.push_back({.name = name,
                        .components = given == mesh.fields.end() ? mesh.dim : given->second,
                        .on = on_graphs ? FieldOn::graph : FieldOn::node});
      text += fmt::format("{}{} [{}]{}", text.empty() ? "" : ", ", name, fields.back().components,
                          on_graphs ? " on graphs" : "");
    }
  }
  for (const std::string& name : config.data.edge_inputs) {
    if (mesh.on_graphs.contains(name))
      throw unfit_field("data.edge_inputs", "fields on edges", {.name = name, .on = FieldOn::graph});
    const auto given = mesh.fields.find(name);
    fields.push_back(
        {.name = name, .components = given == mesh.fields.end() ? 1 : given->second, .on = FieldOn::edge});
    text += fmt::format(", {} [{}] on edges", name, fields.back().components);
  }
  notes.push_back(fmt::format(
      "a mesh of {} nodes and {} directed edges in {} dimensions, without data; "
      "fields [components]: {}; on nodes where nothing else is said (--field NAME=COMPONENTS@graph)",
      mesh.nodes, mesh.edges, mesh.dim, text));
  if (edge_options(config.data) != MeshEdgeOptions{})
    notes.emplace_back("edges are taken to be those that data.hops and data.period make");
  const int64_t frames = std::max(kPlannedFrames, config.unroll.steps + config.data.history + 1);
  return Dataset::of_sizes(mesh.nodes, mesh.edges, mesh.dim, std::move(fields), frames,
                           config.data.train_split);
}

/// What train.batch = "auto" comes to in training; without data, what fits.
AutoBatch planned_batch(const StepProbe& probe, const Config& config, const MemoryPlan& plan,
                        const Task& task, const PlanOptions& options) {
  const int64_t fits = plan.budget.batch_size;
  if (fits < config.plan.min_batch) return {config.plan.min_batch, "plan.min_batch, which does not fit"};
  if (options.mesh) return {fits, "what fits; training takes an eighth of the split at most"};
  const double most_seconds = times_steps(plan, options) ? kMostStepSeconds : HUGE_VAL;
  AutoBatch found =
      auto_batch(probe, config, plan.budget, task.samples(config.data.train_split).size(), most_seconds);
  if (!std::isfinite(most_seconds) && found.batch > config.plan.min_batch)
    found.why +=
        fmt::format("; training measures steps, too, and takes what one computes in {} s", kMostStepSeconds);
  return found;
}

}  // namespace

std::vector<WorkTrace::Call> kernel_calls(const StepProbe& probe, const Config& config,
                                          const BatchShape& shape) {
  Config plain = config;
  plain.graphs = GraphsMode::off;  // a captured step counts on the device
  plain.memory.plan_steps = false;
  ProbedStep step(dry_options(plain, probe.device()), plain, probe.dataset());
  const WorkTrace trace;
  step.run(step.steps.layout(shape));
  step.steps.update();
  return trace.calls();
}

StepBound step_bound(const std::vector<WorkTrace::Call>& calls, const gpu::Card& card, const Config& config) {
  StepBound bound;
  for (const WorkTrace::Call& call : calls) {
    bound.ms += 1e3 * least_seconds(call.work, card, config.precision, config.tf32);
    bound.work += call.work;
  }
  return bound;
}

const gpu::Card* named_card(const Config& config, const PlanOptions& options) {
  if (options.gpu.empty()) return nullptr;
  const gpu::Card& card = gpu::card(options.gpu);
  if (config.run.device == "cpu") {
    throw invalid_argument("--gpu", "run.device = \"auto\" or \"cuda\"", "\"cpu\"",
                           "add --set run.device=cuda, or leave out --gpu");
  }
  if (options.mode == PlanMode::measured) {
    throw invalid_argument("--gpu", "--mode static", "--mode measured",
                           "leave out --gpu: what is measured is the device there is");
  }
  return &card;
}

const gpu::Card* card_of(Device device) {
  if (device.kind == DeviceKind::cpu) return nullptr;
  if (const gpu::Card* const planned = gpu::planned_card()) return planned;
  const std::vector<CudaDevice> devices = cuda_devices();
  const auto index = static_cast<size_t>(device.index);
  if (index >= devices.size()) return nullptr;
  return gpu::card_of(gpu::compute_capability(device.index), gpu::multiprocessors(device.index),
                      devices[index].memory_bytes);
}

MemoryRoom planned_room(const Config& config, Device device, const PlanOptions& options,
                        const gpu::Card* card) {
  const int64_t of_card = card != nullptr ? card->memory_bytes : 0;
  return memory_room(config, device, options.device_memory > 0 ? options.device_memory : of_card);
}

Device planned_device(const Config& config, PlanMode mode) {
  const std::string& word = config.run.device;
  constexpr std::string_view kCuda = "cuda";
  if (mode == PlanMode::predicted && word.starts_with(kCuda) && cuda_devices().empty())
    return {DeviceKind::cuda, 0};
  return resolve_device_for(word, config.precision);
}

MemoryPlan plan_memory(const Config& asked, const PlanOptions& options) {
  if (!options.mesh) require_data_path(asked);
  if (options.mesh && !find_key("data.hops")->applies_to(asked.task.name)) {
    throw config_error("task.name", "a task on meshes, to plan from the sizes of a mesh",
                       toml_quoted(name_of(asked.task.name)),
                       "leave out --nodes and --edges: plan reads the data");
  }
  if (options.mesh && options.mode == PlanMode::measured) {
    throw invalid_argument("plan", "data for a measured plan", "the sizes of a mesh",
                           "plan with --mode static, or without --nodes and --edges");
  }
  const gpu::Card* const named = named_card(asked, options);
  const gpu::PlannedCard planned(named);
  MemoryPlan plan{
      .device = named != nullptr ? Device{DeviceKind::cuda, 0} : planned_device(asked, options.mode),
      .mode = options.mode,
      .gpu = options.gpu};
  if (plan.device.kind == DeviceKind::cuda) {
    const gpu::Card* const there = card_of(plan.device);
    plan.peaks = (there != nullptr ? *there : gpu::default_card()).name;
  }
  check_precision(plan.device, asked.precision);
  plan.room = planned_room(asked, plan.device, options, named);
  const Config config = within(plan.room, asked);
  const Dataset dataset = options.mesh ? planned_dataset(config, *options.mesh, plan.notes)
                                       : (options.data ? *options.data : Dataset::open(config.data.path))
                                             .with_edges(edge_options(config.data));
  const Task task = make_task(config, dataset);  // refuses fields that do not fit
  const StepProbe probe(dataset, plan.device);
  plan.usable = usable_bytes(plan.room, config);
  plan.budget = memory_budget(probe, config, plan.room);
  plan.batch = config.train.batch;
  if (plan.batch == kAutoBatch) {
    const AutoBatch found = planned_batch(probe, config, plan, task, options);
    plan.batch = found.batch;
    plan.notes.push_back(fmt::format("train.batch = \"auto\" is {} here: {}", found.batch, found.why));
  }
  const bool by_nodes = config.train.batch_nodes > 0;
  const Config step = by_nodes ? config : with_batch(config, plan.batch);
  plan.step = probe.predict(step);
  plan.predicted = plan.step;
  plan.notes.insert(plan.notes.end(), plan.step.messages.begin(), plan.step.messages.end());
  if (!plan.peaks.empty()) plan.world_edges_per_node = world_edges_in_bound(task, config, !options.mesh);
  if (plan.world_edges_per_node > 0.0 && !options.mesh)
    plan.notes.push_back(
        fmt::format("the least time counts {:.3g} world edges a node, the mean of frames of the data",
                    plan.world_edges_per_node));
  plan.bounded = largest_batch(step, task);
  if (by_nodes) {
    plan.batch = plan.bounded.graphs;
    plan.notes.push_back(
        fmt::format("train.batch_nodes = {}: a batch has at most {} samples, {} nodes and {} edges",
                    config.train.batch_nodes, plan.batch, plan.bounded.nodes, plan.bounded.edges));
  }
  plan.bounded.world_edges =
      std::llround(plan.world_edges_per_node * static_cast<double>(plan.bounded.nodes));
  if (!plan.peaks.empty()) {
    const std::vector<WorkTrace::Call> calls = kernel_calls(probe, step, plan.bounded);
    plan.bound = step_bound(calls, gpu::card(plan.peaks), step);
    add_kernels(plan, calls, step);
  }
  int64_t correction = 0;
  if (plan.mode == PlanMode::measured) {
    plan.step = measured_memory(probe, step);
    correction = correction_of(probe, step, plan.step);
    plan.budget = memory_budget(probe, config, plan.room, correction);
  }
  plan.budget.mode = plan.mode;
  plan.fits = needed_bytes(config, plan.step) <= plan.usable;
  if (plan.fits && times_steps(plan, options)) add_time(plan, probe, step, task);
  add_choices(plan, probe, step);
  add_grid(plan, probe, config, correction);
  plan.changes = memory_ladder(probe, step);
  if (const std::string note = teacher_note(plan, probe, step, task, !options.mesh); !note.empty())
    plan.notes.push_back(note);
  return plan;
}

}  // namespace meshgrad
