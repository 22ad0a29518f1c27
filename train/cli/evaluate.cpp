// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/cli/command.h>
#include <meshgrad/train/cli/output.h>
#include <meshgrad/train/run/predictor.h>

#include <fmt/format.h>

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

nlohmann::ordered_json to_json(const std::vector<FieldError>& fields) {
  nlohmann::ordered_json json;
  for (const FieldError& field : fields) {
    json[field.name] = {
        {"unit", field.unit}, {"rmse", field.rmse}, {"mae", field.mae}, {"relative_l2", field.relative_l2}};
  }
  return json;
}

std::string to_json(const Evaluation& e, int64_t checkpoint_step) {
  nlohmann::ordered_json json{{"split", e.split},
                              {"trajectories", e.trajectories},
                              {"checkpoint_step", checkpoint_step},
                              {"targets", e.targets},
                              {"fields", to_json(e.fields)}};
  if (e.dynamics) {
    const DynamicsErrors& errors = *e.dynamics;
    json["unit"] = errors.unit;
    json["one_step_rmse"] = errors.one_step_rmse;
    json["hold_rmse"] = errors.hold_rmse;
    for (const char* horizon : {"1", "10", "50", "all"})
      json["rollout_rmse"][horizon] = errors.rollout_rmse.at(horizon);
    json["rollout_steps"] = errors.rollout_steps;
    json["rollout_fields"] = to_json(errors.rollout);
  }
  return json.dump(2) + "\n";
}

std::string with_unit(const std::string& unit) { return unit.empty() ? "" : " " + unit; }

std::string to_text(const DynamicsErrors& errors) {
  const std::string unit = with_unit(errors.unit);
  std::string text = fmt::format("one-step RMSE      {:.4e}{}\n", errors.one_step_rmse, unit);
  text += fmt::format("nothing changes    {:.4e}{}   ratio {:.3f}\n", errors.hold_rmse, unit,
                      errors.one_step_rmse / errors.hold_rmse);
  for (const char* horizon : {"1", "10", "50", "all"}) {
    const std::string steps =
        std::string(horizon) == "all" ? fmt::format("all {}", errors.rollout_steps) : horizon;
    text += fmt::format("rollout, {:<9} {:.4e}{}\n", steps, errors.rollout_rmse.at(horizon), unit);
  }
  return text + "\n";
}

std::string to_text(const std::vector<FieldError>& fields, std::string_view what) {
  std::string text = fmt::format("{:<18} {:>10} {:>10} {:>11}  unit\n", what, "RMSE", "MAE", "relative L2");
  for (const FieldError& field : fields) {
    text += fmt::format("{:<18} {:>10.3e} {:>10.3e} {:>11.4f}  {}\n", field.name, field.rmse, field.mae,
                        field.relative_l2, field.unit.empty() ? "-" : field.unit);
  }
  return text;
}

std::string to_text(const Evaluation& e, int64_t checkpoint_step) {
  std::string text = fmt::format("{} on split {}: {} {}, checkpoint of step {}\n\n", e.targets, e.split,
                                 e.trajectories, e.dynamics ? "trajectories" : "meshes", checkpoint_step);
  if (!e.dynamics) return text + to_text(e.fields, "field");
  return text + to_text(*e.dynamics) + to_text(e.fields, "one step") + "\n" +
         to_text(e.dynamics->rollout, "rollout, all");
}

int run(const EvaluateCommand& command, const GlobalOptions& globals) {
  const std::filesystem::path checkpoint = find_checkpoint(command.run, command.checkpoint);
  Runtime runtime({.device = chosen_device(command.device, checkpoint_config(checkpoint).precision, globals),
                   .threads = command.threads,
                   .allocator = allocator_options_from_environment()});
  const Predictor predictor(runtime, checkpoint, command.data);
  EvaluateOptions options = command.evaluate;
  if (command.boundary == "data") options.boundary = RolloutBoundary::data;
  if (command.boundary == "initial") options.boundary = RolloutBoundary::initial;
  if (!globals.quiet) options.progress = [](const std::string& text) { print_note(text); };
  const Evaluation result = evaluate(predictor, options);
  print_result(command.json ? to_json(result, predictor.step()) : to_text(result, predictor.step()));
  return kExitOk;
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
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  evaluate
      ->add_option("--boundary", options->boundary,
                   "Values of nodes that are not predicted (default: rollout.boundary)")
      ->check(CLI::IsMember({"data", "initial"}));
  add_device(*evaluate, options->device);
  add_threads(*evaluate, options->threads);
  add_json(*evaluate, options->json);
  on_run(*evaluate, line, options, run);
}

}  // namespace meshgrad::cli
