// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/cli/command.h>
#include <meshgrad/train/cli/output.h>
#include <meshgrad/train/report/rollout_files.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace meshgrad::cli {
namespace {

struct RolloutCommand {
  std::string run;
  std::string checkpoint = "best";
  std::string data;
  std::string boundary;
  std::string directory;
  RolloutFilesOptions files;
  std::string device = "auto";
  int threads = 0;
  bool json = false;
};

std::string to_json(const RolloutFiles& files) {
  nlohmann::ordered_json json{{"series", files.series.string()},
                              {"steps", files.steps},
                              {"compared", files.compared},
                              {"rmse", files.rmse}};
  for (const FieldError& field : files.fields)
    json["fields"][field.name] = {{"unit", field.unit}, {"rmse", field.rmse}};
  for (const auto& picture : files.pictures) json["pictures"].push_back(picture.string());
  return json.dump(2) + "\n";
}

std::string to_text(const RolloutFiles& files) {
  std::string text = fmt::format("{} steps, RMSE {:.4e}\nseries    {}  (open in ParaView)\n", files.steps,
                                 files.rmse, files.series.string());
  if (files.compared < files.steps)
    text += fmt::format(
        "note      the data ends after {} steps: boundary values are held from there on, and RMSE "
        "is over these steps\n",
        files.compared);
  for (const auto& picture : files.pictures) text += fmt::format("picture   {}\n", picture.string());
  return text;
}

int run(const RolloutCommand& command, const GlobalOptions& globals) {
  const std::filesystem::path checkpoint = find_checkpoint(command.run, command.checkpoint);
  Runtime runtime({.device = chosen_device(command.device, checkpoint_config(checkpoint).precision, globals),
                   .threads = command.threads,
                   .allocator = allocator_options_from_environment()});
  const Predictor predictor(runtime, checkpoint, command.data);
  RolloutFilesOptions options = command.files;
  const int64_t steps = predictor.config().rollout.steps;
  if (options.steps == 0) options.steps = steps;
  if (command.boundary == "data") options.boundary = RolloutBoundary::data;
  if (command.boundary == "initial") options.boundary = RolloutBoundary::initial;
  options.directory = !command.directory.empty()
                          ? std::filesystem::path(command.directory)
                          : std::filesystem::path(command.run) /
                                fmt::format("rollout_{}_{}", options.split, options.trajectory);
  if (!globals.quiet) options.progress = progress_lines("step");
  const RolloutFiles files = write_rollout(predictor, options);
  print_result(command.json ? to_json(files) : to_text(files));
  return kExitOk;
}

}  // namespace

void add_rollout(CommandLine& line) {
  CLI::App* rollout =
      add_command(line.app, "rollout", "Feed predictions back as inputs, and write files for ParaView",
                  {"meshgrad rollout runs/cylinder --split test --trajectory 0",
                   "meshgrad rollout runs/cylinder --steps 50 -o out"});
  const auto options = std::make_shared<RolloutCommand>();
  rollout->add_option("RUN", options->run, "Run directory")->required();
  rollout->add_option("--split", options->files.split, "Split of the data")->capture_default_str();
  rollout->add_option("--trajectory", options->files.trajectory, "Index of the trajectory within the split")
      ->type_name("N")
      ->capture_default_str();
  rollout
      ->add_option(
          "--steps", options->files.steps,
          "Steps (0: rollout.steps, or the whole trajectory; beyond the data, boundary values are held)")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  rollout->add_option("-o,--output", options->directory, "Output folder (default: inside the run directory)")
      ->type_name("DIR");
  rollout->add_option("--checkpoint", options->checkpoint, "best, last or a file")->capture_default_str();
  rollout->add_option("--data", options->data, "Packed file to use instead of the run's")->type_name("FILE");
  rollout
      ->add_option("--boundary", options->boundary,
                   "Values of nodes that are not predicted (default: rollout.boundary)")
      ->check(CLI::IsMember({"data", "initial"}));
  add_device(*rollout, options->device);
  add_threads(*rollout, options->threads);
  add_json(*rollout, options->json);
  on_run(*rollout, line, options, run);
}

}  // namespace meshgrad::cli
