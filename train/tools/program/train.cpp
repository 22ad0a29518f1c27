// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/cpu_share.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/run/metrics_log.h>
#include <meshgrad/train/learn/run/run_verdict.h>
#include <meshgrad/train/learn/train.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/foreign_options.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/line_chart.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/precision_gain.h>
#include <meshgrad/train/tools/program/presets.h>
#include <meshgrad/train/tools/program/progress.h>
#include <meshgrad/train/tools/program/signals.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

namespace meshgrad::cli {
namespace {

struct TrainCommand {
  std::string config;
  std::string presets;
  std::vector<std::string> settings;
  std::string run;
  bool resume = false;
  std::string checkpoint;
  int64_t trace = 0;
  bool fail_if_useless = false;
  bool json = false;
};

constexpr double kProgressSeconds = 5.0;

Config load(const TrainCommand& command) {
  std::vector<std::string> settings;
  for (const Preset& preset : presets_named(command.presets))
    settings.insert(settings.end(), preset.settings.begin(), preset.settings.end());
  settings.insert(settings.end(), command.settings.begin(), command.settings.end());
  if (!command.run.empty()) settings.push_back("run.dir=" + command.run);
  return load_config(command.config, settings);
}

std::string to_json(const TrainResult& result, const Config& config, double start_seconds,
                    const RunVerdict& verdict) {
  const nlohmann::ordered_json json{{"run", config.run.dir},
                                    {"checkpoint", result.checkpoint.string()},
                                    {"step", result.state.step},
                                    {"parameters", result.parameters},
                                    {"unroll_steps", config.unroll.steps},
                                    {"loss", result.state.optimizer.last_loss},
                                    {"valid_loss", result.state.last_valid_loss},
                                    {"best_valid_loss", result.state.best_valid_loss},
                                    {"valid_error", result.state.last_valid_error},
                                    {"best_valid_error", result.state.best_valid_error},
                                    {"best_step", result.state.best_step},
                                    {"best_valid_metric", result.state.best_valid_metric},
                                    {"validation_share", result.validation_share},
                                    {"skipped_steps", result.state.optimizer.skipped},
                                    {"first_step_seconds", result.first_step_seconds},
                                    {"median_step_seconds", result.median_step_seconds},
                                    {"offloaded_bytes", result.offloaded_bytes},
                                    {"data_wait_seconds", result.data_wait_seconds},
                                    {"start_seconds", start_seconds},
                                    {"stopped", result.stopped},
                                    {"verdict", name_of(verdict.kind)},
                                    {"error_over_baseline", verdict.ratio}};
  return json.dump(2) + "\n";
}

std::string to_text(const TrainResult& result, const Config& config, double start_seconds, bool drawn,
                    const RunVerdict& verdict) {
  const RunState& state = result.state;
  std::string text = fmt::format("run         {}\nstep        {} of {}\nparameters  {}\nloss        {:.4g}\n",
                                 config.run.dir, state.step, result.total_steps, result.parameters,
                                 state.optimizer.last_loss);
  if (config.unroll.steps > 1)
    text += fmt::format("unrolled    {} per sample\n", counted(config.unroll.steps, "frame"));
  if (state.best_step >= 0) {
    const std::string metric = best_metric(config);
    if (!metric.empty()) {
      text += fmt::format("validation  {} {:.4g} (best {:.4g} at step {})\n", metric, state.last_valid_metric,
                          state.best_valid_metric, state.best_step);
    }
    text += fmt::format("validation  error {:.4g} ({} {:.4g} at step {}), {:.3g} % of the time\n",
                        state.last_valid_error, metric.empty() ? "best" : "of the best",
                        state.best_valid_error, state.best_step, 100.0 * result.validation_share);
  }
  if (result.first_step_seconds > 0.0) {
    text += fmt::format("step time   first {:.3g} s, median of the others {:.3g} s\n",
                        result.first_step_seconds, result.median_step_seconds);
  }
  if (result.offloaded_bytes > 0) {
    text += fmt::format("offloaded   {:.1f} MiB at most\n", mebibytes(result.offloaded_bytes));
  }
  if (result.first_step_seconds > 0.0)
    text += fmt::format("data wait   {:.3g} ms per step\n", 1e3 * result.data_wait_seconds);
  if (start_seconds > 0.0)
    text += fmt::format("start       first step began after {:.2f} s\n", start_seconds);
  if (state.optimizer.skipped > 0)
    text += fmt::format("skipped     {}\n", counted(state.optimizer.skipped, "step"));
  text += fmt::format("checkpoint  {}\n", result.checkpoint.string());
  if (drawn)
    text += fmt::format("loss curve  {}\n", (std::filesystem::path(config.run.dir) / "loss.svg").string());
  if (!verdict.text.empty()) text += wrapped(verdict.text, kTextWidth, "verdict     ", "            ") + "\n";
  return text;
}

/// Seconds since the start of this process, to a hundredth of a second; 0 if unknown.
double seconds_of_process() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  // The name in brackets may contain blanks; the start is the 20th field after it, in ticks since boot.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0.0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double start = parse_number(field).value_or(0.0) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - start;
}

/// Training and validation loss over steps, from the metrics of the run.
void draw_losses(const std::filesystem::path& run) {
  ChartSeries train{"training", {}, {}};
  ChartSeries valid{"validation", {}, {}};
  int64_t damaged = 0;
  for (const auto& row : read_metrics(run / "metrics.jsonl", &damaged)) {
    for (const auto& [key, series] : {std::pair{"loss", &train}, std::pair{"valid_loss", &valid}}) {
      const auto value = row.find(key);
      if (value == row.end()) continue;
      series->x.push_back(row.at("step"));
      series->y.push_back(value->second);
    }
  }
  const ChartSeries series[] = {train, valid};
  if (damaged > 0) print_note("metrics.jsonl: not in loss.svg: " + counted(damaged, "damaged line"));
  write_line_chart(run / "loss.svg", series, {"Loss", "step", "loss of the normalised target"});
}

std::string_view name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return "invalid_argument";
    case ErrorKind::config:
      return "config";
    case ErrorKind::data:
      return "data";
    case ErrorKind::out_of_memory:
      return "out_of_memory";
    case ErrorKind::device:
      return "device";
    case ErrorKind::ranks:
      return "ranks";
    case ErrorKind::internal:
      return "internal";
  }
  return "internal";
}

/// After its last whole line: that of a process that died while it wrote is cut off.
AppendFile opened_to_append(const std::filesystem::path& path) {
  const std::string text = path_exists(path) ? read_file(path) : std::string();
  return AppendFile(path, text.rfind('\n') + 1);
}

/// A run's events: lines on stderr and, once the run's folder is locked, in its events.jsonl and log.txt.
/// Neither can end the run. Called from any thread.
class Events {
 public:
  Events(const std::string& run, bool quiet, Progress& progress)
      : quiet_(quiet), progress_(progress), run_(run) {}
  /// The error that ends the run, which the caller prints. Usage errors are not written: the folder may
  /// belong to another run.
  void write_error(const Error& error) {
    if (error.kind() == ErrorKind::config || error.kind() == ErrorKind::invalid_argument) return;
    const std::lock_guard lock(mutex_);
    write({.kind = RunEventKind::error,
           .text = std::string("error: ") + error.what(),
           .fields = {{"error", std::string(name_of(error.kind()))}},
           .step = step_});
  }
  /// An event from outside of the trainer, which has no step, gets the latest.
  void operator()(RunEvent event) {
    const std::lock_guard lock(mutex_);
    event.step = step_ = std::max(step_, event.step);
    write(event);
    if (quiet_ || event.kind == RunEventKind::memory) return;  // the progress line has the memory
    progress_.interrupt();
    print_note(event.text);
  }
  /// Of an event that the summary shows.
  void write_only(RunEvent event) {
    const std::lock_guard lock(mutex_);
    event.step = step_;
    write(event);
  }
  void set_step(int64_t step) {
    const std::lock_guard lock(mutex_);
    step_ = step;
  }

  /// From here on the folder is this run's: the events before follow too.
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    for (const RunEvent& event : std::exchange(early_, {})) write(event);
  }

 private:
  void write(const RunEvent& event) {
    if (!open_) {
      early_.push_back(event);
      return;
    }
    append(events_, "events.jsonl", event_line(event));
    append(log_, "log.txt", event.text);
  }
  void append(std::optional<AppendFile>& file, const char* name, std::string line) {
    line += '\n';
    try {
      if (!file) file = opened_to_append(run_ / name);
      file->append(std::as_bytes(std::span(line)));
    } catch (const Error&) {
      // On a full disk: stderr has the line.
    }
  }

  bool quiet_;
  Progress& progress_;
  std::filesystem::path run_;
  std::mutex mutex_;
  int64_t step_ = 0;
  bool open_ = false;
  std::vector<RunEvent> early_;
  std::optional<AppendFile> events_, log_;
};

/// When the run has to stop for the job's end: train.stop_before_limit seconds before SLURM ends it. The
/// latest time there is outside of SLURM, and in a job that has less time left from the start.
std::chrono::system_clock::time_point stop_time(const Config& config, Events& events, bool tells) {
  using Clock = std::chrono::system_clock;
  const char* text = std::getenv("SLURM_JOB_END_TIME");
  const std::optional<double> end = text == nullptr ? std::nullopt : parse_number(text);
  const int64_t margin = config.train.stop_before_limit;
  if (!end || margin == 0 || !(*end > 0.0 && *end < 9e9)) return Clock::time_point::max();
  const Clock::time_point stop{std::chrono::seconds(static_cast<int64_t>(*end) - margin)};
  const auto left = std::chrono::duration_cast<std::chrono::seconds>(stop - Clock::now()).count();
  if (left > 0) {
    if (tells) {
      events({.kind = RunEventKind::time_limit,
              .text = fmt::format("stops with a checkpoint in {}, {} s before the end of the SLURM job",
                                  duration_text(static_cast<double>(left)), margin),
              .fields = {{"seconds", int64_t{left}}}});
    }
    return stop;
  }
  if (tells) {
    events(
        {.kind = RunEventKind::warning,
         .text = fmt::format("warning: the SLURM job ends in {} s, sooner than train.stop_before_limit = {} "
                             "s; the run does not stop before it",
                             left + margin, margin),
         .fields = {}});
  }
  return Clock::time_point::max();
}

/// Names the configuration key when the engine refuses threads: the engine does not know the keys.
Runtime runtime_of(const Config& config, const GlobalOptions& globals, Ranks& ranks, LogSink log) {
  const int share = threads_of_rank(ranks);
  try {
    return Runtime(
        {.device = device_of_rank(config.run.device, config.precision, globals, ranks, "run.device"),
         .threads = config.run.threads > 0 ? static_cast<int>(config.run.threads) : share,
         .seed = static_cast<uint64_t>(config.run.seed),
         .allocator = allocator_options_from_environment(config.memory),
         .log = std::move(log),
         .autotune = config.autotune,
         .tf32 = config.tf32,
         .memory = {}});
  } catch (const ThreadsUnavailable& error) {
    throw config_error(
        "run.threads", error.needed, error.got,
        "set run.threads lower, or raise the limit (ulimit -u, or the control group's pids.max)");
  }
}

/// The command that environment.json and messages name.
std::vector<std::string> words_of(const TrainCommand& command) {
  std::vector<std::string> words{"meshgrad", "train", command.config};
  if (!command.presets.empty()) words.insert(words.end(), {"--preset", command.presets});
  for (const std::string& setting : command.settings) words.insert(words.end(), {"--set", setting});
  if (!command.run.empty()) words.insert(words.end(), {"--run", command.run});
  if (command.resume) words.emplace_back("--resume");
  if (!command.checkpoint.empty()) words.insert(words.end(), {"--checkpoint", command.checkpoint});
  if (command.fail_if_useless) words.emplace_back("--fail-if-useless");
  if (command.trace > 0) words.insert(words.end(), {"--trace", std::to_string(command.trace)});
  return words;
}

/// Of a run that is at its end; without a text for one that was stopped.
RunVerdict final_verdict(const Config& config, const TrainResult& result, Events& events) {
  if (result.stopped) return {};
  const std::filesystem::path metrics = std::filesystem::path(config.run.dir) / "metrics.jsonl";
  RunVerdict verdict;
  try {
    verdict = verdict_of(read_metrics(metrics), config);
  } catch (const Error& error) {
    verdict.text = fmt::format("unknown: {}", error.what());
  }
  events.write_only({.kind = RunEventKind::verdict,
                     .text = "verdict: " + verdict.text,
                     .fields = {{"verdict", std::string(name_of(verdict.kind))}, {"ratio", verdict.ratio}}});
  return verdict;
}

/// Final work of rank 0. Returns the exit code.
int report(const TrainCommand& command, const Config& config, const TrainResult& result, double start_seconds,
           Events& events) {
  bool drawn = true;
  try {
    draw_losses(config.run.dir);
  } catch (const Error& error) {  // the checkpoint is written, and the exit code says so
    drawn = false;
    events({.kind = RunEventKind::warning,
            .text = fmt::format("warning: no loss curve: {}", error.what()),
            .fields = {}});
  }
  const RunVerdict verdict = final_verdict(config, result, events);
  if (command.json) {
    print_result(to_json(result, config, start_seconds, verdict));
  } else {
    print_text(to_text(result, config, start_seconds, drawn, verdict));
  }
  if (result.stopped) return kExitCheckpointed;
  const bool failed =
      verdict.kind == RunVerdict::Kind::not_finite || (command.fail_if_useless && verdict.useless());
  return failed ? kExitFailed : kExitOk;
}

int run_rank(const TrainCommand& command, const GlobalOptions& globals, const Config& config, Ranks& ranks) {
  catch_stop_signals();  // after MPI, which has handlers of its own
  Progress progress(stderr, is_terminal(stderr), kProgressSeconds);
  Events events(config.run.dir, globals.quiet, progress);
  LogSink log;  // the ranks' kernels are the same
  if (ranks.first()) {
    log = [&](LogLevel level, std::string_view text) {
      events({.kind = level == LogLevel::warning ? RunEventKind::warning : RunEventKind::log,
              .text = log_line(level, text),
              .fields = {}});
    };
  }
  Runtime runtime = runtime_of(config, globals, ranks, std::move(log));
  if (const std::string note = foreign_environment_note(); ranks.first() && !note.empty())
    events({.kind = RunEventKind::log, .text = note, .fields = {}});
  if (ranks.first() && !command.resume) {
    const std::string gain = precision_gain(config, runtime.device());
    if (!gain.empty()) events({.kind = RunEventKind::settings, .text = gain, .fields = {}});
  }
  TrainOptions options;
  options.resume = command.resume;
  options.command = words_of(command);
  options.checkpoint = command.checkpoint;
  options.trace_step = command.trace;
  options.ranks = &ranks;
  options.observer.event = [&](const RunEvent& event) { events(event); };
  options.observer.opened = [&] { events.open(); };
  const auto stop_at = stop_time(config, events, ranks.first());
  options.observer.stop = [stop_at] {
    return stop_requested() || std::chrono::system_clock::now() >= stop_at;
  };
  options.observer.pause = [&] { progress.skip_pause(); };
  double start_seconds = 0.0;  // until the end of the first step; then until its start
  options.observer.progress = [&](const TrainObserver::Progress& p) {
    if (start_seconds == 0.0) start_seconds = seconds_of_process();
    events.set_step(p.step);
    if (!globals.quiet) {
      progress.update({.step = p.step,
                       .total = p.steps,
                       .loss = p.loss,
                       .learning_rate = p.learning_rate,
                       .memory_now = static_cast<uint64_t>(p.memory_now),
                       .memory_peak = static_cast<uint64_t>(p.memory_peak)});
    }
  };
  const TrainResult result = [&] {
    try {
      return train(runtime, config, options);
    } catch (const Error& error) {
      if (ranks.first()) events.write_error(error);
      throw;
    }
  }();
  if (start_seconds > 0.0) start_seconds = std::max(0.0, start_seconds - result.first_step_seconds);
  progress.finish();
  if (ranks.first()) return report(command, config, result, start_seconds, events);
  return result.stopped ? kExitCheckpointed : kExitOk;
}

int run(const TrainCommand& command, const GlobalOptions& globals) {
  const Config config = load(command);
  if (command.fail_if_useless && config.train.validate_every == 0) {
    throw config_error("--fail-if-useless", "validations, which the verdict compares",
                       "train.validate_every = 0", "set train.validate_every");
  }
  return on_ranks({.timeout = std::chrono::seconds(config.ranks.timeout)},
                  [&](Ranks& ranks) { return run_rank(command, globals, config, ranks); });
}

}  // namespace

void add_train(CommandLine& line) {
  CLI::App* train = add_command(
      line.app, "train", "Train a model according to a configuration file",
      {"meshgrad train config.toml", "meshgrad train config.toml --set train.batch=4 --set optimizer.lr=3e-4",
       "meshgrad train config.toml --resume"});
  const auto options = std::make_shared<TrainCommand>();
  train->add_option("CONFIG", options->config, "Configuration in TOML; see meshgrad config default")
      ->required();
  train
      ->add_option("--preset", options->presets,
                   "Presets over the file, under --set; see meshgrad config preset")
      ->type_name("NAME,NAME");
  add_settings(*train, options->settings);
  train->add_option("--run", options->run, "Run directory (run.dir)")->type_name("DIR");
  train->add_flag("--resume", options->resume, "Resume from the last checkpoint of the run (run.dir, --run)");
  train->add_option("--checkpoint", options->checkpoint, "With --resume: best, last or a file")
      ->type_name("FILE")
      ->needs("--resume");
  train
      ->add_option("--trace", options->trace,
                   "Write trace-STEP.json of this step into the run, for ui.perfetto.dev")
      ->type_name("STEP")
      ->check(CLI::PositiveNumber);
  train->add_flag("--fail-if-useless", options->fail_if_useless,
                  "Exit code 1 for a run that has learned nothing or is worse than the baseline");
  add_json(*train, options->json);
  on_run(*train, line, options, run);
}

}  // namespace meshgrad::cli
