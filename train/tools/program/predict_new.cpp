// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/tools/program/errors_text.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/new_data.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/packed_copy.h>
#include <meshgrad/train/tools/program/predict_new.h>
#include <meshgrad/train/tools/program/usage.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace meshgrad::cli {
namespace {

namespace fs = std::filesystem;

/// A packed file as it is; other data as convert reads it with the options that the run's data were read
/// with.
NewData open_new(const fs::path& path, const ConvertOptions& as_trained, const GlobalOptions& globals) {
  if (names_packed_file(path)) return {Dataset::open(path), path};
  ConvertOptions options = as_trained;
  options.input = path;
  options.split = {1.0};
  ConvertReport report;
  Dataset data = packed_copy(std::move(options), report);
  if (!globals.quiet) {
    for (const std::string& warning : report.warnings) print_note("warning: " + warning);
    print_read(report);
  }
  NewData read{std::move(data), path};
  for (const ReadTrajectory& trajectory : report.read) read.names.push_back(trajectory.list);
  return read;
}

/// Of the data that the run was trained on, but for targets without time, which new data need not have.
/// Throws DataError where those data are not there as they were: then nothing says how others are to be read.
ConvertOptions options_of_run(const Config& config, const fs::path& checkpoint) {
  const auto missing = [&](const std::string& got) {
    return data_error(config.data.path,
                      "the data that the run was trained on, with whose options new data are read", got,
                      "read the new data with meshgrad convert and these options, and name the .mgd");
  };
  const auto path = data_of_run(config, checkpoint);
  if (!path) throw missing("no such file");
  const Dataset data = Dataset::open(*path);
  if (const uint64_t trained = checkpoint_data_fingerprint(checkpoint); data.fingerprint() != trained)
    throw missing(fmt::format("content {:016x}, where training had {:016x}", data.fingerprint(), trained));
  ConvertOptions options;
  use_options_of(data, options);
  if (config.task.name == TaskName::mesh_dynamics) return options;
  for (const std::string& target : config.data.targets) {
    options.units.erase(target);
    options.map.erase(target);
    options.axes.erase(target);
  }
  return options;
}

bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

std::string to_json(const NewDataFiles& written, const fs::path& directory) {
  nlohmann::ordered_json json{{"directory", directory.string()}, {"files", nlohmann::ordered_json::array()}};
  for (const NewDataFile& file : written.files)
    json["files"].push_back(
        {{"source", file.source}, {"file", file.file.string()}, {"predicted_frames", file.frames}});
  json["notes"] = written.notes;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string to_text(const NewDataFiles& written, bool over_time) {
  std::string text;
  size_t width = 0;
  for (const NewDataFile& file : written.files) width = std::max(width, file.source.size());
  for (const NewDataFile& file : written.files) {
    text += fmt::format("{:{}}  {}{}\n", file.source, width, file.file.string(),
                        over_time ? "  (" + counted(file.frames, "step") + ")" : std::string());
  }
  const bool fields = std::ranges::any_of(written.files, [](const NewDataFile& file) {
    return file.file.extension() == ".vtu" || file.file.extension() == ".pvd";
  });
  text += std::string(fields ? "ParaView opens VTU and PVD; " : "") + "nothing is compared with a solution\n";
  for (const std::string& note : written.notes) text += note_lines(note);
  return text;
}

}  // namespace

void add_new_data(CLI::App& command, std::vector<std::string>& inputs, NewDataOutputs& outputs,
                  const std::vector<CLI::Option*>& of_run_data) {
  CLI::Option* added = command.add_option(
      "NEW", inputs,
      "Data without a solution, in any format that convert reads; without it the run's own data");
  for (CLI::Option* option : of_run_data) added->excludes(option);
  command.add_option("--format", outputs.formats, "Files of fields: vtu, npz or both; of NEW")
      ->type_name("vtu|npz|vtu,npz")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(one_of({"vtu", "npz"}))
      ->needs(added);
  command
      .add_option("--probe", outputs.probes,
                  "Also write a CSV table of values at this point; may be repeated; of NEW")
      ->type_name("X,Y[,Z]")
      ->allow_extra_args(false)
      ->needs(added);
  command
      .add_flag(
          "--integrals", outputs.integrals,
          "Also write a CSV table of integrals over the mesh and over the boundary of each node type; of NEW")
      ->needs(added);
}

namespace {

/// Of a model that predicts numbers of meshes alone: predictions.csv has them.
PredictionOutputs without_fields(const PredictionOutputs& asked) {
  const std::string option = asked.npz               ? "--format npz"
                             : !asked.probes.empty() ? "--probe"
                             : asked.integrals       ? "--integrals"
                                                     : "";
  if (option.empty()) return {.vtu = false};
  throw config_error(option, "a model with targets on nodes", "targets on graphs alone",
                     "leave it out: predictions.csv and predictions.npz have them");
}

int run_new(const NewDataCommand& command, const GlobalOptions& globals) {
  const fs::path checkpoint = find_checkpoint(command.run, command.checkpoint);
  const Config config = checkpoint_config(checkpoint);
  check_predicts(config, command.over_time);
  if (command.boundary != "initial" && command.boundary != "data" && !path_exists(command.boundary)) {
    throw config_error("--boundary", "initial, data or a table (FILE.csv)", '"' + command.boundary + '"',
                       "choose one of them");
  }
  PredictionOutputs outputs{.vtu = contains(command.outputs.formats, "vtu"),
                            .npz = contains(command.outputs.formats, "npz"),
                            .probes = {},
                            .integrals = command.outputs.integrals};
  for (const std::string& probe : command.outputs.probes) outputs.probes.push_back(parse_probe(probe));
  ConvertOptions as_trained;
  if (!std::ranges::all_of(command.inputs, names_packed_file))
    as_trained = options_of_run(config, checkpoint);
  std::vector<NewData> all;
  for (const std::string& input : command.inputs) all.push_back(open_new(input, as_trained, globals));
  Ranks alone;
  Runtime runtime = predicting_runtime(command.device, command.threads, config.precision, globals, alone);
  MeshPredictor predictor(runtime, checkpoint);
  if (predictor.targets().empty()) outputs = without_fields(outputs);
  const fs::path directory =
      !command.directory.empty()
          ? fs::path(command.directory)
          : fs::path(command.run) / (command.over_time ? "rollouts_new" : "predictions_new");
  NewDataOptions options{.directory = directory,
                         .steps = command.steps > 0 ? command.steps : config.rollout.steps,
                         .boundary = {},
                         .outputs = outputs,
                         .trained = checkpoint_training_data(checkpoint),
                         .progress = {}};
  if (command.boundary == "data") {
    options.boundary.from = NewBoundary::From::data;
  } else if (command.boundary != "initial") {
    options.boundary = {NewBoundary::From::table, command.boundary};
  }
  if (!globals.quiet) options.progress = progress_lines(command.over_time ? "step" : "mesh");
  const NewDataFiles written = predict_new_data(predictor, all, options);
  if (command.json) {
    print_result(to_json(written, directory));
  } else {
    print_text(to_text(written, command.over_time));
  }
  return kExitOk;
}

}  // namespace

int predict_new(const NewDataCommand& command, const GlobalOptions& globals) {
  return on_first_rank([&] { return run_new(command, globals); });
}

}  // namespace meshgrad::cli
