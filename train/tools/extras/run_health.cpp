// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/run/metrics_log.h>
#include <meshgrad/train/learn/run/run_event.h>
#include <meshgrad/train/learn/run/run_folder.h>
#include <meshgrad/train/learn/run/run_start.h>
#include <meshgrad/train/learn/run/run_verdict.h>
#include <meshgrad/train/tools/extras/health.h>
#include <meshgrad/train/tools/program/progress.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

namespace meshgrad {
namespace {

using Verdict = HealthCheck::Verdict;
using Row = std::map<std::string, double>;

/// A quantity over steps.
struct Series {
  std::vector<double> step, value;
  bool empty() const { return value.empty(); }
  Series part(size_t begin, size_t end) const {
    const auto cut = [&](const std::vector<double>& all) {
      return std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                 all.begin() + static_cast<std::ptrdiff_t>(end));
    };
    return {cut(step), cut(value)};
  }
};

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return values.empty() ? std::nan("") : sum / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// What the files of a run say.
struct RunFacts {
  Config config;
  std::vector<Row> rows;
  std::vector<RunEvent> events;
  bool has_events = false;  ///< whether there is an events.jsonl
  double last_step = 0.0;
  std::optional<double> checkpoint_step;  ///< of the checkpoint to resume from, if there is one
  std::string resume;                     ///< with these options

  /// Finite values of `key`, in lines that have `with` too.
  Series series(const std::string& key, const std::string& with = "step") const {
    Series found;
    for (const Row& row : rows) {
      const auto value = row.find(key);
      if (value == row.end() || !row.contains(with) || !std::isfinite(value->second)) continue;
      found.step.push_back(row.at("step"));
      found.value.push_back(value->second);
    }
    return found;
  }
  /// The last event of a kind, or null.
  const RunEvent* last_event(RunEventKind kind) const {
    const auto found = std::find_if(events.rbegin(), events.rend(),
                                    [&](const RunEvent& event) { return event.kind == kind; });
    return found == events.rend() ? nullptr : &*found;
  }
};

std::optional<double> step_of_checkpoint(const std::filesystem::path& path) {
  if (!path_exists(path)) return std::nullopt;
  try {
    return parse_number(SafetensorsFile(path).view().metadata_at("step"));
  } catch (const Error&) {
    return std::nullopt;
  }
}

RunFacts facts_of(const std::filesystem::path& run) {
  if (!path_exists(run / "metrics.jsonl")) {
    throw config_error("RUN", "a run directory with metrics.jsonl", run.string() + " without metrics.jsonl",
                       "name the folder that `meshgrad train` wrote (run.dir)");
  }
  RunFacts facts;
  facts.rows = read_metrics(run / "metrics.jsonl");
  const std::filesystem::path config = run / "config.resolved.toml";
  if (path_exists(config)) facts.config = parse_saved_config(read_file(config), config.string());
  facts.has_events = path_exists(run / "events.jsonl");
  if (facts.has_events) facts.events = read_events(run / "events.jsonl");
  for (const char* const name : {"last", "best"}) {
    if (facts.checkpoint_step) break;
    facts.checkpoint_step = step_of_checkpoint(run / "checkpoints" / fmt::format("{}.safetensors", name));
    facts.resume = name == std::string_view("last") ? "--resume" : "--resume --checkpoint best";
  }
  facts.last_step = facts.checkpoint_step.value_or(0.0);  // whose line may not be written
  for (const Row& row : facts.rows) facts.last_step = std::max(facts.last_step, row.at("step"));
  // While online normalisers warm up nothing is trained: such lines have no loss.
  const auto warmup = static_cast<double>(facts.config.normalize.warmup_steps);
  if (learns_normalizers(facts.config)) {
    std::erase_if(facts.rows,
                  [&](const Row& row) { return row.contains("loss") && row.at("step") <= warmup; });
  }
  return facts;
}

std::string memory_text(double bytes) {
  return bytes_text(static_cast<uint64_t>(std::clamp(bytes, 0.0, 9e18)));
}

HealthCheck check_end(const RunFacts& run, bool running) {
  HealthCheck check{.name = "end"};
  const TrainConfig& train = run.config.train;
  const Series epochs = run.series("epoch");
  const bool whole = train.epochs > 0
                         ? !epochs.empty() && epochs.value.back() >= static_cast<double>(train.epochs)
                         : run.last_step >= static_cast<double>(train.steps);
  check.found = fmt::format("{:.0f} steps{}", run.last_step,
                            train.epochs == 0 ? fmt::format(" of {}", train.steps) : std::string());
  const RunEvent* const error = run.last_event(RunEventKind::error);
  const RunEvent* const stopped = run.last_event(RunEventKind::stopped);
  const auto after_error = [&](RunEventKind kind) {
    const RunEvent* const event = run.last_event(kind);
    return event != nullptr && event > error;
  };
  const bool failed = error != nullptr && !after_error(RunEventKind::stopped) &&
                      !after_error(RunEventKind::resumed) && !after_error(RunEventKind::begins);
  const std::string again = run.checkpoint_step ? "meshgrad train CONFIG " + run.resume
                                                : "meshgrad train CONFIG, from the beginning";
  const std::string kept =
      run.checkpoint_step
          ? fmt::format("{:.0f} of the {:.0f} steps are kept", *run.checkpoint_step, run.last_step)
          : "the run; there is no checkpoint of its last steps: train.checkpoint_every lower keeps more";
  if (running) {
    check.found += "; a process trains here now";
  } else if (failed) {
    check.verdict = Verdict::bad;
    check.found += "; " + error->text.substr(0, error->text.find('\n'));
    check.remedy = "do what the message says, then " + again;
    if (error->field("error") == "out_of_memory")
      check.remedy =
          "meshgrad plan CONFIG names the largest batch that fits and what recomputation saves; then " +
          again;
    check.gain = kept;
  } else if (!whole && run.last_event(RunEventKind::patience) != nullptr) {
    check.found += "; train.patience ended it";
  } else if (!whole) {
    check.verdict = Verdict::note;
    check.found += stopped != nullptr ? "; stopped with a checkpoint"
                   : run.has_events   ? "; it ended without a word: killed, perhaps for memory"
                                      : "; how it ended is unknown, as it has no events.jsonl";
    check.remedy = again;
    check.gain = kept;
  }
  return check;
}

HealthCheck check_memory(const RunFacts& run) {
  HealthCheck check{.name = "memory"};
  const Series peaks = run.series("memory_peak_bytes", "epoch");
  const Series reserved = run.series("memory_reserved_bytes", "epoch");
  const Series waste = run.series("memory_waste");
  if (peaks.empty() || reserved.empty()) {
    check.verdict = Verdict::unknown;
    check.found = "no epoch has ended";
    return check;
  }
  // The first epoch may be without optimizer state or the largest mesh.
  const size_t from = peaks.value.size() > 2 ? 1 : 0;
  const double first = peaks.value[from], last = peaks.value.back();
  check.found =
      fmt::format("peak {} after {}, {} reserved, {:.0f} % of it lost to fragmentation", memory_text(last),
                  counted(static_cast<int64_t>(peaks.value.size()), "epoch"),
                  memory_text(reserved.value.back()), waste.empty() ? 0.0 : 100.0 * waste.value.back());
  // Memory is reserved in segments of megabytes, which a small model cannot fill.
  constexpr double kGrowth = 1.05, kWaste = 0.15, kFewBytes = 32.0 * 1048576.0;
  if (peaks.value.size() > 2 && last > kGrowth * first && last - first > kFewBytes) {
    check.verdict = Verdict::note;
    check.found +=
        fmt::format("; the peak grew by {:.0f} % since epoch {}", 100.0 * (last / first - 1.0), from + 1);
    check.remedy = "set memory.history = 100000 and see in memory/ what grows";
    check.gain = memory_text(last - first);
  } else if (!waste.empty() && waste.value.back() > kWaste &&
             waste.value.back() * reserved.value.back() > kFewBytes) {
    check.verdict = Verdict::note;
    check.remedy = run.config.memory.plan_steps
                       ? "set memory.release_cached_every, or a fixed batch of equal meshes"
                       : "set memory.plan_steps = true";
    check.gain =
        fmt::format("up to {} of reserved memory", memory_text(waste.value.back() * reserved.value.back()));
  }
  return check;
}

/// Whether a check knows fewer figures than it needs, which it then says.
bool too_few(HealthCheck& check, const Series& series, size_t needed, std::string_view noun = "line") {
  const auto known = static_cast<int64_t>(series.value.size());
  if (series.value.size() >= needed) return false;
  check.verdict = Verdict::unknown;
  check.found = fmt::format("{} {} too few to tell", counted(known, noun), known == 1 ? "is" : "are");
  return true;
}

/// What to do about gradients that are too large.
std::string clip_advice(const Config& config) {
  return config.train.clip_norm == 0.0
             ? "set train.clip_norm"
             : fmt::format("set train.clip_norm below {:.3g}", config.train.clip_norm);
}

/// The lowest loss before a step.
std::string lowest(const Series& loss, double before) {
  const auto end = std::ranges::lower_bound(loss.step, before) - loss.step.begin();
  if (end == 0) return "a run that learns: it had no finite loss before";
  const auto least = std::min_element(loss.value.begin(), loss.value.begin() + end);
  return fmt::format("a loss of {:.3g}, which this run had at step {:.0f}", *least,
                     loss.step[static_cast<size_t>(least - loss.value.begin())]);
}

HealthCheck check_loss(const RunFacts& run) {
  HealthCheck check{.name = "loss"};
  const Series loss = run.series("loss");
  for (const Row& row : run.rows) {
    if (!row.contains("loss") || std::isfinite(row.at("loss"))) continue;
    check.verdict = Verdict::bad;
    check.found = fmt::format("not finite at step {:.0f}", row.at("step"));
    check.remedy = fmt::format("lower optimizer.lr, {}, and run meshgrad check CONFIG on the data",
                               clip_advice(run.config));
    check.gain = lowest(loss, row.at("step"));
    return check;
  }
  if (too_few(check, loss, 4)) return check;
  // The first ten epochs, or all that there is.
  size_t end = loss.value.size();
  for (const Row& row : run.rows) {
    if (!row.contains("epoch") || row.at("epoch") < 10.0) continue;
    end = static_cast<size_t>(std::ranges::upper_bound(loss.step, row.at("step")) - loss.step.begin());
    break;
  }
  end = std::clamp<size_t>(end, 4, loss.value.size());
  const size_t part = std::max<size_t>(1, end / 10);
  const double first = mean(loss.part(0, part).value);
  const double then = mean(loss.part(end - part, end).value);
  const size_t tail = std::max<size_t>(1, loss.value.size() / 10);
  const double now = mean(loss.part(loss.value.size() - tail, loss.value.size()).value);
  check.found =
      fmt::format("{:.3g} at first, {:.3g} at step {:.0f}, {:.3g} now", first, then, loss.step[end - 1], now);
  constexpr double kDiverged = 100.0;  // times the first line's, which may be that of an easy batch
  const bool diverged = now > kDiverged * loss.value.front();
  if (then < 0.95 * first && now < 2.0 * then && !diverged) return check;
  check.verdict = Verdict::bad;
  if (diverged) check.found += fmt::format(", {:.3g} in the first line", loss.value.front());
  const std::string clip = clip_advice(run.config);
  check.remedy = diverged              ? "the run has diverged: lower optimizer.lr, and " + clip
                 : then < 0.95 * first ? "the loss rises again: lower optimizer.lr, or " + clip
                                       : "the loss does not fall: change optimizer.lr (a factor of 3), lower "
                                         "train.noise, and run meshgrad check CONFIG";
  check.gain = lowest(loss, run.last_step + 1.0);
  return check;
}

/// As `train` says at a run's end.
HealthCheck check_validation(const RunFacts& run) {
  HealthCheck check{.name = "validation"};
  const RunVerdict verdict = verdict_of(run.rows, run.config);
  check.found = verdict.text;
  if (verdict.kind == RunVerdict::Kind::unknown) {
    check.verdict = Verdict::unknown;
    if (run.config.train.validate_every > 0) return check;
    check.remedy = "set train.validate_every";
    check.gain = "the checkpoint that is best on other data, and this check";
    return check;
  }
  const Series loss = run.series("loss"), errors = run.series("valid_error");
  const bool loss_fell = !loss.empty() && loss.value.back() < loss.value.front();
  constexpr double kHardly = 0.8;
  if (verdict.useless() || verdict.ratio > kHardly) {
    check.verdict = verdict.useless() ? Verdict::bad : Verdict::note;
    if (!verdict.useless()) check.found += ", hardly less than it";
    const bool improves =
        verdict.kind != RunVerdict::Kind::not_finite && verdict.best_step == verdict.last_step;
    check.remedy =
        verdict.kind == RunVerdict::Kind::not_finite
            ? "lower optimizer.lr, and run meshgrad check CONFIG on the data"
        : improves && loss_fell
            ? "the error still falls: train longer (train.steps); if it stays high, see in meshgrad check "
              "CONFIG what the model reads and how far its blocks reach"
            : "lower optimizer.lr, or see in meshgrad check CONFIG whether the splits differ, what the model "
              "reads and how far its blocks reach";
    check.gain = loss_fell ? fmt::format("at most {:.0f} %, by which the training loss fell",
                                         100.0 * (1.0 - loss.value.back() / loss.value.front()))
                           : "none before the training loss falls";
    return check;
  }
  const double best = *std::ranges::min_element(errors.value), now = errors.value.back();
  if (now <= 1.1 * best) return check;
  check.verdict = Verdict::note;
  check.found += fmt::format("; validation error {:.3g} now, {:.3g} at best", now, best);
  check.remedy = "use checkpoints/best, as evaluate does; set train.patience to end such a run earlier";
  check.gain = fmt::format(
      "an error lower by {:.0f} %, and {:.0f} steps less", 100.0 * (1.0 - best / now),
      run.last_step -
          errors.step[static_cast<size_t>(std::ranges::min_element(errors.value) - errors.value.begin())]);
  return check;
}

HealthCheck check_gradients(const RunFacts& run) {
  HealthCheck check{.name = "gradients"};
  const Series norms = run.series("gradient_norm");
  if (too_few(check, norms, 4)) return check;
  const Series skips = run.series("skipped_steps");
  const double skipped = skips.empty() ? 0.0 : skips.value.back();
  const double most = *std::ranges::max_element(norms.value), middle = median(norms.value);
  check.found = fmt::format("norm {:.3g} in the middle, {:.3g} at most; {:.0f} of {:.0f} steps skipped",
                            middle, most, skipped, run.last_step);
  if (skipped > 0.05 * run.last_step) {
    check.verdict = Verdict::bad;
    const Series scales = run.series("loss_scale");
    check.remedy = scales.empty() ? "lower optimizer.lr, or train.clip_norm"
                                  : fmt::format(
                                        "set precision = \"bf16\", or loss_scale.initial = {:.3g}, which "
                                        "the run has come to",
                                        scales.value.back());
    check.gain = fmt::format("{:.0f} % more updates in the same time",
                             100.0 * skipped / std::max(1.0, run.last_step - skipped));
  } else if (most > 100.0 * middle && run.config.train.clip_norm == 0.0) {
    check.verdict = Verdict::note;
    check.remedy = fmt::format("set train.clip_norm = {:.2g}", 2.0 * middle);
    check.gain =
        fmt::format("no update is larger than twice the usual one, instead of {:.0f} times", most / middle);
  }
  return check;
}

/// A step of B samples at a noise scale of N makes 1 / (1 + N / B) of the progress of the best step, and the
/// run needs 1 + B / N times the fewest samples. Source: McCandlish et al. (2018), section 2.3.
HealthCheck check_batch(const RunFacts& run) {
  HealthCheck check{.name = "batch"};
  const Series scales = run.series("gradient_noise_scale", "gradient_noise");
  if (too_few(check, scales, 10)) return check;
  const TrainConfig& train = run.config.train;
  const std::vector<double> drawn = run.series("effective_batch").value;
  const double samples = train.batch_nodes > 0 && !drawn.empty()
                             ? std::accumulate(drawn.begin(), drawn.end(), 0.0) / std::ssize(drawn)
                             : static_cast<double>(train.batch * train.accumulate);
  const std::string_view key = train.batch_nodes > 0 ? "train.batch_nodes" : "train.batch";
  const double scale = std::max(1.0, scales.value.back());
  check.found = fmt::format("{:.0f} samples a step; gradient noise scale {:.3g} samples", samples, scale);
  const auto fewest = [&](double batch) { return 1.0 + batch / scale; };
  const auto steps = [&](double batch) { return 1.0 + scale / batch; };
  if (samples > 2.0 * scale) {
    const double less = std::max(1.0, std::round(scale));
    check.verdict = Verdict::note;
    check.remedy = fmt::format(
        "average fewer samples: train.accumulate lower, or {}, down to {:.0f} samples a step", key, less);
    check.gain = fmt::format("the same loss after {:.2f} times fewer samples, in {:.2f} times as many steps",
                             fewest(samples) / fewest(less), steps(less) / steps(samples));
  } else if (samples < scale / 4.0) {
    const double more = std::round(scale);
    check.verdict = Verdict::note;
    check.remedy = fmt::format(
        "where the device has room or there are more ranks, raise {} towards {:.0f} samples a step, and "
        "optimizer.lr with it",
        key, more);
    check.gain = fmt::format("{:.2f} times fewer steps, for {:.2f} times the samples",
                             steps(samples) / steps(more), fewest(more) / fewest(samples));
  }
  return check;
}

HealthCheck check_speed(const RunFacts& run) {
  HealthCheck check{.name = "speed"};
  const Series speed = run.series("steps_per_second");
  const Series wait = run.series("data_wait_seconds");
  if (too_few(check, speed, 3)) return check;
  const size_t third = speed.value.size() / 3;
  const double all = median(speed.value);
  const double late = median(speed.part(speed.value.size() - third, speed.value.size()).value);
  const double early = median(speed.part(0, speed.value.size() - third).value);
  const double waits = wait.empty() ? 0.0 : median(wait.value);
  const double share = waits * all;
  check.found = fmt::format("{:.3g} steps a second, {:.0f} % of the time without a batch to compute", all,
                            100.0 * share);
  const Series epochs = run.series("epoch");  // the last may not have ended
  if (const size_t n = epochs.value.size(); n > 1)
    check.found += fmt::format(", an epoch in {:.3g} s", epochs.step[n - 2] / epochs.value[n - 2] / all);
  if (share > 0.1) {
    check.verdict = share > 0.3 ? Verdict::bad : Verdict::note;
    check.remedy = "put data.path on a faster disk or into memory (/dev/shm), and give run.threads all CPUs";
    check.gain = fmt::format("at most {:.2f} times as fast", 1.0 / std::max(0.01, 1.0 - share));
  } else if (late < 0.8 * early) {
    check.verdict = Verdict::note;
    check.found += fmt::format("; {:.3g} at last, {:.3g} before", late, early);
    check.remedy =
        "see what else runs on this machine (other programs, a lower clock); train --trace STEP shows where "
        "the "
        "time goes";
    check.gain = fmt::format("{:.2f} times as fast as now", early / late);
  }
  return check;
}

/// Captures, tuning and planning are done in the first epoch; what a run falls back from is among its events.
HealthCheck check_once(const RunFacts& run) {
  HealthCheck check{.name = "work done once"};
  if (const RunEvent* const event = run.last_event(RunEventKind::not_captured); event != nullptr) {
    const bool cpu = event->field("reason") == "cpu";
    check.verdict = Verdict::note;
    check.found = event->text;
    check.remedy = cpu ? "set graphs = \"off\", or train on a GPU"
                       : "remove what the line names, or set graphs = \"off\"";
    check.gain = cpu ? "none on a CPU, which has no launches" : "one launch a step instead of one a kernel";
    return check;
  }
  const Series speed = run.series("steps_per_second");
  if (too_few(check, speed, 4)) return check;
  const double first = speed.value.front();
  const double then = median(speed.part(1, speed.value.size()).value);
  check.found = fmt::format("{:.3g} steps a second in the first line, {:.3g} after it", first, then);
  return check;
}

}  // namespace

std::vector<HealthCheck> examine_run(const std::filesystem::path& run) {
  const RunFacts facts = facts_of(run);
  std::vector<HealthCheck> checks{check_end(facts, folder_is_locked(run)),
                                  check_memory(facts),
                                  check_loss(facts),
                                  check_validation(facts),
                                  check_gradients(facts),
                                  check_speed(facts),
                                  check_once(facts)};
  if (!facts.series("gradient_noise").empty()) checks.push_back(check_batch(facts));
  return checks;
}

}  // namespace meshgrad
