// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/errors_text.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/predict_new.h>
#include <meshgrad/train/tools/program/rollout_files.h>
#include <meshgrad/train/tools/program/usage.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace meshgrad::cli {
namespace {

struct RolloutCommand {
  std::string run;
  std::vector<std::string> inputs;
  NewDataOutputs outputs;
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
                              {"fields", errors_json(files.fields)},
                              {"boundary", files.boundary == RolloutBoundary::data ? "data" : "initial"},
                              {"inputs_from_data", files.inputs_from_data}};
  for (const auto& picture : files.pictures) json["pictures"].push_back(picture.string());
  if (!files.graphs.empty()) json["graphs"] = files.graphs.string();
  return json.dump(2) + "\n";
}

std::string to_text(const RolloutFiles& files) {
  std::string text = fmt::format("{}\nseries    {}  (open in ParaView)\n", counted(files.steps, "step"),
                                 files.series.string());
  for (const auto& picture : files.pictures) text += fmt::format("picture   {}\n", picture.string());
  if (!files.graphs.empty()) text += fmt::format("graphs    {}\n", files.graphs.string());
  text += "\n" + errors_header("rollout, over these steps") +
          errors_lines(files.fields,
                       files.compared == 1 ? "step 1" : fmt::format("steps 1 to {}", files.compared));
  if (files.compared < files.steps) {
    text += note_lines(
        fmt::format("the data ends after {}: from there on boundary values are held, and nothing is compared",
                    counted(files.compared, "step")));
  }
  return text + baseline_notes(files.baseline, files.fields) +
         given_notes(files.inputs_from_data, files.held_types, files.boundary);
}

int run_rank(const RolloutCommand& command, const GlobalOptions& globals,
             const std::filesystem::path& checkpoint, Ranks& ranks) {
  const DType precision = checkpoint_config(checkpoint).precision;
  Runtime runtime = predicting_runtime(command.device, command.threads, precision, globals, ranks);
  const Predictor predictor(runtime, checkpoint, command.data, &ranks);
  print_notes_of(predictor, globals, ranks);
  RolloutFilesOptions options = command.files;
  const int64_t steps = predictor.config().rollout.steps;
  if (options.steps == 0) options.steps = steps;
  if (command.boundary == "data") options.boundary = RolloutBoundary::data;
  if (command.boundary == "initial") options.boundary = RolloutBoundary::initial;
  options.directory = !command.directory.empty()
                          ? std::filesystem::path(command.directory)
                          : std::filesystem::path(command.run) /
                                fmt::format("rollout_{}_{}", options.split, options.trajectory);
  options.writes = ranks.first();
  if (!globals.quiet && ranks.first()) options.progress = progress_lines("step");
  const RolloutFiles files = write_rollout(predictor, options);
  if (!ranks.first()) return kExitOk;
  if (command.json) {
    print_result(to_json(files));
  } else {
    print_text(to_text(files));
  }
  return kExitOk;
}

int run(const RolloutCommand& command, const GlobalOptions& globals) {
  if (!command.inputs.empty()) {
    return predict_new({.over_time = true,
                        .run = command.run,
                        .checkpoint = command.checkpoint,
                        .inputs = command.inputs,
                        .device = command.device,
                        .threads = command.threads,
                        .json = command.json,
                        .directory = command.directory,
                        .steps = command.files.steps,
                        .boundary = command.boundary.empty() ? "initial" : command.boundary,
                        .outputs = command.outputs},
                       globals);
  }
  if (!command.boundary.empty() && command.boundary != "data" && command.boundary != "initial") {
    throw config_error("--boundary", "data or initial, for the run's own data", '"' + command.boundary + '"',
                       "name new data after RUN to give a table of values");
  }
  return on_predicting_ranks(command.run, command.checkpoint,
                             [&](const std::filesystem::path& checkpoint, Ranks& ranks) {
                               return run_rank(command, globals, checkpoint, ranks);
                             });
}

}  // namespace

void add_rollout(CommandLine& line) {
  CLI::App* rollout =
      add_command(line.app, "rollout", "Feed predictions back as inputs, and write files for ParaView",
                  {"meshgrad rollout runs/cylinder new_case.vtu --steps 200 -o out",
                   "meshgrad rollout runs/cylinder --split test --trajectory 0",
                   "meshgrad rollout runs/cylinder --steps 50 -o out"});
  const auto options = std::make_shared<RolloutCommand>();
  rollout->add_option("RUN", options->run, "Run directory")->required();
  CLI::Option* split =
      rollout->add_option("--split", options->files.split, "Split of the data")->capture_default_str();
  CLI::Option* trajectory =
      rollout
          ->add_option("--trajectory", options->files.trajectory, "Index of the trajectory within the split")
          ->type_name("N")
          ->check(whole_number(0))
          ->capture_default_str();
  rollout
      ->add_option("--steps", options->files.steps,
                   "Steps (default: rollout.steps, or to the end of the data)")
      ->type_name("N")
      ->check(whole_number(0));
  CLI::Option* beyond =
      rollout->add_flag("--beyond-data", options->files.beyond_data,
                        "Allow more steps than the data has; boundary values are then held");
  rollout->add_option("-o,--output", options->directory, "Output folder (default: inside the run directory)")
      ->type_name("DIR");
  rollout->add_option("--checkpoint", options->checkpoint, "best, last or a file")->capture_default_str();
  CLI::Option* data =
      rollout->add_option("--data", options->data, "Packed file to use instead of the run's, with truth")
          ->type_name("FILE");
  add_new_data(*rollout, options->inputs, options->outputs, {split, trajectory, beyond, data});
  rollout
      ->add_option(
          "--boundary", options->boundary,
          "Values of nodes that are not predicted: as in the data, as in the first frame (default of "
          "new data), or a table time,node_type,FIELD... (default: rollout.boundary)")
      ->type_name("data|initial|FILE.csv");
  add_device(*rollout, options->device);
  add_threads(*rollout, options->threads);
  add_json(*rollout, options->json);
  on_run(*rollout, line, options, run);
}

}  // namespace meshgrad::cli
