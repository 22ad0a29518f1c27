// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/errors_text.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/predict_graphs.h>
#include <meshgrad/train/tools/program/predict_new.h>
#include <meshgrad/train/tools/program/rollout_files.h>
#include <meshgrad/train/tools/program/table_files.h>
#include <meshgrad/train/tools/program/usage.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace meshgrad::cli {
namespace {

struct PredictCommand {
  std::string run;
  std::vector<std::string> inputs;
  NewDataOutputs outputs;
  std::string checkpoint = "best";
  std::string data;
  std::string directory;
  PredictionFilesOptions files;
  std::string device = "auto";
  int threads = 0;
  bool json = false, names_split = false;
};

std::string to_json(const PredictionFiles& files, const std::string& directory) {
  nlohmann::ordered_json json{
      {"directory", directory}, {"meshes", files.meshes.size()}, {"fields", errors_json(files.fields)}};
  for (size_t i = 0; i < files.meshes.size(); ++i)
    json["files"].push_back({{"source", files.sources[i]}, {"file", files.meshes[i].string()}});
  for (const auto& picture : files.pictures) json["pictures"].push_back(picture.string());
  if (!files.graphs.empty()) json["graphs"] = files.graphs.string();
  return json.dump(2) + "\n";
}

std::string to_text(const PredictionFiles& files, const std::string& directory) {
  std::string text;
  if (!files.meshes.empty())
    text = fmt::format("{} in {}  (open in ParaView)\n", counted(std::ssize(files.meshes), "VTU file"),
                       directory);
  text += errors_header("field") + errors_lines(files.fields) + baseline_notes(files.baseline, files.fields);
  for (const auto& picture : files.pictures) text += fmt::format("picture   {}\n", picture.string());
  if (!files.graphs.empty()) text += fmt::format("graphs    {}\n", files.graphs.string());
  return text;
}

/// Of a task that is not on meshes: a row for each node or graph.
int write_rows(const PredictCommand& command, const PredictedTable& table, const Dataset& data,
               const std::filesystem::path& directory) {
  const TableFiles files = write_table(table, data.path().string(), directory);
  if (command.json) {
    const nlohmann::ordered_json json{{"rows", table.numbers.size()},
                                      {"of", table.rows},
                                      {"columns", table.column_names()},
                                      {"csv", files.csv.string()},
                                      {"npz", files.npz.string()}};
    print_result(json.dump(2) + "\n");
  } else {
    print_text(fmt::format("{} of split {} in {} and {}\n", counted(std::ssize(table.numbers), table.rows),
                           command.files.split, files.csv.string(), files.npz.filename().string()));
  }
  return kExitOk;
}

std::filesystem::path folder_of(const PredictCommand& command) {
  if (!command.directory.empty()) return command.directory;
  return std::filesystem::path(command.run) / fmt::format("predictions_{}", command.files.split);
}

int run_rank(const PredictCommand& command, const GlobalOptions& globals,
             const std::filesystem::path& checkpoint, Ranks& ranks) {
  const Config config = checkpoint_config(checkpoint);
  Runtime runtime = predicting_runtime(command.device, command.threads, config.precision, globals, ranks);
  if (!command.data.empty()) {
    const Dataset data = Dataset::open(command.data);
    if (lacks_targets(config, data)) {
      if (!ranks.first()) return kExitOk;
      GraphPredictor unlabelled(runtime, checkpoint);
      if (command.names_split && !unlabelled.per_graph()) {
        throw config_error("--split", "nodes with classes, of which a split has a part",
                           "no field " + config.data.targets.front() + " in " + command.data,
                           "leave it out: all nodes are predicted");
      }
      return write_rows(command,
                        predict_without_targets(unlabelled, data, command.files.split, command.files.meshes),
                        data, folder_of(command));
    }
  }
  const Predictor predictor(runtime, checkpoint, command.data, &ranks);
  print_notes_of(predictor, globals, ranks);
  PredictionFilesOptions options = command.files;
  options.directory = folder_of(command);
  if (predictor.task().find_mesh() == nullptr) {
    if (!ranks.first()) return kExitOk;
    const PredictedTable table =
        predict_table(predictor, {.split = command.files.split, .trajectories = command.files.meshes});
    return write_rows(command, table, predictor.dataset(), options.directory);
  }
  options.writes = ranks.first();
  if (!globals.quiet && ranks.first()) options.progress = progress_lines("mesh");
  const PredictionFiles files = write_predictions(predictor, options);
  const std::string directory = options.directory.string();
  if (!ranks.first()) return kExitOk;
  if (command.json) {
    print_result(to_json(files, directory));
  } else {
    print_text(to_text(files, directory));
  }
  return kExitOk;
}

int run(const PredictCommand& command, const GlobalOptions& globals) {
  if (!command.inputs.empty()) {
    return predict_new({.run = command.run,
                        .checkpoint = command.checkpoint,
                        .inputs = command.inputs,
                        .device = command.device,
                        .threads = command.threads,
                        .json = command.json,
                        .directory = command.directory,
                        .outputs = command.outputs},
                       globals);
  }
  return on_predicting_ranks(command.run, command.checkpoint,
                             [&](const std::filesystem::path& checkpoint, Ranks& ranks) {
                               return run_rank(command, globals, checkpoint, ranks);
                             });
}

}  // namespace

void add_predict(CommandLine& line) {
  CLI::App* predict = add_command(
      line.app, "predict",
      "Predict steady fields, of new data or of the run's own, as VTU; nodes and graphs as CSV and NPZ",
      {"meshgrad predict runs/poisson part_a.vtu part_b.vtu -o out", "meshgrad predict runs/poisson",
       "meshgrad predict runs/poisson --meshes 10 -o out"});
  const auto options = std::make_shared<PredictCommand>();
  predict->add_option("RUN", options->run, "Run directory")->required();
  CLI::Option* split = predict->add_option("--split", options->files.split, "Split of the data")
                           ->capture_default_str()
                           ->each([options](const std::string&) { options->names_split = true; });
  CLI::Option* meshes =
      predict->add_option("--meshes", options->files.meshes, "The first N meshes or graphs (default: all)")
          ->type_name("N")
          ->check(whole_number(1));
  predict->add_option("-o,--output", options->directory, "Folder to write to (default: inside the run)")
      ->type_name("DIR");
  predict->add_option("--checkpoint", options->checkpoint, "best, last or a file")->capture_default_str();
  CLI::Option* data =
      predict->add_option("--data", options->data, "Another packed file than the run's; of meshes with truth")
          ->type_name("FILE");
  add_new_data(*predict, options->inputs, options->outputs, {split, meshes, data});
  add_device(*predict, options->device);
  add_threads(*predict, options->threads);
  add_json(*predict, options->json);
  on_run(*predict, line, options, run);
}

}  // namespace meshgrad::cli
