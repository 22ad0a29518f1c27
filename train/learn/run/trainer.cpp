// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/load_teacher.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/learn/run/run_start.h>
#include <meshgrad/train/learn/run/score_file.h>
#include <meshgrad/train/learn/run/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace meshgrad {
namespace {

/// Thrown within a batch.
struct BatchStopped {};

}  // namespace

Trainer::Trainer(Runtime& runtime, const Config& config, const TrainOptions& options,
                 ChooseRecomputation choose)
    : runtime_(runtime),
      config_(check_config(config)),
      options_(options),
      choose_(std::move(choose)),
      ranks_(options.ranks != nullptr ? *options.ranks : alone_),
      task_(make_taught_task(runtime, config, Dataset::open(config.data.path))),
      best_metric_(best_metric_of(config, task_.metrics())),
      model_(make_model(config.model, task_.sizes())),
      normalizers_(first_normalizers(config, task_)),
      parts_(make_parts_to_train_on(runtime, config, ranks_)),
      // The ranks compute every sample together, or each takes its own.
      loader_(runtime, config, task_,
              parts_ ? RankShare() : RankShare{ranks_.rank(), ranks_.size(), config.ranks.reduction},
              parts_ ? &*parts_ : nullptr),
      folder_(config.run.dir),
      sum_(runtime, ranks_, config.ranks, model_) {
  if (config.curriculum.score == CurriculumScore::model && !options.resume) load_scoring_model();
  check_same_on_all_ranks();
  check_precision(runtime.device(), config.precision);
  if (config.train.validate_every > 0) task_.samples(config.data.valid_split);  // says which exist
}

/// The story: windows of batches, each window one optimizer step.
TrainResult Trainer::run() {
  options_.resume ? resume() : start();
  check_trace();
  barrier(ranks_, "start");  // no checkpoint is replaced before all have read it
  describe_ranks();
  const std::string stored = describe_precision(config_.precision, optimizer_->state().loss_scale);
  if (!stored.empty()) tell(RunEventKind::settings, stored);
  const std::string rounded = describe_tf32(runtime_, config_.precision);
  if (!rounded.empty()) tell(RunEventKind::settings, rounded);
  if (state_.micro == 0 && !warming_up()) release_gradients();
  if (state_.validation_due && state_.step > 0 && !end_step()) return stopped();
  const int64_t steps = loader_.total_steps();
  if (state_.step >= steps) {
    tell(RunEventKind::complete,
         fmt::format("nothing to do: the run has all its {}; raise train.steps to go on",
                     counted(steps, "step")),
         {{"steps", steps}});
  } else if (out_of_patience()) {
    tell(RunEventKind::complete,
         fmt::format("nothing to do: the run ended early at step {}; raise train.patience to go on",
                     state_.step),
         {{"steps", state_.step}});
    return result(false);
  } else {
    tell(RunEventKind::begins,
         describe_schedule(learning_rate(config_.schedule, config_.optimizer.lr, steps)), {{"steps", steps}});
    if (!config_.train.freeze.empty())
      tell(RunEventKind::settings, describe_frozen(model_.parameters, config_.train.freeze));
    describe_samples();
    if (!prepare_teacher() || !score_samples() || !validate_start()) return stopped();
  }
  while (state_.step < steps) {
    if (!score_samples()) return stopped();
    const auto begin = std::chrono::steady_clock::now();
    const int64_t sent_before = bytes_sent();
    begin_trace();
    if (!train_window()) return stopped();
    finish_step();
    bytes_sent_ += bytes_sent() - sent_before;
    step_seconds_.push_back(std::chrono::duration<float>(std::chrono::steady_clock::now() - begin).count());
    const bool goes_on = end_step();
    end_trace();
    if (!goes_on) return stopped();
    if (out_of_patience()) {
      tell(RunEventKind::patience,
           fmt::format("ends early at step {}: {} without a new best (train.patience)", state_.step,
                       counted(config_.train.patience, "validation")),
           {{"validations", config_.train.patience}});
      break;
    }
    if (state_.step < steps && stop_wanted()) return stopped();
  }
  return result(false);
}

/// What is due after a step. False when the validation was stopped, which the resumed run then repeats.
bool Trainer::end_step() {
  const bool last = state_.step == loader_.total_steps();
  const auto due = [&](int64_t every) { return every > 0 && (state_.step % every == 0 || last); };
  // Before the checkpoint of a best validation. One that was stopped may be due by an interval of its own
  // plan.
  const bool again = std::exchange(state_.validation_due, false);
  const bool first = state_.step == warmup_steps() && config_.train.validate_every > 0;
  if ((due(validate_every()) || first || again) && !validate(state_.step > warmup_steps())) {
    state_.validation_due = true;
    return false;
  }
  check_memory();  // before the checkpoint: a run killed in between would lack its line
  if (due(config_.train.checkpoint_every) || last || out_of_patience()) save_numbered();
  return true;
}

/// Called by all ranks at the same place of the run.
bool Trainer::stop_wanted() {
  return agree(ranks_, options_.observer.stop && options_.observer.stop(), "stop");
}

TrainResult Trainer::stopped() {
  save(false);
  tell(RunEventKind::stopped, fmt::format("stopped at step {}; --resume continues", state_.step));
  return result(true);
}

void Trainer::start() {
  if (ranks_.first()) {
    folder_.create(config_);
    opened();
    for (const TaskWarning& warning : task_.validate(config_))
      tell(RunEventKind::warning, "warning: " + warning.text);
  }
  allocate();
  if (!config_.train.init.empty()) {
    tell(RunEventKind::weights,
         load_initial_weights(config_, task_, runtime_.stream(), model_.parameters, normalizers_),
         {{"keeps_normalizers", keeps_normalizers(config_)}});
    if (config_.train.ema > 0) optimizer_->start_average(runtime_, config_.train.ema);
  }
  if (!ranks_.first()) return;
  folder_.write_config(config_);
  folder_.write_environment(options_.command, runtime_.device());
  log_.emplace(runtime_, folder_.path(), std::nullopt);
}

/// What the run holds on the device.
void Trainer::allocate() {
  model_.parameters.allocate(runtime_, config_.precision, static_cast<uint64_t>(config_.run.seed));
  optimizer_.emplace(runtime_, model_.parameters, config_, loader_.total_steps());
  steps_.emplace(runtime_, config_, task_, model_, *optimizer_, same_on_all_ranks(choose_(task_, model_)),
                 [this](RunEventKind kind, std::string text, RunEvent::Fields fields) {
                   tell(kind, std::move(text), std::move(fields));
                 });
  if (!options_.observer.stop) return;
  steps_->check_each_op([this] {
    const bool is_long = std::chrono::steady_clock::now() - batch_begin_ >= options_.long_batch;
    if (is_long && window_begin_ && options_.observer.stop()) throw BatchStopped();
  });
}

void Trainer::resume() {
  const std::filesystem::path checkpoint =
      checkpoint_to_resume(folder_.path(), options_.checkpoint, options_.command);
  if (ranks_.first()) {
    folder_.reopen();
    opened();
  }
  check_same_run(checkpoint, config_);
  check_same_teacher(checkpoint, task_);
  allocate();
  state_ = load_checkpoint(checkpoint, runtime_.stream(), model_.parameters, &*optimizer_, normalizers_);
  if (checkpoint_data_fingerprint(checkpoint) != task_.dataset().fingerprint()) {
    throw data_error(
        checkpoint.string(),
        fmt::format("the data it was trained on, with the fingerprint {:016x}",
                    checkpoint_data_fingerprint(checkpoint)),
        fmt::format("{} with the fingerprint {:016x}", config_.data.path, task_.dataset().fingerprint()),
        "give the same packed file, or start a new run");
  }
  load_scores(checkpoint);
  validate_best_again(checkpoint);
  // The rest of a last window may hold no batch.
  state_.optimizer.window_weight = state_.micro > 0 ? loader_.window_weight(state_.step) : 0.0;
  if (state_.micro > 0) loader_.give_to_first_rank(state_.step);  // one process began the window
  if (state_.micro > 0 && !ranks_.first()) {
    if (!parts_) state_.micro = 0;
    state_.optimizer.window_loss = 0.0;
    state_.optimizer.window_penalty = 0.0;
    state_.first_square.reset();
    fill_zero(model_.parameters.gradients(), runtime_.stream());
  }
  optimizer_->set_state(state_.optimizer);
  if (!ranks_.first()) return;
  log_.emplace(runtime_, folder_.path(), state_.step, state_.validation_due);
  folder_.write_config(config_);
  tell(RunEventKind::resumed, fmt::format("resumed {} at step {}", checkpoint.string(), state_.step),
       {{"checkpoint", checkpoint.string()}});
  const Config saved = checkpoint_config(checkpoint);
  if (const std::string change = describe_rate_change(saved, config_, state_.optimizer.steps);
      !change.empty())
    tell(RunEventKind::settings, change);
  for (const std::string& gap : log_->gaps(state_.step, saved.train.log_every))
    tell(RunEventKind::warning, gap);
}

/// Online normalisers first observe data, and the model does not run.
int64_t Trainer::warmup_steps() const {
  return learns_normalizers(config_) ? config_.normalize.warmup_steps : 0;
}

bool Trainer::warming_up() const { return state_.step < warmup_steps(); }

bool Trainer::learning() const {
  return learns_normalizers(config_) && state_.learned < config_.normalize.max_samples;
}

/// False when the run is to stop within the window: then a checkpoint holds the part that is done. Windows
/// that are split to ranks are finished first.
bool Trainer::train_window() {
  ranks_.set_step(state_.step + 1);
  const bool observes = state_.micro == 0 && learning();
  const Normalizing normalizing = learning() ? Normalizing::learning : Normalizing::fixed;
  remember_window(observes);
  if (observes) {
    loader_.observe_window(state_.step, normalizers_);
    state_.learned += loader_.window_samples(state_.step);
  }
  if (warming_up()) return true;
  const bool split = loader_.is_split(state_.step);
  sum_.begin(split ? &loader_.assignment(state_.step) : nullptr, loader_.window_samples(state_.step),
             *optimizer_);
  if (sum_.active()) allocate_gradients();  // also on a rank that has no batch
  const int64_t batches = loader_.batches(state_.step);
  while (state_.micro < batches) {
    try {
      train_batch(normalizing);
    } catch (const BatchStopped&) {
      rewind_window();
      return false;
    }
    ++state_.micro;
    if (ranks_.single() && !split && state_.micro < batches && stop_wanted()) return false;
  }
  sum_.finish(model_.parameters.gradients(), loader_.window_weight(state_.step), *optimizer_);
  small_batch_ = small_batch();  // after the messages of the sum, of which ranks began different numbers
  if (!ranks_.single()) check_state();
  return true;
}

/// A window that began in an earlier process has gradients of its own, and goes on to the end of a batch.
void Trainer::remember_window(bool observes) {
  window_begin_.reset();
  if (state_.micro > 0 || !ranks_.single() || runtime_.stream().on_gpu()) return;
  window_begin_ = {optimizer_->state(), state_.learned, {}};
  if (observes) window_begin_->normalizers = normalizers_;
}

/// Its gradients so far are in no checkpoint.
void Trainer::rewind_window() {
  state_.micro = 0;
  state_.learned = window_begin_->learned;
  state_.first_square.reset();
  state_.optimizer = window_begin_->optimizer;
  optimizer_->set_state(state_.optimizer);
  if (window_begin_->normalizers) normalizers_ = *window_begin_->normalizers;
}

/// Whether the window's first batches (one of each rank) are held against the whole of it: where its line is
/// logged and it has more than one. A part of a mesh has no gradient of its own.
bool Trainer::measures_noise() {
  if (!logs_step(state_.step + 1) || (parts_ && !ranks_.single())) return false;
  return ranks_.single() ? loader_.has_batch({state_.step, 1}) : loader_.window_samples(state_.step) > 1;
}

/// What measures_noise() measured, of the mean gradient. Collective.
std::optional<GradientSquare> Trainer::small_batch() {
  if (!measures_noise()) return std::nullopt;
  GradientSquare mine;
  if (const std::optional<double> square = std::exchange(state_.first_square, std::nullopt)) {
    std::vector<Sample> samples;
    loader_.list_samples({state_.step, 0}, samples);
    // Gradients are sums, divided by the weight of the whole window.
    const double part = task_.loss_weight(config_.data.train_split, samples);
    const double ratio = loader_.window_weight(state_.step) / part;
    if (part > 0.0) mine = {*square * ratio * ratio, static_cast<double>(samples.size())};
  }
  return mean_square(ranks_, mine);
}

void Trainer::allocate_gradients() {
  if (model_.parameters.gradients().defined()) return;
  model_.parameters.allocate_gradients(runtime_);
  optimizer_->use_gradients(model_.parameters.gradients());
}

/// The last window of the last epoch may hold fewer batches: then there is nothing to do.
void Trainer::train_batch(Normalizing normalizing) {
  if (loader_.has_batch({state_.step, state_.micro})) allocate_gradients();
  const BatchLoader::Loaded loaded =
      loader_.load({state_.step, state_.micro}, normalizing, normalizers_, *steps_);
  if (loaded.samples == 0) return;
  check_data();
  const bool first = state_.micro == 0;
  batch_begin_ = std::chrono::steady_clock::now();
  if (parts_ && parts_->in_turn()) {
    run_in_turn(runtime_, task_, model_, *optimizer_, loaded.layout.batch(loaded.memory), loaded.meshes,
                *parts_);
  } else {
    // A sum that begins during backward would leave no gradient of this rank alone.
    const bool last = state_.micro + 1 == loader_.batches(state_.step) && !(first && measures_noise());
    steps_->run(
        loaded.layout, [&](const StoragePtr& to) { return loader_.upload(loaded, to); },
        last ? sum_.while_backward(model_.parameters.gradients()) : GradientsReady());
  }
  if (ranks_.single()) check_state();
  if (first && measures_noise()) state_.first_square = optimizer_->squared_gradient_norm(runtime_);
  sum_.add_batch(model_.parameters.gradients(), *optimizer_);
}

void Trainer::finish_step() {
  if (!warming_up()) {
    steps_->update();
    release_gradients();
  }
  state_.micro = 0;
  ++state_.step;
  check_state();
  if (logs_step(state_.step)) {
    const Span span("log");
    flush_log();
    if (log_)
      log_->step(*optimizer_, state_.step, loader_.samples_until(state_.step), loader_.data_seconds(),
                 small_batch_, loader_.window_samples(state_.step - 1));
  }
  if (log_) check_state(log_->poll());
  if (ranks_.first() && options_.observer.progress) {
    const MemoryStats memory = runtime_.allocator().stats();
    options_.observer.progress({state_.step, loader_.total_steps(), state_.optimizer.last_loss,
                                state_.optimizer.learning_rate, memory.allocated.current,
                                memory.allocated.peak});
  }
}

bool Trainer::logs_step(int64_t step) const {
  return step % config_.train.log_every == 0 || step == loader_.total_steps() || step == 1;
}

void Trainer::flush_log() {
  if (log_) check_state(log_->flush());
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

  const int64_t log_every = config_.train.log_every;
  const auto epochs_at = [&](int64_t step) { return loader_.sampler().pass_of(loader_.samples_until(step)); };
  const int64_t epoch = epochs_at(state_.step);
  const bool ended = epoch > epochs_at(state_.step - 1);
  const bool last = state_.step == loader_.total_steps();
  // Epochs may be shorter than the time between two lines of the log: then not each has a line.
  const int64_t before = ended ? loader_.steps_of(epoch - 1) : 0;  // step of the epoch before
  if (!last && (!ended || state_.step / log_every == before / log_every)) return;
  const MemoryWatch::Epoch memory = memory_watch_.end_epoch(ended ? epoch : epoch + 1, allocator.stats());
  allocator.reset_peak();
  if (memory.changed) tell(RunEventKind::memory, memory.line, memory.row);
  if (!memory.alarm.empty()) {
    tell(RunEventKind::memory_waste, memory.alarm,
         {{"epoch", ended ? epoch : epoch + 1}, {"memory_waste", memory.waste}});
  }
  flush_log();
  if (!log_) return;
  MetricsRow row = memory.row;
  row.insert(row.begin(), {"step", state_.step});
  if (const auto scale = log_->noise_scale()) row.emplace_back("gradient_noise_scale", *scale);
  log_->write_epoch(std::move(row));
}

/// A batch of data that changed meanwhile is in no checkpoint: `save` checks too.
void Trainer::check_data() {
  constexpr std::chrono::milliseconds kEvery{100};  // steady-state steps make no system calls
  const auto now = std::chrono::steady_clock::now();
  if (now - data_checked_ < kEvery) return;
  data_checked_ = now;
  task_.dataset().check_unchanged();
}

/// Of rank 0: a checkpoint knows nothing of ranks.
void Trainer::save(bool best) {
  if (!ranks_.first()) return;
  const Span span("checkpoint");
  task_.dataset().check_unchanged();
  folder_.check_held();
  flush_log();
  if (log_) log_->sync();
  check_state(optimizer_->state());
  CheckpointExtra extra{{},
                        {{"samples_per_epoch", std::to_string(loader_.sampler().samples())},
                         {"sample", task_.describe().sample},
                         {"samples_drawn", std::to_string(loader_.samples_until(state_.step))},
                         {"steps", std::to_string(loader_.total_steps())}}};
  if (task_.teacher() != nullptr) extra.metadata["teacher"] = task_.teacher()->hash();
  if (const Curriculum* const curriculum = loader_.curriculum()) {
    extra.metadata[kScoresKey] = curriculum->hashes();
    extra.metadata.erase("samples_per_epoch");
    extra.metadata["epoch"] = std::to_string(loader_.epoch_of(state_.step));
  }
  save_checkpoint(best ? folder_.best() : folder_.last(), runtime_.stream(), config_, task_.dataset(),
                  model_.parameters, *optimizer_, normalizers_, state_, &extra);
}

/// last.safetensors is always the newest; numbered copies are links to the same bytes.
void Trainer::save_numbered() {
  pause();
  save(false);
  if (ranks_.first()) folder_.number_last(state_.step, config_.train.keep_checkpoints);
}

void Trainer::tell(RunEventKind kind, std::string text, RunEvent::Fields fields) const {
  if (!ranks_.first() || !options_.observer.event) return;
  options_.observer.event(
      {.kind = kind, .text = std::move(text), .fields = std::move(fields), .step = state_.step});
}

void Trainer::opened() const {
  if (options_.observer.opened) options_.observer.opened();
  if (folder_.locked()) return;
  tell(RunEventKind::warning, "warning: the file system has no locks: start no second process on this run");
}

}  // namespace meshgrad
