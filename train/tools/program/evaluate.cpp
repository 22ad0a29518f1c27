// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/errors_text.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/usage.h>

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

namespace meshgrad::cli {
namespace {

struct EvaluateCommand {
  std::string run;
  std::string checkpoint = "best";
  std::string data;
  std::string boundary;
  EvaluateOptions evaluate;
  std::string device = "auto";
  int threads = 0;
  bool json = false;
};

RunState state_of(const std::filesystem::path& checkpoint) {
  const SafetensorsFile file = open_checkpoint(checkpoint);
  return read_run_state(file.view(), checkpoint_config(checkpoint));
}

/// What a user should know of last.safetensors beside the best, which is evaluated; empty: nothing.
std::string note_of_last(const EvaluateCommand& command, const std::filesystem::path& best,
                         const std::optional<RankedMetric>& metric) {
  const std::filesystem::path last = best.parent_path() / "last.safetensors";
  if (command.checkpoint != "best" || !path_exists(last)) return "";
  try {
    const RunState ours = state_of(best), theirs = state_of(last);
    const bool rolled =
        !metric && std::isfinite(ours.last_valid_rollout) && std::isfinite(theirs.last_valid_rollout);
    const auto figure_of = [&](const RunState& state) {
      if (metric) return state.last_valid_metric;
      return rolled ? state.last_valid_rollout : state.last_valid_error;
    };
    const double best_figure = figure_of(ours), last_figure = figure_of(theirs);
    const RankedMetric ranked =
        metric.value_or(RankedMetric{rolled ? "relative error of rollouts" : "error"});
    if (std::isnan(best_figure) || !ranked.is_better(last_figure, best_figure)) return "";
    return fmt::format(
        "checkpoints/last, of step {}, is better by its last validation: {} {:.4g} against {:.4g}; evaluate "
        "it "
        "with --checkpoint last",
        theirs.step, ranked.key, last_figure, best_figure);
  } catch (const DataError&) {
    return "";  // a damaged last is no matter of the best
  }
}

std::string to_json(const Evaluation& e, int64_t checkpoint_step, bool last_is_better) {
  nlohmann::ordered_json json{{"split", e.split},
                              {"trajectories", e.trajectories},
                              {"checkpoint_step", checkpoint_step},
                              {"last_is_better", last_is_better},
                              {"targets", e.targets},
                              {"fields", errors_json(e.fields)}};
  for (const Metric& metric : e.metrics) json["metrics"][metric.name] = metric.value;
  if (!e.confusion.empty()) json["confusion"] = e.confusion;
  if (!e.notes.empty()) json["notes"] = e.notes;
  if (!e.baseline.empty()) {
    json["baseline"] = e.baseline;
    json["worse_than_baseline"] = fields_worse_than_baseline(e.fields);
  }
  if (e.dynamics) {
    const DynamicsErrors& errors = *e.dynamics;
    for (const RolloutErrors& rollout : errors.rollouts) {
      const bool all = &rollout == &errors.rollouts.back();
      json["rollout"][all ? "all" : std::to_string(rollout.steps)] = {
          {"steps", rollout.steps}, {"rollouts", rollout.rollouts}, {"fields", errors_json(rollout.fields)}};
    }
    json["boundary"] = errors.boundary == RolloutBoundary::data ? "data" : "initial";
    json["inputs_from_data"] = errors.inputs_from_data;
  }
  return json.dump(2) + "\n";
}

std::string to_text(const DynamicsErrors& errors, int64_t trajectories) {
  std::string text = errors_header("rollout, over these steps");
  std::string notes;
  for (const RolloutErrors& rollout : errors.rollouts) {
    const bool all = &rollout == &errors.rollouts.back();
    const bool shorter = rollout.rollouts < trajectories;
    text += errors_lines(rollout.fields, rollout.steps == 1 ? "step 1"
                                         : all && shorter   ? fmt::format("all, at most {}", rollout.steps)
                                                            : fmt::format("steps 1 to {}", rollout.steps));
    if (shorter) {
      notes += note_lines(fmt::format("{} of {} {} {} steps or more", rollout.rollouts,
                                      counted(trajectories, "rollout"),
                                      rollout.rollouts == 1 ? "has" : "have", rollout.steps));
    }
  }
  return text + notes + given_notes(errors.inputs_from_data, errors.held_types, errors.boundary);
}

/// Rows are the classes of the data, columns those that the model gave.
std::string confusion_text(const std::vector<std::vector<int64_t>>& counts) {
  constexpr size_t kMost = 12;  // columns of a terminal
  if (counts.size() > kMost) return "";
  std::string text = fmt::format("\n{:<16}", "class, given as");
  for (size_t c = 0; c < counts.size(); ++c) text += fmt::format(" {:>7}", c);
  for (size_t c = 0; c < counts.size(); ++c) {
    text += fmt::format("\n{:<16}", c);
    for (const int64_t count : counts[c]) text += fmt::format(" {:>7}", count);
  }
  return text + "\n";
}

std::string to_text(const Evaluation& e, int64_t checkpoint_step, bool of_meshes) {
  std::string text = wrapped(fmt::format("{} on split {}: {}, checkpoint of step {}", e.targets, e.split,
                                         e.dynamics  ? counted(e.trajectories, "trajectory", "trajectories")
                                         : of_meshes ? counted(e.trajectories, "mesh", "meshes")
                                                     : counted(e.trajectories, "graph"),
                                         checkpoint_step),
                             kTextWidth) +
                     "\n\n";
  for (const Metric& metric : e.metrics)
    text += fmt::format("{:<36} {:>10.4g}{}{}\n", metric.name, metric.value, metric.unit.empty() ? "" : " ",
                        metric.unit);
  if (!e.confusion.empty()) text += confusion_text(e.confusion);
  for (const std::string& note : e.notes) text += note_lines(note);
  if (!e.fields.empty()) text += errors_header(e.dynamics ? "one step" : "field") + errors_lines(e.fields);
  text += baseline_notes(e.baseline, e.fields);
  if (!e.dynamics) return text;
  return text + "\n" + to_text(*e.dynamics, e.trajectories);
}

int run_rank(const EvaluateCommand& command, const GlobalOptions& globals,
             const std::filesystem::path& checkpoint, Ranks& ranks) {
  const Config config = checkpoint_config(checkpoint);
  const bool together = predicts_together(config, ranks);
  Runtime runtime = predicting_runtime(command.device, command.threads, config.precision, globals, ranks);
  const Predictor predictor(runtime, checkpoint, command.data, together ? &ranks : nullptr);
  print_notes_of(predictor, globals, ranks);
  EvaluateOptions options = command.evaluate;
  if (command.boundary == "data") options.boundary = RolloutBoundary::data;
  if (command.boundary == "initial") options.boundary = RolloutBoundary::initial;
  const bool tells = !globals.quiet && (ranks.first() || !together);
  if (tells) options.progress = [](const std::string& text) { print_note(text); };
  if (!together) options.ranks = &ranks;
  const Evaluation result = evaluate(predictor, options);
  if (!ranks.first()) return kExitOk;
  const std::string note =
      note_of_last(command, checkpoint, best_metric_of(config, predictor.task().metrics()));
  if (command.json) {
    print_result(to_json(result, predictor.step(), !note.empty()));
  } else {
    print_text(to_text(result, predictor.step(), predictor.task().find_mesh() != nullptr) +
               (note.empty() ? "" : note_lines(note)));
  }
  return kExitOk;
}

int run(const EvaluateCommand& command, const GlobalOptions& globals) {
  return on_ranks({}, [&](Ranks& ranks) {
    const std::filesystem::path checkpoint = find_checkpoint(command.run, command.checkpoint);
    ranks.set_timeout(std::chrono::seconds(checkpoint_config(checkpoint).ranks.timeout));
    return run_rank(command, globals, checkpoint, ranks);
  });
}

}  // namespace

void add_evaluate(CommandLine& line) {
  CLI::App* evaluate = add_command(
      line.app, "evaluate", "Errors of a trained model in physical units, per field",
      {"meshgrad evaluate runs/cylinder --split test", "meshgrad evaluate runs/cylinder --stride 5 --json"});
  const auto options = std::make_shared<EvaluateCommand>();
  evaluate->add_option("RUN", options->run, "Run directory")->required();
  evaluate->add_option("--split", options->evaluate.split, "Split of the data")->capture_default_str();
  evaluate->add_option("--checkpoint", options->checkpoint, "best, last or a file")->capture_default_str();
  evaluate->add_option("--data", options->data, "Packed file to use instead of the run's")->type_name("FILE");
  evaluate->add_option("--stride", options->evaluate.stride, "One-step errors from every N-th frame")
      ->type_name("N")
      ->check(whole_number(1))
      ->capture_default_str();
  evaluate
      ->add_option("--horizons", options->evaluate.horizons,
                   "Errors over the first N steps of rollouts (default: evaluate.horizons)")
      ->type_name("N,N...")
      ->delimiter(',')
      ->check(whole_number(1));
  evaluate
      ->add_option("--boundary", options->boundary,
                   "Values of nodes that are not predicted (default: rollout.boundary)")
      ->type_name("data|initial")
      ->check(one_of({"data", "initial"}));
  evaluate
      ->add_option("--label", options->evaluate.label,
                   "Field on graphs, 1 for an anomaly, that scores of link_reconstruction should tell")
      ->type_name("FIELD");
  add_device(*evaluate, options->device);
  add_threads(*evaluate, options->threads);
  add_json(*evaluate, options->json);
  on_run(*evaluate, line, options, run);
}

}  // namespace meshgrad::cli
