// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/replay_buffer.h>
#include <meshgrad/train/run/batch_loader.h>
#include <meshgrad/train/run/checkpoint.h>
#include <meshgrad/train/run/checkpoint_check.h>
#include <meshgrad/train/run/make_model.h>
#include <meshgrad/train/run/optimizer.h>
#include <meshgrad/train/run/precision.h>
#include <meshgrad/train/run/step_cache.h>
#include <meshgrad/train/run/training_data.h>
#include <meshgrad/train/run/validation.h>
#include <meshgrad/train/task/batch_rows.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

/// The settings that a run of this kind has.
Config online_config(Config config) {
  config.normalize.mode = NormalizeMode::online;
  config.normalize.warmup_steps = 0;
  config.train.validate_samples = 0;
  if (config.train.batch == kAutoBatch)
    throw config_error("train.batch", "a number of samples", "\"auto\"", "set it, for example to 2");
  if (config.train.accumulate != 1)
    throw config_error("train.accumulate", "1 with OnlineTrainer", fmt::format("{}", config.train.accumulate),
                       "raise train.batch instead");
  if (config.recompute.mode != RecomputeMode::off)
    throw config_error("recompute.mode", "\"off\" with OnlineTrainer", "another", "leave it out");
  if (config.graphs != GraphsMode::off)
    throw config_error("graphs", "\"off\" with OnlineTrainer", "another", "leave it out");
  return config;
}

OnlineOptions saved_options(const fs::path& saved) {
  const SafetensorsFile file = open_checkpoint(saved);
  OnlineOptions options = ReplayBuffer::saved_options(file.view());
  const TrainingData data = checkpoint_training_data(saved).value();
  options.dim = data.dim;
  options.dt = data.dt;
  options.fields = data.fields;
  return options;
}

Dataset empty_dataset(const OnlineOptions& options, const Config& config) {
  auto data = std::make_shared<MemoryData>();
  data->dim = options.dim;
  data->dt = options.dt;
  data->node_types = config.data.node_types;
  data->fields = options.fields;
  data->splits = {{.name = config.data.train_split}};
  return Dataset::over(std::move(data));
}

/// Those that the model reads, in the order of a checkpoint's description.
OnlineOptions with_used_fields(OnlineOptions options, const Config& config) {
  for (FieldInfo& field : options.fields) {
    field.dynamic = true;
    field.dtype = DType::f32;
    field.offset.clear();
    if (field.components < 1) {
      throw invalid_argument(fmt::format("OnlineOptions: field {}", field.name), "1 component or more",
                             fmt::format("{}", field.components));
    }
  }
  options.fields = training_data(empty_dataset(options, config), config.data).fields;
  return options;
}

}  // namespace

struct OnlineTrainer::State {
  Runtime& runtime;
  Config config;
  OnlineOptions options;
  Task task;
  Model model;
  Normalizers normalizers;
  Optimizer optimizer;
  ReplayBuffer buffer;
  int64_t steps = 0;
  SampleScratch scratch;

  State(Runtime& own, Config given, const OnlineOptions& given_options)
      : runtime(own),
        config(online_config(std::move(given))),
        options(with_used_fields(given_options, config)),
        task(make_task(config, empty_dataset(options, config))),
        model(make_model(runtime, config, task.sizes())),
        normalizers(task.online_normalizers()),
        optimizer(runtime, model.parameters, config.optimizer, config.train.clip_norm,
                  learning_rate(config.schedule, config.optimizer.lr, config.train.steps),
                  config.loss_scale.rule),
        buffer(options, task.least_frames(), config.data.node_types, seed(), config.data.train_split,
               config.data.valid_split) {
    check_precision(runtime.device(), config.precision);
  }
  uint64_t seed() const { return static_cast<uint64_t>(config.run.seed); }
  int64_t first_frame() const { return task.sample_frames(task.least_frames()).first; }
  void read_buffer() { task = make_task(config, Dataset::over(buffer.data())); }
  void learn_from(const Kept& kept);
  void train_step();
  void check_finite() const;
};

/// Statistics are those of samples that were kept, as they came.
void OnlineTrainer::State::learn_from(const Kept& kept) {
  if (!kept.trajectory || kept.split != config.data.train_split) return;
  if (normalizers.edges.count() > 0 && buffer.seen() > config.normalize.max_samples) return;
  const std::vector<Sample> samples{{.trajectory = *kept.trajectory, .frame = first_frame()}};
  training_batch(task, runtime, config.precision, kept.split, samples, noise_of(config), normalizers, true);
}

void OnlineTrainer::State::train_step() {
  const std::string& split = config.data.train_split;
  const auto held = static_cast<uint64_t>(buffer.training_samples());
  std::vector<Sample> samples;
  for (int64_t i = 0; i < config.train.batch; ++i) {
    const auto draw = static_cast<uint64_t>(steps * config.train.batch + i);
    const uint64_t trajectory = uniform_below(seed(), hash_of("online batch"), draw, held);
    samples.push_back({.trajectory = static_cast<int64_t>(trajectory),
                       .frame = first_frame(),
                       .visit = static_cast<uint32_t>(draw)});
  }
  const BatchLayout layout =
      task.layout(task.shape(split, samples), config.precision, BatchLayout::Sizes::exact);
  const Batch batch = make_batch(runtime, layout, [&](const Batch& host) {
    task.write(host, split, samples, noise_of(config), normalizers, false, scratch);
    *host.tensor(kWindowWeight).data<double>() = static_cast<double>(task.loss_weight(split, samples));
  });
  run_batch(runtime, task.batch_loss(), model, optimizer, batch);
  optimizer.step(runtime);
  ++steps;
}

void OnlineTrainer::State::check_finite() const {
  const StepState now = optimizer.state();
  const bool overflow = now.consecutive_skips >= config.loss_scale.max_skips;
  if (!overflow && (now.non_finite_losses == 0 || config.precision == DType::f16)) return;
  throw data_error(
      fmt::format("OnlineTrainer: step {}", steps), "a finite loss and gradient", "nan or infinity",
      "look for bad values in the appended frames, or lower optimizer.lr; then load the last save");
}

OnlineTrainer::OnlineTrainer(Runtime& runtime, const Config& config, const OnlineOptions& options)
    : state_(std::make_unique<State>(runtime, config, options)) {}

OnlineTrainer::OnlineTrainer(Runtime& runtime, const fs::path& saved)
    : state_(std::make_unique<State>(runtime, checkpoint_config(saved), saved_options(saved))) {
  State& s = *state_;
  const RunState run =
      load_checkpoint(saved, runtime.stream(), s.model.parameters, &s.optimizer, s.normalizers);
  s.steps = run.step;
  s.buffer.load(open_checkpoint(saved).view());
  s.read_buffer();
}

OnlineTrainer::~OnlineTrainer() = default;
OnlineTrainer::OnlineTrainer(OnlineTrainer&&) noexcept = default;
OnlineTrainer& OnlineTrainer::operator=(OnlineTrainer&&) noexcept = default;

const Config& OnlineTrainer::config() const { return state_->config; }
const OnlineOptions& OnlineTrainer::options() const { return state_->options; }
int64_t OnlineTrainer::steps() const { return state_->steps; }
int64_t OnlineTrainer::samples() const { return state_->buffer.training_samples(); }
int64_t OnlineTrainer::seen() const { return state_->buffer.seen(); }

void OnlineTrainer::set_mesh(const MeshArrays& mesh) {
  state_->buffer.set_mesh(mesh);
  state_->read_buffer();
}
void OnlineTrainer::set_field(std::string_view name, Numbers values) {
  state_->buffer.set_field(name, values);
}
void OnlineTrainer::restart_trajectory() { state_->buffer.forget_frames(); }

void OnlineTrainer::append() {
  const std::optional<Kept> kept = state_->buffer.append();
  if (!kept) return;
  state_->read_buffer();
  state_->learn_from(*kept);
}

OnlineTrainer::Trained OnlineTrainer::train(int64_t steps, double seconds) {
  using Clock = std::chrono::steady_clock;
  State& s = *state_;
  const Clock::time_point begin = Clock::now();
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  Trained result;
  double longest = 0;
  while (result.steps < steps && s.buffer.training_samples() > 0) {
    const Clock::time_point start = Clock::now();
    if (std::chrono::duration<double>(start - begin).count() + longest > seconds) break;
    s.train_step();
    ++result.steps;
    if (std::isfinite(seconds)) {
      s.runtime.stream().synchronize();
      longest = std::max(longest, since(start));
    }
  }
  if (result.steps > 0) {
    s.check_finite();
    result.loss = s.optimizer.state().last_loss;
  }
  result.seconds = since(begin);
  return result;
}

double OnlineTrainer::held_out_loss() {
  State& s = *state_;
  if (s.buffer.held_out_samples() == 0) return std::nan("");
  Ranks alone;
  return validation_loss(s.runtime, alone, s.task, s.model, s.normalizers, s.config, {}).value();
}

void OnlineTrainer::save(const fs::path& path) const {
  const State& s = *state_;
  RunState run;
  run.step = s.steps;
  const CheckpointExtra extra = s.buffer.saved();
  save_checkpoint(path, s.runtime.stream(), s.config, s.task.dataset(), s.model.parameters, s.optimizer,
                  s.normalizers, run, &extra);
}

}  // namespace meshgrad
