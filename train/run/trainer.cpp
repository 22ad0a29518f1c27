// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/io/atomic_file.h>
#include <meshgrad/train/io/host_memory_error.h>
#include <meshgrad/train/planning/plan.h>
#include <meshgrad/train/report/history_files.h>
#include <meshgrad/train/run/environment.h>
#include <meshgrad/train/run/memory_watch.h>
#include <meshgrad/train/run/non_finite.h>
#include <meshgrad/train/run/precision.h>
#include <meshgrad/train/run/resume_check.h>
#include <meshgrad/train/run/run_log.h>
#include <meshgrad/train/run/step.h>
#include <meshgrad/train/run/trainer.h>
#include <meshgrad/train/run/validation.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

class Trainer {
 public:
  Trainer(Runtime& runtime, const Config& config, const TrainOptions& options);
  TrainResult run();

 private:
  void start();
  void resume();
  void remove_temporaries() const;
  bool warming_up() const;
  void list_samples(int64_t step, int64_t micro, std::vector<Sample>& samples) const;
  int64_t window_weight(int64_t step);
  TrainStep::Window window_of(int64_t step);
  void expect_batches();
  void train_batch();
  void allocate();
  void finish_step();
  void look();
  void note(const std::optional<StepState>& seen);
  [[noreturn]] void fail(std::string_view needed, const std::string& got, const StepState& seen);
  std::optional<NonFinite> search_window(int64_t step, double loss_scale, const Recomputation& recomputation);
  void give_back_gradients();
  void care_for_memory();
  void advise_on_memory();
  void validate();
  void save(bool best);
  void save_numbered();
  void tell(const std::string& text) const;
  void note_pause() const;
  bool stop_wanted() const;
  TrainResult stopped();
  TrainResult result(bool was_stopped) const;

  Runtime& runtime_;
  const Config& config_;
  const TrainOptions& options_;
  Dataset dataset_;
  FrameFeatures features_;
  Sampler sampler_;
  int64_t sample_limit_;  // samples of the whole run
  int64_t total_steps_;
  NoiseOptions noise_;
  MeshGraphNet model_;
  Normalizers normalizers_;
  std::optional<Optimizer> optimizer_;
  RunState state_;
  fs::path checkpoints_;
  std::vector<std::pair<int64_t, int64_t>> window_weights_;  // of windows that are under way or expected
  std::vector<Sample> samples_;                              // of the batch
  std::vector<Sample> others_;                               // of one that is only looked at, or expected
  int64_t expected_ = 0;                                     // the next batch to expect
  std::optional<TrainStep> step_;
  std::optional<RunLog> log_;
  MemoryWatch memory_watch_;
  std::vector<float> step_seconds_;  // of this process
};

Trainer::Trainer(Runtime& runtime, const Config& config, const TrainOptions& options)
    : runtime_(runtime),
      config_(config),
      options_(options),
      dataset_(Dataset::open(config.data.path)),
      features_(dataset_, config.data),
      sampler_(dataset_, config.data.train_split, config.data.predict, static_cast<uint64_t>(config.run.seed),
               config.unroll.steps),
      sample_limit_(config.train.epochs > 0 ? config.train.epochs * sampler_.samples()
                                            : std::numeric_limits<int64_t>::max()),
      total_steps_(config.train.epochs > 0
                       ? (sample_limit_ - 1) / (config.train.batch * config.train.accumulate) + 1
                       : config.train.steps),
      noise_{config.train.noise, config.train.gamma, static_cast<uint64_t>(config.run.seed)},
      model_(model_options(config.model, features_)),
      normalizers_(config.normalize.mode == NormalizeMode::dataset ? features_.dataset_normalizers(noise_)
                                                                   : features_.online_normalizers()),
      checkpoints_(fs::path(config.run.dir) / "checkpoints") {
  check_precision(runtime.device(), config.precision);
  if (config.train.validate_every > 0) dataset_.split(config.data.valid_split);  // says which splits exist
}

/// The story: windows of batches, each window one optimizer step.
TrainResult Trainer::run() {
  advise_on_memory();
  options_.resume ? resume() : start();
  const std::string stored = describe_precision(config_.precision, optimizer_->state().loss_scale);
  if (!stored.empty()) tell(stored);
  if (state_.micro == 0 && !warming_up()) give_back_gradients();
  while (state_.step < total_steps_) {
    const auto begin = std::chrono::steady_clock::now();
    while (state_.micro < config_.train.accumulate) {
      // The last window of the last pass may hold fewer batches.
      list_samples(state_.step, state_.micro, samples_);
      if (!samples_.empty()) train_batch();
      ++state_.micro;
      if (state_.micro < config_.train.accumulate && stop_wanted()) return stopped();
    }
    finish_step();
    step_seconds_.push_back(std::chrono::duration<float>(std::chrono::steady_clock::now() - begin).count());
    const bool last = state_.step == total_steps_;
    const auto due = [&](int64_t every) { return every > 0 && (state_.step % every == 0 || last); };
    if (due(config_.train.validate_every)) validate();
    care_for_memory();  // before the checkpoint: a run killed in between would lack its line
    if (due(config_.train.checkpoint_every) || last) save_numbered();
    if (!last && stop_wanted()) return stopped();
  }
  return result(false);
}

bool Trainer::stop_wanted() const { return options_.observer.stop && options_.observer.stop(); }

TrainResult Trainer::stopped() {
  save(false);
  tell(fmt::format("stopped at step {}; go on with --resume", state_.step));
  return result(true);
}

void Trainer::start() {
  const fs::path dir = config_.run.dir;
  if (fs::exists(checkpoints_ / "last.safetensors")) {
    throw config_error("run.dir", "a folder without a run", dir.string() + ", which has checkpoints",
                       "add --resume to go on, or choose another run.dir");
  }
  std::error_code error;
  fs::create_directories(checkpoints_, error);
  if (error)
    throw config_error("run.dir", "a folder that can be made", dir.string() + ": " + error.message(),
                       "choose another run.dir");
  allocate();
  write_file_atomically(dir / "config.resolved.toml", to_toml(config_));
  write_environment(dir / "environment.json", options_.command, {{"device", name_of(runtime_.device())}});
  log_.emplace(runtime_, dir, std::nullopt);
}

/// What the run keeps on the device.
void Trainer::allocate() {
  model_.allocate(runtime_, config_.precision, static_cast<uint64_t>(config_.run.seed));
  optimizer_.emplace(runtime_, model_.parameters(), config_.optimizer, config_.train.clip_norm,
                     learning_rate(config_.schedule, config_.optimizer.lr, total_steps_),
                     config_.loss_scale.rule);
  step_.emplace(runtime_, config_, dataset_, features_, model_, *optimizer_,
                [this](const std::string& text) { tell(text); });
}

/// Removes what a killed process was writing when it died.
void Trainer::remove_temporaries() const {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(checkpoints_, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".") && name.find(".tmp.") != std::string::npos) fs::remove(entry.path(), ignored);
  }
}

void Trainer::resume() {
  const fs::path dir = config_.run.dir;
  const fs::path checkpoint = find_checkpoint(dir, "last");
  check_same_run(checkpoint, config_);
  allocate();
  state_ = load_checkpoint(checkpoint, runtime_.stream(), model_.parameters(), &*optimizer_, normalizers_);
  if (checkpoint_data_fingerprint(checkpoint) != dataset_.fingerprint()) {
    throw data_error(checkpoint.string(), "the data it was trained on",
                     config_.data.path + ", which has other content",
                     "give the same packed file, or start a new run");
  }
  // The batches that are left of a last window may be none.
  state_.optimizer.window_weight = state_.micro > 0 ? static_cast<double>(window_weight(state_.step)) : 0.0;
  optimizer_->set_state(state_.optimizer);
  log_.emplace(runtime_, dir, state_.step);
  remove_temporaries();
  write_file_atomically(dir / "config.resolved.toml", to_toml(config_));
  tell(fmt::format("resumed {} at step {}", checkpoint.string(), state_.step));
}

/// Online normalisers first look at data, and the model waits.
bool Trainer::warming_up() const {
  return config_.normalize.mode == NormalizeMode::online && state_.step < config_.normalize.warmup_steps;
}

/// Into a list that is kept, so that a step asks the heap for nothing.
void Trainer::list_samples(int64_t step, int64_t micro, std::vector<Sample>& samples) const {
  samples.clear();
  const int64_t first = (step * config_.train.accumulate + micro) * config_.train.batch;
  const int64_t end = std::min(first + config_.train.batch, sample_limit_);
  for (int64_t position = first; position < end; ++position) samples.push_back(sampler_.at(position));
}

/// Loss terms of the whole window, known before its first backward: so that it equals one large batch.
int64_t Trainer::window_weight(int64_t step) {
  const auto known = std::find_if(window_weights_.begin(), window_weights_.end(),
                                  [&](const auto& window) { return window.first == step; });
  if (known != window_weights_.end()) return known->second;
  int64_t weight = 0;
  for (int64_t micro = 0; micro < config_.train.accumulate; ++micro) {
    list_samples(step, micro, others_);
    for (const Sample& sample : others_) {
      const TrajectoryView view = dataset_.trajectory(config_.data.train_split, sample.trajectory);
      weight += config_.unroll.steps * features_.predicted_nodes(view.mesh());
    }
  }
  if (weight == 0) {
    throw data_error(config_.data.path, "nodes of the types in data.predicted_types", "a batch without any",
                     "set data.predicted_types to types that occur; see meshgrad info " + config_.data.path);
  }
  std::erase_if(window_weights_, [&](const auto& window) { return window.first < state_.step; });
  return window_weights_.emplace_back(step, weight).second;
}

TrainStep::Window Trainer::window_of(int64_t step) {
  const bool learn =
      config_.normalize.mode == NormalizeMode::online && state_.learned < config_.normalize.max_samples;
  return {.weight = static_cast<double>(window_weight(step)),
          .noise = noise_,
          .learn = learn,
          .observe = warming_up()};
}

/// Batches that come next are put together while the device works; not while normalisers learn from each.
/// The disk is asked for their data before, on the CPU too, whose threads have no time for the rest.
void Trainer::expect_batches() {
  const int64_t now = state_.step * config_.train.accumulate + state_.micro;
  const int64_t next = now + static_cast<int64_t>(step_->ahead()) + 1;
  if (next / config_.train.accumulate < total_steps_) {
    list_samples(next / config_.train.accumulate, next % config_.train.accumulate, others_);
    for (const Sample& sample : others_) dataset_.read_ahead(config_.data.train_split, sample.trajectory);
  }
  expected_ = std::max(expected_, now);
  const auto ahead = static_cast<int64_t>(step_->ahead());
  for (; ahead > 0 && expected_ <= now + ahead; ++expected_) {
    const int64_t step = expected_ / config_.train.accumulate;
    if (step >= total_steps_) return;
    const TrainStep::Window window = window_of(step);
    if (window.learn || window.observe) return;
    list_samples(step, expected_ % config_.train.accumulate, others_);
    if (!others_.empty()) step_->expect(others_, window, normalizers_);
  }
}

void Trainer::train_batch() {
  expect_batches();
  const TrainStep::Window window = window_of(state_.step);
  if (!window.observe && !model_.parameters().gradients().defined()) {
    model_.parameters().allocate_gradients(runtime_);
    optimizer_->use_gradients(model_.parameters().gradients());
  }
  step_->batch(samples_, window, normalizers_);
  if (window.learn) state_.learned += static_cast<int64_t>(samples_.size());
  look();
}

void Trainer::finish_step() {
  if (!warming_up()) {
    step_->finish_window();
    give_back_gradients();
  }
  state_.micro = 0;
  ++state_.step;
  look();
  if (state_.step % config_.train.log_every == 0 || state_.step == total_steps_ || state_.step == 1) {
    note(log_->flush());
    log_->step(*optimizer_, state_.step,
               std::min(sample_limit_, state_.step * config_.train.accumulate * config_.train.batch),
               step_->data_seconds());
  }
  note(log_->poll());
  if (options_.observer.progress) {
    const MemoryStats memory = runtime_.allocator().stats();
    options_.observer.progress({state_.step, total_steps_, state_.optimizer.last_loss,
                                state_.optimizer.learning_rate, memory.allocated.current,
                                memory.allocated.peak});
  }
}

/// On the CPU the state of a step is there at once; a GPU is asked now and then, by the log.
void Trainer::look() {
  if (!runtime_.stream().on_gpu()) note(optimizer_->state());
}

/// A step or two may be left out, but a run whose gradients all overflow would go on for ever without
/// learning. A loss that is not finite is an error at once, unless 16 bits may have overflowed.
void Trainer::note(const std::optional<StepState>& seen) {
  if (!seen) return;
  state_.optimizer = *seen;
  if (seen->bad_losses > 0 && config_.precision != DType::f16) fail("a finite loss", "another", *seen);
  if (seen->skipped_in_a_row >= config_.loss_scale.max_skips) {
    fail("a finite gradient", fmt::format("{} steps in a row without one", seen->skipped_in_a_row), *seen);
  }
}

/// Ends the run with the first value that is not finite when the window that was left out last is computed
/// again: its weights are what they were, unless a GPU was seen so late that steps were taken since.
void Trainer::fail(std::string_view needed, const std::string& got, const StepState& seen) {
  const Recomputation recomputation = step_ ? step_->recomputation() : Recomputation();
  step_.reset();  // gives back what captured steps keep
  const bool open = !is_finite(seen.window_loss);
  const int64_t window = open ? seen.steps + seen.skipped : seen.bad_window;
  const bool warmed_up = config_.normalize.mode == NormalizeMode::online;
  const int64_t step = window + (warmed_up ? config_.normalize.warmup_steps : 0);
  const double scale = open ? seen.loss_scale : seen.bad_scale;
  std::string found = "every value is finite when it is computed again";
  std::string fix = "lower optimizer.lr, set train.clip_norm, or look for bad values in the data";
  try {
    if (const auto first = search_window(step, scale, recomputation)) {
      found = first->text();
      fix = first->fix(config_.precision);
    }
  } catch (const Error& error) {
    found = std::string("it cannot be computed again: ") + error.what();
  }
  throw data_error(fmt::format("step {}", step + 1), needed,
                   fmt::format("{}; loss scale {}; {}", got, scale, found), fix);
}

std::optional<NonFinite> Trainer::search_window(int64_t step, double loss_scale,
                                                const Recomputation& recomputation) {
  if (!model_.parameters().gradients().defined()) model_.parameters().allocate_gradients(runtime_);
  fill_zero(model_.parameters().gradients(), runtime_.stream());
  const auto weight = static_cast<double>(window_weight(step));
  for (int64_t micro = 0; micro < config_.train.accumulate; ++micro) {
    list_samples(step, micro, samples_);
    if (samples_.empty()) continue;
    const Batch batch = features_.training_batch(runtime_, config_.precision, config_.data.train_split,
                                                 samples_, noise_, normalizers_, false, config_.unroll.steps);
    const auto found = find_non_finite(runtime_, model_, batch, loss_scale / weight, recomputation);
    if (found) return found;
  }
  return std::nullopt;
}

void Trainer::give_back_gradients() {
  if (!config_.train.free_gradients) return;
  optimizer_->use_gradients({});
  model_.parameters().release_gradients();
}

/// Says how much memory an epoch took, and gives back what is not in use where the user wants that.
void Trainer::care_for_memory() {
  CachingAllocator& allocator = runtime_.allocator();
  const int64_t every = allocator.options().release_cached_every;
  if (every > 0 && state_.step % every == 0) allocator.release_cached();

  const int64_t window = config_.train.batch * config_.train.accumulate;
  const auto epochs_at = [&](int64_t step) { return step * window / sampler_.samples(); };
  const int64_t epoch = epochs_at(state_.step);
  const bool ended = epoch > epochs_at(state_.step - 1);
  const bool last = state_.step == total_steps_;
  // Epochs may be shorter than the time between two lines of the log: then not each has a line.
  const int64_t log_every = config_.train.log_every;
  const int64_t before =
      ((epoch - 1) * sampler_.samples() + window - 1) / window;  // step of the epoch before
  if (!last && (!ended || state_.step / log_every == before / log_every)) return;
  const MemoryWatch::Epoch memory = memory_watch_.end_epoch(ended ? epoch : epoch + 1, allocator.stats());
  allocator.reset_peak();
  tell(memory.line);
  if (!memory.alarm.empty()) tell(memory.alarm);
  note(log_->flush());
  log_->write({{"step", state_.step},
               {"epoch", memory.number},
               {"memory_allocated_bytes", memory.allocated},
               {"memory_reserved_bytes", memory.reserved},
               {"memory_peak_bytes", memory.peak},
               {"memory_headroom_bytes", memory.headroom},
               {"memory_waste", memory.waste}});
}

/// What OutOfMemory tells the user to change.
void Trainer::advise_on_memory() {
  std::vector<std::string> advice;
  const StepProbe probe(dataset_, features_, runtime_.device());
  Config here = config_;
  here.run.threads = runtime_.threads().threads();
  here.memory = runtime_.allocator().options();
  here.memory.memory_limit = runtime_.allocator().stats().capacity;
  for (const MemoryChange& change : memory_ladder(probe, here)) advice.push_back(change.line());
  if (runtime_.allocator().options().memory_limit == here.memory.memory_limit)
    advice.push_back("raise memory.limit");
  runtime_.allocator().advise(std::move(advice));
}

void Trainer::validate() {
  if (warming_up()) return;
  note_pause();
  state_.last_valid_loss = validation_loss(runtime_, model_, features_, normalizers_, dataset_, config_);
  note(log_->flush());
  log_->write({{"step", state_.step}, {"valid_loss", state_.last_valid_loss}},
              {{"valid/loss", state_.last_valid_loss}});
  const bool better = state_.last_valid_loss < state_.best_valid_loss;
  tell(fmt::format("step {}: validation loss {:.4g}{}", state_.step, state_.last_valid_loss,
                   better ? " (best so far)" : ""));
  if (better) {
    state_.best_valid_loss = state_.last_valid_loss;
    state_.best_step = state_.step;
    save(true);
  }
}

void Trainer::save(bool best) {
  note(log_->flush());
  note(optimizer_->state());
  save_checkpoint(checkpoints_ / (best ? "best.safetensors" : "last.safetensors"), runtime_.stream(), config_,
                  dataset_.fingerprint(), model_.parameters(), *optimizer_, normalizers_, state_);
}

/// last.safetensors always is the newest; numbered copies are links to the same bytes, of which a few are
/// kept.
void Trainer::save_numbered() {
  note_pause();
  save(false);
  const auto numbered = [&](int64_t step) {
    return checkpoints_ / fmt::format("step-{:09}.safetensors", step);
  };
  std::error_code ignored;
  fs::remove(numbered(state_.step), ignored);
  fs::create_hard_link(checkpoints_ / "last.safetensors", numbered(state_.step), ignored);
  std::vector<fs::path> kept;
  for (const auto& entry : fs::directory_iterator(checkpoints_)) {
    if (entry.path().filename().string().starts_with("step-")) kept.push_back(entry.path());
  }
  std::sort(kept.begin(), kept.end());
  while (static_cast<int64_t>(kept.size()) > config_.train.keep_checkpoints) {
    fs::remove(kept.front(), ignored);
    kept.erase(kept.begin());
  }
}

void Trainer::tell(const std::string& text) const {
  if (options_.observer.message) options_.observer.message(text);
}

void Trainer::note_pause() const {
  if (options_.observer.pause) options_.observer.pause();
}

TrainResult Trainer::result(bool was_stopped) const {
  TrainResult result{was_stopped, state_, checkpoints_ / "last.safetensors", model_.parameters().count(),
                     total_steps_};
  if (step_) result.offloaded_bytes = step_->offloaded_bytes();
  if (step_seconds_.empty()) return result;
  result.first_step_seconds = step_seconds_.front();
  std::vector<float> others(step_seconds_.begin() + (step_seconds_.size() > 1 ? 1 : 0), step_seconds_.end());
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  result.median_step_seconds = *middle;
  result.data_wait_seconds = step_->data_seconds() / static_cast<double>(step_seconds_.size());
  return result;
}

}  // namespace

TrainResult train(Runtime& runtime, const Config& asked, const TrainOptions& options) {
  require_data_path(asked);
  std::string note;
  const Config config = resolve_batch(runtime, asked, options.resume, note);
  if (!note.empty() && options.observer.message) options.observer.message(note);
  const fs::path memory_dir = fs::path(config.run.dir) / "memory";
  const bool history = runtime.allocator().options().history > 0;
  try {
    const TrainResult result =
        with_host_memory_named(config.data.path, !runtime.stream().on_gpu(), "to train",
                               [&] { return Trainer(runtime, config, options).run(); });
    if (history) write_memory_files(memory_dir, runtime.allocator());
    return result;
  } catch (const OutOfMemory&) {
    try {
      if (history) write_memory_files(memory_dir, runtime.allocator());
    } catch (const Error&) {
      // Running out of memory is what the user has to know of.
    }
    throw;
  }
}

}  // namespace meshgrad
