// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/learn/planning/measured_step.h>
#include <meshgrad/train/learn/planning/plan.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/learn/task/displacements.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

/// Megabytes with all their digits: the batch size can be derived from the line exactly.
std::string megabytes(int64_t bytes) {
  constexpr int64_t kMega = 1'000'000;
  std::string text =
      fmt::format("{}{}.{:06}", bytes < 0 ? "-" : "", std::abs(bytes) / kMega, std::abs(bytes) % kMega);
  while (text.back() == '0' && text[text.size() - 2] != '.') text.pop_back();
  return text;
}

bool has_16_bits(const Config& config) {
  return config.precision == DType::f16 || config.precision == DType::bf16;
}

/// The largest batch up to `most` that fits; 0: none.
template <class Fits>
int64_t largest_batch_that(int64_t most, Fits&& fits) {
  if (!fits(1)) return 0;
  int64_t low = 1, high = 2;
  for (; high <= most && fits(high); high *= 2) low = high;
  high = std::min(high, most + 1);
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

Config with_batch(Config config, int64_t batch) {
  config.train.batch = batch;
  config.train.batch_nodes = 0;
  return config;
}

int64_t usable_bytes(const MemoryRoom& room, const Config& config) {
  return static_cast<int64_t>(config.plan.target_utilization *
                              static_cast<double>(room.total - room.context));
}

Config within(const MemoryRoom& room, Config config) {
  config.memory.memory_limit = room.total - room.context;
  return config;
}

int64_t needed_bytes(const Config& config, const StepMemory& step) {
  return config.recompute.mode == RecomputeMode::automatic ? step.live : step.reserved;
}

MemoryRoom memory_room(const Config& config, Device device, int64_t device_memory) {
  const int64_t limit = config.memory.memory_limit;
  MemoryRoom room{.total = device_memory};
  if (device_memory == 0 && device.kind == DeviceKind::cpu) {
    room.total = available_memory();
  } else if (device_memory == 0 && !cuda_devices().empty()) {
    const gpu::DeviceMemory memory = gpu::memory(device.index);
    room = {.total = memory.total, .context = memory.total - memory.free};
  } else if (device_memory == 0 && limit == 0) {
    throw config_error("plan", "the memory of the device to plan for", "no GPU here",
                       "name one with --gpu, for example --gpu a100, or give --device-memory 80GiB");
  }
  if (limit > 0 && (room.total == 0 || limit < room.total - room.context)) room = {.total = limit};
  return room;
}

MemoryBudget memory_budget(const StepProbe& probe, const Config& config, const MemoryRoom& room,
                           int64_t correction) {
  const int64_t usable = usable_bytes(room, config);
  const auto peak = [&](int64_t batch) {
    try {
      return needed_bytes(config, probe.predict(with_batch(config, batch))) + correction;
    } catch (const ConfigError&) {
      return usable + 1;  // no choice keeps within recompute.budget
    }
  };
  const StepMemory one = probe.predict(with_batch(config, 1));
  MemoryBudget budget{.total = room.total,
                      .context = room.context,
                      .parameters = one.of(Tag::parameters) - one.teacher,
                      .embed = one.of(Tag::embed),
                      .optimizer = one.of(Tag::optimizer),
                      .gradients = one.of(Tag::gradients),
                      .teacher = one.teacher};
  budget.max_batch = std::min(config.plan.max_batch, probe.most_samples(config) - 1);
  budget.available = usable - budget.fixed();
  budget.batch_size =
      largest_batch_that(budget.max_batch, [&](int64_t batch) { return peak(batch) <= usable; });
  const int64_t at = std::max<int64_t>(1, budget.batch_size);
  const int64_t first = peak(1), last = peak(at);
  const auto draw_line = [&](int64_t per_graph, int64_t through) {
    budget.per_graph = std::max<int64_t>(1, per_graph);
    budget.activation = (through == 1 ? first : last) - budget.fixed() - through * budget.per_graph;
  };
  if (at > 1) draw_line((last - first + at - 2) / (at - 1), 1);
  // Memory is not quite linear: where that line leads elsewhere, the one to the batch that does not fit.
  if (at == 1 || budget.fitting() != budget.batch_size) draw_line(peak(at + 1) - last, at);
  return budget;
}

StepMemory measured_memory(const StepProbe& probe, const Config& config) {
  MeasuredStep step(probe, config);
  // Offsets are recorded in the second step and used from the third on; a captured step is recorded in the
  // second.
  constexpr int kSteps = 3;
  for (int run = 0; run < kSteps; ++run) step.run();
  return step.memory();
}

std::optional<StepMemory> measured_if_it_fits(const StepProbe& probe, const Config& config) {
  try {
    return measured_memory(probe, config);
  } catch (const OutOfMemory&) {
    return std::nullopt;
  }
}

int64_t correction_of(const StepProbe& probe, const Config& config, const StepMemory& measured) {
  return measured.reserved - probe.predict(config, StepProbe::Batches::largest).reserved;
}

int64_t MemoryBudget::fitting() const {
  return std::clamp<int64_t>((available - activation) / per_graph, 0, max_batch);
}

std::string MemoryChange::line() const {
  return fmt::format("{}: saves {:.1f} MiB of {:.1f}", text, mebibytes(before - after), mebibytes(before));
}

std::vector<MemoryChange> memory_ladder(const StepProbe& probe, const Config& config) {
  std::vector<MemoryChange> changes;
  Config now = config;
  int64_t bytes = probe.predict(now).live;
  const auto offer = [&](std::string text, const auto& change) {
    Config next = now;
    change(next);
    const int64_t after = probe.predict(next).live;
    if (after >= bytes) return;
    changes.push_back({std::move(text), bytes, after});
    now = next;
    bytes = after;
  };
  offer("set model.path = \"fused\", which saves a fraction of the activations",
        [](Config& next) { next.model.path = ComputePath::fused; });
  const bool on_gpu = probe.device().kind == DeviceKind::cuda;
  const std::string same = "; same results, safe to change when resuming";
  if (!now.distill.teacher.empty() && now.distill.cache.empty() && !noise_of(now).any()) {
    offer("set distill.cache: the teacher predicts once, before training; safe to change when resuming",
          [](Config& next) {
            next.distill.cache = "teacher.cache";
            next.distill.offload = OffloadTo::none;
          });
  } else if (!now.distill.teacher.empty() && now.distill.cache.empty() && on_gpu) {
    offer("set distill.offload = \"host\": the teacher's parameters are copied from host memory for its run" +
              same,
          [](Config& next) { next.distill.offload = OffloadTo::host; });
  }
  offer("set model.keep_hidden = false: hidden activations are recomputed" + same,
        [](Config& next) { next.model.keep_hidden = false; });
  offer("set recompute.mode = \"block\": blocks are recomputed in the backward pass" + same,
        [](Config& next) { next.recompute.mode = RecomputeMode::block; });
  if (now.unroll.steps > 1) {
    offer("set recompute.segments = \"frame\": each frame of a sample is recomputed" + same,
          [](Config& next) { next.recompute.segments = SegmentUnit::frame; });
  }
  offer("set graphs = \"off\": no memory is held for other batch sizes",
        [](Config& next) { next.graphs = GraphsMode::off; });
  if (now.recompute.mode != RecomputeMode::off || now.recompute.segments != SegmentUnit::block) {
    offer(fmt::format("set recompute.offload = \"{}\": tensors saved for recomputation are offloaded to {}{}",
                      on_gpu ? "host" : "file", on_gpu ? "host memory" : "a file in recompute.offload_dir",
                      same),
          [&](Config& next) { next.recompute.offload = on_gpu ? OffloadTo::host : OffloadTo::file; });
  }
  const int64_t half_nodes = now.train.batch_nodes / 2;
  if (half_nodes >= probe.dataset().largest_mesh(now.data.train_split).nodes) {
    offer(fmt::format("in a new run, set train.batch_nodes = {} and train.accumulate = {}", half_nodes,
                      now.train.accumulate * 2),
          [&](Config& next) { next.train.batch_nodes = half_nodes; });
  } else if (const int64_t batch = now.train.batch; batch > 1 && now.train.batch_nodes == 0) {
    const int64_t half = (batch + 1) / 2;
    offer(batch % 2 == 0
              ? fmt::format("in a new run, set train.batch = {} and train.accumulate = {}: the same "
                            "gradients from smaller batches",
                            half, now.train.accumulate * 2)
              : fmt::format("in a new run, set train.batch = {} and raise train.accumulate", half),
          [&](Config& next) { next.train.batch = half; });
  }
  if (!has_16_bits(now)) {
    const DType narrow = narrow_precision_for(probe.device());
    offer(fmt::format("in a new run, set precision = \"{}\": activations in 16 bits", name_of(narrow)),
          [&](Config& next) { next.precision = narrow; });
  }
  Config shallow = now;
  shallow.model.blocks = now.model.blocks / 2;
  if (const int64_t fewer = shallow.model.blocks; fewer > 0 && contradictions(shallow).empty()) {
    offer(
        fmt::format("in a new run, lower model.width or model.blocks, for example model.blocks = {}", fewer),
        [&](Config& next) { next.model.blocks = fewer; });
  }
  return changes;
}

std::string to_text(const MemoryBudget& b) {
  const auto mb = [](int64_t bytes) { return megabytes(bytes); };
  return fmt::format(
      "MemoryBudget(total={}MB static={}MB [params={} embed={} opt={} grad={} teacher={} context={}] "
      "activation={}MB per_graph={}MB available={}MB max_batch={} batch_size={} mode={})",
      mb(b.total), mb(b.fixed() + b.context), mb(b.parameters), mb(b.embed), mb(b.optimizer), mb(b.gradients),
      mb(b.teacher), mb(b.context), mb(b.activation), mb(b.per_graph), mb(b.available), b.max_batch,
      b.batch_size, name_of(b.mode));
}

namespace {

/// Of a run in this folder with the same configuration but for "auto"; 0: none.
int64_t batch_of_earlier_start(const Config& config) {
  const std::filesystem::path resolved = std::filesystem::path(config.run.dir) / "config.resolved.toml";
  if (!path_exists(resolved)) return 0;
  try {
    const Config saved = parse_saved_config(read_file(resolved), resolved.string());
    return to_toml(with_batch(config, saved.train.batch)) == to_toml(saved) ? saved.train.batch : 0;
  } catch (const Error&) {
    return 0;  // a new run says what is wrong with its folder
  }
}

/// The largest batch up to `most` whose optimizer step takes `most_seconds`: ten steps are measured, three
/// with one sample, from which the others' batch follows.
int64_t batch_in_time(const StepProbe& probe, const Config& config, int64_t most, double most_seconds) {
  const auto seconds = [&](int64_t batch, int steps) {
    const Config measured = with_batch(config, batch);
    return MeasuredStep(probe, measured).seconds(steps, 4.0 * most_seconds);
  };
  const auto fitting = [&](int64_t batch, double took) {
    return std::clamp<int64_t>(
        static_cast<int64_t>(static_cast<double>(batch) * most_seconds / std::max(took, 1e-9)), 1, batch);
  };
  const double one = seconds(1, 2);
  const int64_t guess = fitting(most, static_cast<double>(most) * one);
  return guess == 1 ? 1 : fitting(guess, seconds(guess, 6));
}

}  // namespace

AutoBatch auto_batch(const StepProbe& probe, const Config& config, const MemoryBudget& budget,
                     int64_t samples, double most_seconds) {
  constexpr int64_t kBatchesOfSplit = 8;
  const int64_t part = std::max<int64_t>(1, samples / (kBatchesOfSplit * config.train.accumulate));
  const int64_t most = std::max<int64_t>(1, std::min(budget.batch_size, part));
  const int64_t in_time =
      std::isfinite(most_seconds) ? batch_in_time(probe, config, most, most_seconds) : most;
  const auto why = [&]() -> std::string {
    if (in_time < config.plan.min_batch) return "plan.min_batch";
    if (in_time < most)
      return fmt::format("what a step computes in {} s, by ten measured steps", most_seconds);
    if (part >= budget.batch_size)
      return fmt::format("the largest planned to fit in {:.1f} MiB",
                         mebibytes(budget.available + budget.fixed()));
    return fmt::format("an eighth of the {} samples{}", samples,
                       config.train.accumulate > 1 ? " with train.accumulate" : "");
  };
  return {std::max(in_time, config.plan.min_batch), why()};
}

Config resolve_batch(Runtime& runtime, Config config, const std::filesystem::path& resumed, std::string& note,
                     double most_seconds) {
  if (config.train.batch != kAutoBatch) return config;
  if (!resumed.empty()) {
    config.train.batch = checkpoint_config(resumed).train.batch;
    return config;
  }
  if (const int64_t earlier = batch_of_earlier_start(config); earlier > 0) {
    note = fmt::format("train.batch = {}, as in config.resolved.toml of this run", earlier);
    return with_batch(config, earlier);
  }
  check_precision(runtime.device(), config.precision);
  const Dataset dataset = Dataset::open(config.data.path).with_edges(edge_options(config.data));
  const StepProbe probe(dataset, runtime.device());
  Config here = config;
  here.memory = runtime.allocator().options();
  here.run.threads = runtime.threads().threads();
  const MemoryRoom room = memory_room(here, runtime.device());
  const auto check = [&](const MemoryBudget& budget) {
    if (budget.batch_size >= config.plan.min_batch) return;
    throw config_error(
        "plan.min_batch", fmt::format("{} or more samples that fit", config.plan.min_batch),
        fmt::format("{} in {:.1f} MiB", budget.batch_size, mebibytes(usable_bytes(room, config))),
        "see meshgrad plan for what to change, and what it saves");
  };
  MemoryBudget budget = memory_budget(probe, within(room, here), room);
  check(budget);
  const int64_t samples = make_task(config, dataset).samples(config.data.train_split).size();
  auto [batch, why] = auto_batch(probe, here, budget, samples, most_seconds);
  if (config.plan.mode == PlanMode::measured) {
    std::optional<StepMemory> measured;
    for (; !(measured = measured_if_it_fits(probe, with_batch(here, batch))); batch /= 2)
      if (batch / 2 < config.plan.min_batch) check({.batch_size = 0});
    const int64_t correction = correction_of(probe, with_batch(here, batch), *measured);
    budget = memory_budget(probe, within(room, here), room, correction);
    budget.mode = PlanMode::measured;
    check(budget);
    batch = std::min(batch, budget.batch_size);
  }
  config.train.batch = batch;
  note = fmt::format("train.batch = {}, {}; {}", batch, why, to_text(budget));
  return config;
}

}  // namespace meshgrad
