// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/config/text.h>
#include <meshgrad/train/data/quiet_split.h>
#include <meshgrad/train/run/make_model.h>
#include <meshgrad/train/run/non_finite.h>
#include <meshgrad/train/run/precision.h>
#include <meshgrad/train/run/resume_check.h>
#include <meshgrad/train/run/trainer.h>
#include <meshgrad/train/run/training_data.h>
#include <meshgrad/train/run/validation.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace meshgrad {

Trainer::Trainer(Runtime& runtime, const Config& config, const TrainOptions& options,
                 ChooseRecomputation choose)
    : runtime_(runtime),
      config_(config),
      options_(options),
      choose_(std::move(choose)),
      task_(make_task(config, Dataset::open(config.data.path))),
      model_(make_model(config.model, task_.sizes())),
      normalizers_(config.normalize.mode == NormalizeMode::dataset
                       ? task_.dataset_normalizers(noise_of(config))
                       : task_.online_normalizers()),
      loader_(runtime, config, task_),
      folder_(config.run.dir) {
  check_precision(runtime.device(), config.precision);
  if (config.train.validate_every > 0) task_.dataset().split(config.data.valid_split);  // says which exist
}

/// The story: windows of batches, each window one optimizer step.
TrainResult Trainer::run() {
  options_.resume ? resume() : start();
  const std::string stored = describe_precision(config_.precision, optimizer_->state().loss_scale);
  if (!stored.empty()) message(stored);
  if (state_.micro == 0 && !warming_up()) release_gradients();
  if (state_.validation_due && !end_step()) return stopped();
  const int64_t steps = loader_.total_steps();
  if (state_.step >= steps) {
    message(fmt::format("nothing to do: the run has all its {}; raise train.steps to go on",
                        counted(steps, "step")));
  } else {
    message(describe_schedule(learning_rate(config_.schedule, config_.optimizer.lr, steps)));
  }
  while (state_.step < steps) {
    const auto begin = std::chrono::steady_clock::now();
    while (state_.micro < config_.train.accumulate) {
      train_batch();
      ++state_.micro;
      if (state_.micro < config_.train.accumulate && stop_wanted()) return stopped();
    }
    finish_step();
    step_seconds_.push_back(std::chrono::duration<float>(std::chrono::steady_clock::now() - begin).count());
    if (!end_step()) return stopped();
    if (state_.step < steps && stop_wanted()) return stopped();
  }
  return result(false);
}

/// What is due after a step. False when the validation was stopped, which the resumed run then repeats.
bool Trainer::end_step() {
  const bool last = state_.step == loader_.total_steps();
  const auto due = [&](int64_t every) { return every > 0 && (state_.step % every == 0 || last); };
  state_.validation_due = false;  // before the checkpoint of a best validation
  if (due(config_.train.validate_every) && !validate()) {
    state_.validation_due = true;
    return false;
  }
  check_memory();  // before the checkpoint: a run killed in between would lack its line
  if (due(config_.train.checkpoint_every) || last) save_numbered();
  return true;
}

bool Trainer::stop_wanted() const { return options_.observer.stop && options_.observer.stop(); }

TrainResult Trainer::stopped() {
  save(false);
  message(fmt::format("stopped at step {}; --resume continues", state_.step));
  return result(true);
}

void Trainer::start() {
  folder_.create(config_);
  for (const std::string& warning : task_.dataset().warnings()) message("warning: " + warning);
  for (const std::string& warning : noise_warnings(task_.dataset(), config_)) message("warning: " + warning);
  for (const std::string& warning : scale_warnings(task_.dataset(), config_)) message("warning: " + warning);
  if (config_.train.validate_every > 0 && task_.least_frames() > 1) {
    const std::string& split = config_.data.valid_split;
    const NodeTypeSet types(std::span(config_.data.predicted_types));
    if (const auto quiet = quiet_split(task_.dataset(), split, config_.data.targets, types))
      message(quiet_split_warning(split, *quiet));
  }
  allocate();
  folder_.write_config(config_);
  folder_.write_environment(options_.command, runtime_.device());
  log_.emplace(runtime_, folder_.path(), std::nullopt);
}

/// What the run holds on the device.
void Trainer::allocate() {
  model_.parameters.allocate(runtime_, config_.precision, static_cast<uint64_t>(config_.run.seed));
  optimizer_.emplace(runtime_, model_.parameters, config_.optimizer, config_.train.clip_norm,
                     learning_rate(config_.schedule, config_.optimizer.lr, loader_.total_steps()),
                     config_.loss_scale.rule);
  steps_.emplace(runtime_, config_, task_, model_, *optimizer_, choose_(task_, model_),
                 [this](const std::string& text) { message(text); });
}

void Trainer::resume() {
  const std::filesystem::path checkpoint =
      checkpoint_to_resume(folder_.path(), options_.checkpoint, options_.command);
  folder_.reopen();
  check_same_run(checkpoint, config_);
  allocate();
  state_ = load_checkpoint(checkpoint, runtime_.stream(), model_.parameters, &*optimizer_, normalizers_);
  if (checkpoint_data_fingerprint(checkpoint) != task_.dataset().fingerprint()) {
    throw data_error(checkpoint.string(), "the data it was trained on",
                     config_.data.path + ", which has other content",
                     "give the same packed file, or start a new run");
  }
  // The rest of a last window may hold no batch.
  state_.optimizer.window_weight =
      state_.micro > 0 ? static_cast<double>(loader_.window_weight(state_.step)) : 0.0;
  optimizer_->set_state(state_.optimizer);
  log_.emplace(runtime_, folder_.path(), state_.step);
  folder_.write_config(config_);
  message(fmt::format("resumed {} at step {}", checkpoint.string(), state_.step));
  if (log_->damaged_lines() > 0)
    message(fmt::format("metrics.jsonl: left out {}", counted(log_->damaged_lines(), "damaged line")));
}

/// Online normalisers first observe data, and the model does not run.
bool Trainer::warming_up() const {
  return config_.normalize.mode == NormalizeMode::online && state_.step < config_.normalize.warmup_steps;
}

bool Trainer::learning() const {
  return config_.normalize.mode == NormalizeMode::online && state_.learned < config_.normalize.max_samples;
}

Normalizing Trainer::normalizing() const {
  if (warming_up()) return Normalizing::observe;
  return learning() ? Normalizing::learn : Normalizing::fixed;
}

/// The last window of the last epoch may hold fewer batches: then there is nothing to do.
void Trainer::train_batch() {
  if (warming_up() && !learning()) return;
  const Normalizing mode = normalizing();
  if (mode != Normalizing::observe && !model_.parameters.gradients().defined() &&
      loader_.has_batch({state_.step, state_.micro})) {
    model_.parameters.allocate_gradients(runtime_);
    optimizer_->use_gradients(model_.parameters.gradients());
  }
  const BatchLoader::Loaded loaded = loader_.load({state_.step, state_.micro}, mode, normalizers_, *steps_);
  if (loaded.samples == 0) return;
  check_data();
  if (mode != Normalizing::fixed) state_.learned += loaded.samples;
  if (mode == Normalizing::observe) return;
  steps_->run(loaded.layout, [&](const StoragePtr& to) { return loader_.upload(loaded, to); });
  check_state();
}

void Trainer::finish_step() {
  if (!warming_up()) {
    steps_->update();
    release_gradients();
  }
  state_.micro = 0;
  ++state_.step;
  check_state();
  if (state_.step % config_.train.log_every == 0 || state_.step == loader_.total_steps() ||
      state_.step == 1) {
    check_state(log_->flush());
    log_->step(*optimizer_, state_.step, loader_.samples_until(state_.step), loader_.data_seconds());
  }
  check_state(log_->poll());
  if (options_.observer.progress) {
    const MemoryStats memory = runtime_.allocator().stats();
    options_.observer.progress({state_.step, loader_.total_steps(), state_.optimizer.last_loss,
                                state_.optimizer.learning_rate, memory.allocated.current,
                                memory.allocated.peak});
  }
}

/// On the CPU the state of a step is known at once; that of a GPU arrives with the log.
void Trainer::check_state() {
  if (!runtime_.stream().on_gpu()) check_state(optimizer_->state());
}

/// Single steps may be skipped, but a run whose gradients all overflow would go on for ever without learning.
/// A non-finite loss is an error at once, unless 16 bits may have overflowed.
void Trainer::check_state(const std::optional<StepState>& seen) {
  if (!seen) return;
  state_.optimizer = *seen;
  if (seen->non_finite_losses > 0 && config_.precision != DType::f16)
    report_non_finite("a finite loss", "nan or infinity", *seen);
  if (seen->consecutive_skips >= config_.loss_scale.max_skips) {
    report_non_finite("a finite gradient",
                      fmt::format("{} steps in a row without one", seen->consecutive_skips), *seen);
  }
}

/// Ends the run with the first non-finite value that recomputing the last skipped window finds: its weights
/// are what they were, unless a GPU's state arrived so late that steps were taken since.
void Trainer::report_non_finite(std::string_view needed, const std::string& got, const StepState& seen) {
  const Recomputation recomputation = steps_ ? steps_->recomputation() : Recomputation();
  steps_.reset();  // frees what captured steps hold
  const bool open = !is_finite(seen.window_loss);
  const int64_t window = open ? seen.steps + seen.skipped : seen.last_skipped_step;
  const bool warmed_up = config_.normalize.mode == NormalizeMode::online;
  const int64_t step = window + (warmed_up ? config_.normalize.warmup_steps : 0);
  const double scale = open ? seen.loss_scale : seen.last_skipped_scale;
  std::string found = "every value is finite when it is recomputed";
  std::string fix = "lower optimizer.lr, set train.clip_norm, or look for bad values in the data";
  try {
    if (const auto first = find_non_finite_in_window(runtime_, config_, task_, model_, loader_, step, scale,
                                                     normalizers_, recomputation)) {
      found = first->text();
      fix = first->fix(config_.precision);
    }
  } catch (const Error& error) {
    found = std::string("it cannot be recomputed: ") + error.what();
  }
  const std::string scaled =
      config_.precision == DType::f16 ? fmt::format("loss scale {}; ", scale) : std::string();
  throw data_error(fmt::format("step {}", step + 1), needed, fmt::format("{}; {}{}", got, scaled, found),
                   fix);
}

void Trainer::release_gradients() {
  if (!config_.train.free_gradients) return;
  optimizer_->use_gradients({});
  model_.parameters.release_gradients();
}

/// Logs the memory of an epoch at its end, and releases unused memory as often as the user wants.
void Trainer::check_memory() {
  CachingAllocator& allocator = runtime_.allocator();
  const int64_t every = allocator.options().release_cached_every;
  if (every > 0 && state_.step % every == 0) allocator.release_cached();

  const int64_t window = config_.train.batch * config_.train.accumulate;
  const int64_t samples = loader_.sampler().samples();
  const auto epochs_at = [&](int64_t step) { return step * window / samples; };
  const int64_t epoch = epochs_at(state_.step);
  const bool ended = epoch > epochs_at(state_.step - 1);
  const bool last = state_.step == loader_.total_steps();
  // Epochs may be shorter than the time between two lines of the log: then not each has a line.
  const int64_t log_every = config_.train.log_every;
  const int64_t before = ((epoch - 1) * samples + window - 1) / window;  // step of the epoch before
  if (!last && (!ended || state_.step / log_every == before / log_every)) return;
  const MemoryWatch::Epoch memory = memory_watch_.end_epoch(ended ? epoch : epoch + 1, allocator.stats());
  allocator.reset_peak();
  if (memory.changed) message(memory.line);
  if (!memory.alarm.empty()) message(memory.alarm);
  check_state(log_->flush());
  log_->write({{"step", state_.step},
               {"epoch", memory.number},
               {"memory_allocated_bytes", memory.allocated},
               {"memory_reserved_bytes", memory.reserved},
               {"memory_peak_bytes", memory.peak},
               {"memory_headroom_bytes", memory.headroom},
               {"memory_waste", memory.waste}});
}

/// False when the observer stopped it.
bool Trainer::validate() {
  if (warming_up()) return true;
  pause();
  const std::optional<double> loss =
      validation_loss(runtime_, task_, model_, normalizers_, config_, options_.observer.stop);
  if (!loss) return false;
  state_.last_valid_loss = *loss;
  check_state(log_->flush());
  log_->write({{"step", state_.step}, {"valid_loss", state_.last_valid_loss}},
              {{"valid/loss", state_.last_valid_loss}});
  const bool better = state_.last_valid_loss < state_.best_valid_loss;
  message(fmt::format("step {}: validation loss {:.4g}{}", state_.step, state_.last_valid_loss,
                      better ? " (best so far)" : ""));
  if (better) {
    state_.best_valid_loss = state_.last_valid_loss;
    state_.best_step = state_.step;
    save(true);
  }
  return true;
}

/// A batch of data that changed meanwhile is in no checkpoint: `save` checks too.
void Trainer::check_data() {
  constexpr std::chrono::milliseconds kEvery{100};  // steady-state steps make no system calls
  const auto now = std::chrono::steady_clock::now();
  if (now - data_checked_ < kEvery) return;
  data_checked_ = now;
  task_.dataset().check_unchanged();
}

void Trainer::save(bool best) {
  task_.dataset().check_unchanged();
  check_state(log_->flush());
  check_state(optimizer_->state());
  save_checkpoint(best ? folder_.best() : folder_.last(), runtime_.stream(), config_, task_.dataset(),
                  model_.parameters, *optimizer_, normalizers_, state_);
}

/// last.safetensors is always the newest; numbered copies are links to the same bytes.
void Trainer::save_numbered() {
  pause();
  save(false);
  folder_.number_last(state_.step, config_.train.keep_checkpoints);
}

void Trainer::message(const std::string& text) const {
  if (options_.observer.message) options_.observer.message(text);
}

void Trainer::pause() const {
  if (options_.observer.pause) options_.observer.pause();
}

TrainResult Trainer::result(bool was_stopped) const {
  TrainResult result{was_stopped, state_, folder_.last(), model_.parameters.count(), loader_.total_steps()};
  if (steps_) result.offloaded_bytes = steps_->offloaded_bytes();
  if (step_seconds_.empty()) return result;
  result.first_step_seconds = step_seconds_.front();
  std::vector<float> others(step_seconds_.begin() + (step_seconds_.size() > 1 ? 1 : 0), step_seconds_.end());
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  result.median_step_seconds = *middle;
  result.data_wait_seconds = loader_.data_seconds() / static_cast<double>(step_seconds_.size());
  return result;
}

}  // namespace meshgrad
