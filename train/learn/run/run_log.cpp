// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/kernels/optimizer.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/run/run_log.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

namespace meshgrad {
namespace {

constexpr double kGrowth = 0.05;  // of waste, that raises an alarm

std::string size_text(int64_t bytes) {
  return bytes < kGiB ? fmt::format("{:.1f} MiB", mebibytes(bytes))
                      : fmt::format("{:.2f} GiB", mebibytes(bytes) / 1024.0);
}

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

constexpr const char* kRunSeconds = "run_seconds";

constexpr const char* kNoise = "gradient_noise";
constexpr const char* kSignal = "gradient_signal";

Tensor late_memory(const Runtime& runtime) {
  if (!runtime.stream().on_gpu()) return host_tensor(Shape{kStepStateBytes}, DType::u8);
  void* memory = gpu::allocate_pinned(runtime.device().index, kStepStateBytes);
  return Tensor::borrow(memory, Shape{kStepStateBytes}, DType::u8, [memory] { gpu::free_pinned(memory); });
}

}  // namespace

LateState::LateState(Runtime& runtime) : runtime_(runtime), memory_(late_memory(runtime)) {}

/// The device may still be writing.
LateState::~LateState() {
  try {
    arrived_.await();
  } catch (const Error&) {
    // A device that failed writes no more.
  }
}

void LateState::request(const Tensor& state) {
  copy(state, memory_, runtime_.stream());
  arrived_.record(runtime_.stream());
}

StepState LateState::take() const {
  arrived_.await();
  StepState state;
  std::memcpy(&state, memory_.raw(), sizeof state);
  return state;
}

RunLog::RunLog(Runtime& runtime, const std::filesystem::path& dir, std::optional<int64_t> resumed_at,
               bool validation_due)
    : runtime_(runtime),
      metrics_(resumed_at ? MetricsLog::resume(dir / "metrics.jsonl", *resumed_at,
                                               validation_due ? "valid_loss" : "")
                          : MetricsLog::create(dir / "metrics.jsonl")),
      tensorboard_(dir / "tb"),
      late_(runtime),
      step_(resumed_at.value_or(0)) {
  if (!resumed_at) return;
  cut_events(dir / "tb", *resumed_at, validation_due ? "valid/loss" : "");
  for (const auto& row : read_metrics(dir / "metrics.jsonl")) {
    if (row.contains(kNoise) && row.contains(kSignal)) noise_.add({row.at(kNoise), row.at(kSignal)});
    if (row.contains(kRunSeconds)) earlier_seconds_ = row.at(kRunSeconds);
  }
}

double RunLog::run_seconds(Time now) const { return earlier_seconds_ + seconds_between(began_, now); }

std::vector<std::string> RunLog::gaps(int64_t step, int64_t log_every) const {
  std::vector<std::string> texts;
  if (metrics_.damaged_lines() > 0)
    texts.push_back("metrics.jsonl: left out " + counted(metrics_.damaged_lines(), "damaged line"));
  const int64_t last = metrics_.last_kept_step();
  if (last < step / log_every * log_every) {
    texts.push_back(
        fmt::format("metrics.jsonl ends at step {}, before the checkpoint of step {}: the lines between "
                    "them are missing",
                    last, step));
  }
  return texts;
}

void RunLog::step(const Optimizer& optimizer, int64_t step, int64_t samples, double data_seconds,
                  const std::optional<GradientSquare>& small, int64_t window_samples) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = seconds_between(time_, now);
  const MemoryStats memory = runtime_.allocator().stats();
  pending_ =
      Pending{.step = step,
              .samples = samples,
              .steps_per_second = seconds > 0.0 ? static_cast<double>(step - step_) / seconds : 0.0,
              .data_wait_seconds =
                  step > step_ ? (data_seconds - data_seconds_) / static_cast<double>(step - step_) : 0.0,
              .run_seconds = run_seconds(now),
              .allocated = memory.allocated.current,
              .peak = memory.allocated.peak,
              .reserved = memory.reserved.current,
              .small = small,
              .window_samples = window_samples};
  time_ = now;
  step_ = step;
  data_seconds_ = data_seconds;
  late_.request(optimizer.state_tensor());
  constexpr int64_t kSums = offsetof(StepState, penalty_sum) + sizeof(StepState::penalty_sum);
  fill_zero(optimizer.state_tensor().row_range(0, kSums), runtime_.stream());
}

std::optional<StepState> RunLog::poll() { return pending_ && late_.arrived() ? finish() : std::nullopt; }

std::optional<StepState> RunLog::flush() { return pending_ ? finish() : std::nullopt; }

std::optional<StepState> RunLog::finish() {
  const StepState s = late_.take();
  const Pending line = *pending_;
  const double loss = s.loss_count > 0 ? s.loss_sum / static_cast<double>(s.loss_count) : std::nan("");
  MetricsRow row{{"step", line.step},
                 {"loss", loss},
                 {"learning_rate", s.learning_rate},
                 {"gradient_norm", s.gradient_norm},
                 {"steps_per_second", line.steps_per_second},
                 {"data_wait_seconds", line.data_wait_seconds},
                 {"samples", line.samples},
                 {"effective_batch", line.window_samples},
                 {"skipped_steps", s.skipped}};
  std::vector<std::pair<std::string, double>> scalars{
      {"train/loss", loss},
      {"train/learning_rate", s.learning_rate},
      {"train/gradient_norm", s.gradient_norm},
      {"train/effective_batch", static_cast<double>(line.window_samples)}};
  if (s.penalty_sum != 0.0) {  // loss.change_penalty
    const double penalty = s.penalty_sum / static_cast<double>(s.loss_count);
    row.insert(row.end(), {{"loss_error", loss - penalty}, {"loss_change_penalty", penalty}});
    scalars.insert(scalars.end(),
                   {{"train/loss_error", loss - penalty}, {"train/loss_change_penalty", penalty}});
  }
  add_noise(s, row, scalars);
  pending_.reset();
  if (s.loss_scale != 1.0) row.emplace_back("loss_scale", s.loss_scale);
  row.insert(row.end(), {{"memory_allocated_bytes", line.allocated},
                         {"memory_peak_bytes", line.peak},
                         {"memory_reserved_bytes", line.reserved},
                         {kRunSeconds, line.run_seconds}});
  scalars.insert(scalars.end(), {{"memory/allocated_bytes", static_cast<double>(line.allocated)},
                                 {"memory/peak_bytes", static_cast<double>(line.peak)},
                                 {"memory/reserved_bytes", static_cast<double>(line.reserved)}});
  metrics_.write(row);
  tensorboard_.scalars(line.step, scalars);
  return s;
}

/// Not of a skipped step.
void RunLog::add_noise(const StepState& state, MetricsRow& row,
                       std::vector<std::pair<std::string, double>>& scalars) {
  const std::optional<GradientSquare>& small = pending_->small;
  const auto samples = static_cast<double>(pending_->window_samples);
  if (!small || small->samples >= samples || state.skip != 0) return;
  const GradientNoise now = gradient_noise(*small, {state.gradient_norm * state.gradient_norm, samples});
  noise_.add(now);
  row.insert(row.end(), {{kNoise, now.noise}, {kSignal, now.signal}});
  if (!noise_.scale()) return;
  row.emplace_back("gradient_noise_scale", *noise_.scale());
  scalars.emplace_back("train/gradient_noise_scale", *noise_.scale());
}

void RunLog::write_epoch(MetricsRow row) {
  const auto now = std::chrono::steady_clock::now();
  const double epoch = seconds_between(std::exchange(epoch_began_, now), now);
  row.insert(row.end(), {{"epoch_seconds", epoch}, {kRunSeconds, run_seconds(now)}});
  write(row, {{"time/epoch_seconds", epoch}, {"time/run_seconds", run_seconds(now)}});
}

void RunLog::write(const MetricsRow& row, const std::vector<std::pair<std::string, double>>& scalars) {
  metrics_.write(row);
  if (!scalars.empty()) tensorboard_.scalars(std::get<int64_t>(row.front().second), scalars);
}

MemoryWatch::Epoch MemoryWatch::end_epoch(int64_t number, const MemoryStats& stats) {
  Epoch epoch;
  if (stats.reserved.peak > 0)
    epoch.waste = 1.0 - static_cast<double>(stats.allocated.peak) / static_cast<double>(stats.reserved.peak);
  const int64_t headroom = stats.capacity - stats.reserved.peak;
  epoch.row = {{"epoch", number},
               {"memory_allocated_bytes", stats.allocated.current},
               {"memory_reserved_bytes", stats.reserved.current},
               {"memory_peak_bytes", stats.allocated.peak},
               {"memory_headroom_bytes", headroom},
               {"memory_waste", epoch.waste},
               {"memory_fragmentation", stats.external_fragmentation()}};
  for (int tag = 0; tag < kTagCount; ++tag) {
    const int64_t bytes = stats.tags_at_peak[static_cast<size_t>(tag)];
    if (bytes > 0)
      epoch.row.emplace_back(fmt::format("memory_peak_{}_bytes", name_of(static_cast<Tag>(tag))), bytes);
  }
  const std::string figures = fmt::format(
      "memory {} allocated, {} reserved, peak {}, headroom {}, external fragmentation {:.0f} %",
      size_text(stats.allocated.current), size_text(stats.reserved.current), size_text(stats.allocated.peak),
      size_text(headroom), 100.0 * stats.external_fragmentation());
  epoch.line = fmt::format("epoch {}: {}", number, figures);
  epoch.changed = std::exchange(figures_, figures) != figures;
  if (least_epoch_ == 0 || epoch.waste < least_waste_) {
    least_epoch_ = number;
    least_waste_ = alarmed_waste_ = epoch.waste;
  } else if (epoch.waste >= alarmed_waste_ + kGrowth) {
    alarmed_waste_ = epoch.waste;
    epoch.alarm = fmt::format(
        "memory: fragmentation has grown from {:.0f} % of what is reserved (epoch {}) to {:.0f} % (epoch "
        "{}); {} reserved for {} at most in use; fix: set memory.history, and see with `meshgrad memory "
        "page` what holds it",
        100.0 * least_waste_, least_epoch_, 100.0 * epoch.waste, number, size_text(stats.reserved.peak),
        size_text(stats.allocated.peak));
  }
  return epoch;
}

}  // namespace meshgrad
