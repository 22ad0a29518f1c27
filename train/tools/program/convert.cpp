// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/sources/array_map.h>
#include <meshgrad/train/data/packed_file.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/describe.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/progress.h>
#include <meshgrad/train/tools/program/usage.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

namespace meshgrad::cli {
namespace {

struct Options {
  ConvertOptions convert;
  std::vector<std::string> units, map, axes;
  std::string by = "auto";
  std::string cells = "auto";
  std::string graph = "auto";
  std::optional<double> dt;
  bool directed = false, undirected = false, force = false;
  std::string manifest;
  bool json = false;
};

nlohmann::ordered_json read_json(const std::vector<ReadTrajectory>& read) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ReadTrajectory& t : read) {
    list.push_back({{"name", t.name},
                    {"split", t.split},
                    {"frames", t.frames},
                    {"dt", t.dt},
                    {"times", t.times},
                    {"files", t.files}});
  }
  return list;
}

std::string to_json(const ConvertReport& report) {
  nlohmann::ordered_json json = {
      {"format", report.format},
      {"map", report.map},
      {"read", read_json(report.read)},
      {"input_bytes", report.input_bytes},
      {"output_bytes", report.output_bytes},
      {"warnings", report.warnings},
      {"notes", report.notes},
  };
  json.update(facts_json(report));
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string to_text(const ConvertReport& report, const std::string& output) {
  std::string text =
      fmt::format("wrote     {} ({}, from {} of {})\n", output, bytes_text(report.output_bytes),
                  bytes_text(report.input_bytes), report.format);
  text += facts_text(report);
  for (const std::string& line : read_lines(report.read)) text += "read      " + line + "\n";
  return text;
}

/// One line a second on stderr: enough for a terminal and for a log.
std::function<void(const ConvertProgress&)> convert_progress() {
  using Clock = std::chrono::steady_clock;
  return [last = Clock::now()](const ConvertProgress& progress) mutable {
    const auto now = Clock::now();
    if (now - last < std::chrono::seconds(1)) return;
    last = now;
    print_note(fmt::format("read {} of {}, {}", progress.trajectories,
                           counted(progress.total_trajectories, "trajectory", "trajectories"),
                           bytes_text(progress.bytes)));
  };
}

/// A packed file at the output that this conversion would make again. A map is only known from converting.
bool is_done(const ConvertOptions& options) {
  std::error_code none;
  return !options.replace && options.save_map.empty() &&
         std::filesystem::is_regular_file(options.output, none) && is_packed_file(options.output) &&
         is_up_to_date(options);
}

SplitBy split_by_named(const std::string& word) {
  if (word == "auto") return SplitBy::automatic;
  if (word == "trajectory") return SplitBy::trajectory;
  if (word == "time") return SplitBy::time;
  throw invalid_argument("--by", "auto, trajectory or time", "\"" + word + "\"");
}

GraphOn graph_named(const std::string& word) {
  if (word == "auto") return GraphOn::automatic;
  if (word == "nodes") return GraphOn::nodes;
  if (word == "cells") return GraphOn::cells;
  throw invalid_argument("--graph", "auto, nodes or cells", "\"" + word + "\"");
}

std::optional<CellKind> cells_named(const std::string& word) {
  if (word == "auto") return std::nullopt;
  if (word == "triangle") return CellKind::triangle;
  if (word == "quad") return CellKind::quad;
  if (word == "tet") return CellKind::tetrahedron;
  if (word == "hex") return CellKind::hexahedron;
  throw invalid_argument("--cells", "auto, triangle, quad, tet or hex", "\"" + word + "\"");
}

using Pairs = std::map<std::string, std::string>;

Pairs pairs(const std::vector<std::string>& words, const std::string& option, const std::string& form,
            const std::string& example) {
  Pairs found;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == word.size()) {
      throw invalid_argument(option, form, "\"" + word + "\"",
                             fmt::format("write for example {} {}", option, example));
    }
    if (!found.emplace(word.substr(0, equals), word.substr(equals + 1)).second) {
      throw invalid_argument(option, "each name once", "two for " + word.substr(0, equals),
                             "leave one of them out");
    }
  }
  return found;
}

/// --map NAME=ARRAY and --map @FILE, in any number. Later files win, and what the line itself says wins over
/// all of them.
Pairs map_of(const std::vector<std::string>& words, std::vector<std::filesystem::path>& files) {
  std::vector<std::string> given;
  Pairs all;
  for (const std::string& word : words) {
    if (word.starts_with('@')) {
      files.emplace_back(word.substr(1));
      for (auto& [name, array] : read_array_map(files.back())) all[name] = array;
    } else {
      given.push_back(word);
    }
  }
  for (auto& [name, array] : pairs(given, "--map", "NAME=ARRAY or @FILE", "positions=mesh/xyz"))
    all[name] = array;
  return all;
}

int run(const Options& options, const GlobalOptions& globals) {
  ConvertOptions convert_options = options.convert;
  convert_options.split_by = split_by_named(options.by);
  convert_options.cells = cells_named(options.cells);
  convert_options.graph = graph_named(options.graph);
  if (options.directed || options.undirected) convert_options.directed = options.directed;
  if (options.dt && !(std::isfinite(*options.dt) && *options.dt > 0)) {
    throw invalid_argument("--dt", "a positive number of seconds", fmt::format("{}", *options.dt),
                           "say the seconds between frames, or leave it out where the files say them");
  }
  convert_options.dt = options.dt.value_or(0);
  convert_options.units = pairs(options.units, "--unit", "FIELD=UNIT", "velocity=m/s");
  convert_options.map = map_of(options.map, convert_options.also_read);
  convert_options.replace = options.force;
  convert_options.axes = pairs(options.axes, "--axes", "ARRAY=AXIS,AXIS,..", "velocity=components,nodes");
  if (!globals.quiet) convert_options.progress = convert_progress();
  const std::string output = convert_options.output.string();
  if (is_done(convert_options)) {
    if (!options.manifest.empty()) write_manifest(convert_options, options.manifest);
    options.json ? print_result(nlohmann::ordered_json{{"up_to_date", output}}.dump(2) + "\n")
                 : print_text(fmt::format("up to date {}, which was made of this input\n", output));
    return kExitOk;
  }
  const ConvertReport report = convert(convert_options);
  if (!options.manifest.empty()) write_manifest(convert_options, options.manifest);
  if (!globals.quiet) {
    for (const std::string& warning : report.warnings) print_note("warning: " + warning);
    for (const std::string& note : report.notes) print_note(note);
  }
  if (options.json) {
    print_result(to_json(report));
  } else {
    print_text(to_text(report, output));
  }
  return kExitOk;
}

/// Those of arrays and of listed edges.
void add_array_options(CLI::App& command, Options& options) {
  ConvertOptions& convert = options.convert;
  command.add_option("--fields", convert.fields, "Names of the rows of HDF5 nodal_data")
      ->type_name("A,B,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  CLI::Option* directed = command.add_flag(
      "--directed", options.directed, "Keep listed edges as they are: one way, loops and parallel edges too");
  command
      .add_flag("--undirected", options.undirected,
                "Join the nodes of listed edges both ways, once, without loops")
      ->excludes(directed);
  command
      .add_option("--map", options.map,
                  "Array of an NPZ or HDF5 file that is positions, cells, edges, types or a field, or a file "
                  "with such lines; repeated")
      ->type_name("NAME=ARRAY|@FILE")
      ->allow_extra_args(false);
  command
      .add_option("--axes", options.axes,
                  "Axes of an NPZ or HDF5 array, of frames, nodes, edges, cells and components; repeated")
      ->type_name("ARRAY=AXIS,..")
      ->allow_extra_args(false);
  command
      .add_option("--first-node", convert.first_node,
                  "Number of the first node in cells, edges and facets of NPZ and HDF5: 0 or 1")
      ->type_name("N")
      ->check(one_of({"0", "1"}));
  command.add_option("--save-map", convert.save_map, "File to write what was read as what, for --map @FILE")
      ->type_name("FILE");
}

}  // namespace

void add_convert(CommandLine& line) {
  CLI::App* command =
      add_command(line.app, "convert", "Convert simulation data into one packed file for training",
                  {"meshgrad convert data/cylinder_flow -o cylinder.mgd --unit velocity=m/s",
                   "meshgrad convert results/ -o results.mgd --node-types boundary",
                   "meshgrad convert flow.npz -o flow.mgd --split 0.8,0.1,0.1 --by time",
                   "meshgrad convert case.h5 -o case.mgd --map positions=mesh/xyz --map u=flow/u",
                   "meshgrad convert runs.h5 -o runs.mgd --fields density,velocity_x,velocity_y"});
  const auto options = std::make_shared<Options>();
  ConvertOptions& convert = options->convert;
  command
      ->add_option(
          "INPUT", convert.input,
          "File, or folder: of files, of folders train, valid and test, or of a folder for each simulation")
      ->type_name("")
      ->required();
  command->add_option("-o,--output", convert.output, "Packed file to write")
      ->type_name("OUT.mgd")
      ->required();
  command->add_option("--split", convert.split, "Fractions of train, valid and test")
      ->type_name("A,B,C")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--by", options->by, "Unit of --split: auto, trajectory or time")->type_name("NAME");
  command
      ->add_option("--split-list", convert.split_list,
                   "Text file with lines \"SPLIT: NAME, NAME, ...\", of files or FILE:FIRST-LAST")
      ->type_name("FILE");
  command->add_option("--cells", options->cells, "What the cells are: auto, triangle, quad, tet or hex")
      ->type_name("NAME");
  command
      ->add_option("--graph", options->graph, "What a node of the graph is: auto, nodes or cells of the mesh")
      ->type_name("NAME");
  command
      ->add_option("--node-types", convert.node_types,
                   "Array of node types: of nodes, or of cells or facets, whose nodes get the largest number")
      ->type_name("ARRAY");
  command
      ->add_option("--displacement", convert.displacement,
                   "Field on nodes that, added to the positions, makes the field world_pos; or none")
      ->type_name("FIELD");
  command
      ->add_option(
          "--series", convert.series,
          "Which number in names of VTK files or HDF5 groups counts the frames: run_{case}_{frame}.vtu")
      ->type_name("PATTERN");
  command->add_flag(
      "--separate", convert.separate_frames,
      "Numbered VTK files, HDF5 groups and array files are a trajectory each, not frames of one");
  std::vector<std::string> formats = format_names();
  formats.insert(formats.begin(), "auto");
  command
      ->add_option("--format", convert.format,
                   fmt::format("Format of the input: {}", fmt::join(formats, ", ")))
      ->type_name("NAME")
      ->check(one_of(formats));
  add_array_options(*command, *options);
  command->add_option("--dt", options->dt, "Seconds between frames; replaces the input's")->type_name("S");
  command->add_option("--unit", options->units, "Unit of a field, for reports and pictures; may be repeated")
      ->type_name("FIELD=UNIT")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--manifest", options->manifest,
          "File to write what was read from where; as INPUT, such a file is read in place of the others")
      ->type_name("FILE");
  command->add_flag("--force", options->force, "Replace OUT.mgd, and the files of --manifest and --save-map");
  add_json(*command, options->json);
  on_first_run(*command, line, options, run);
}

}  // namespace meshgrad::cli
