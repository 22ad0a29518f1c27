// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/cli/command.h>
#include <meshgrad/train/cli/output.h>
#include <meshgrad/train/run/evaluate.h>

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

std::string to_json(const Evaluation& e) {
  const nlohmann::ordered_json json{{"split", e.split},
                                    {"trajectories", e.trajectories},
                                    {"checkpoint_step", e.step},
                                    {"fields", e.fields},
                                    {"unit", e.unit},
                                    {"one_step_rmse", e.one_step_rmse},
                                    {"hold_rmse", e.hold_rmse},
                                    {"rollout_rmse",
                                     {{"1", e.rollout_rmse.at("1")},
                                      {"10", e.rollout_rmse.at("10")},
                                      {"50", e.rollout_rmse.at("50")},
                                      {"all", e.rollout_rmse.at("all")}}},
                                    {"rollout_steps", e.rollout_steps}};
  return json.dump(2) + "\n";
}

std::string to_text(const Evaluation& e) {
  const std::string unit = e.unit.empty() ? "" : " " + e.unit;
  std::string text = fmt::format("{} on split {}: {} trajectories, checkpoint of step {}\n\n", e.fields,
                                 e.split, e.trajectories, e.step);
  text += fmt::format("one-step RMSE      {:.4e}{}\n", e.one_step_rmse, unit);
  text += fmt::format("nothing changes    {:.4e}{}   ratio {:.3f}\n", e.hold_rmse, unit,
                      e.one_step_rmse / e.hold_rmse);
  for (const char* horizon : {"1", "10", "50", "all"}) {
    const std::string steps =
        std::string(horizon) == "all" ? fmt::format("all {}", e.rollout_steps) : horizon;
    text += fmt::format("rollout, {:<9} {:.4e}{}\n", steps, e.rollout_rmse.at(horizon), unit);
  }
  return text;
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
  print_result(command.json ? to_json(result) : to_text(result));
  return kExitOk;
}

}  // namespace

void add_evaluate(CommandLine& line) {
  CLI::App* evaluate = add_command(
      line.app, "evaluate", "Report the errors of a trained model, compared with \"nothing changes\"",
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
