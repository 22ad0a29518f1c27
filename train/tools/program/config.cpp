// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/data/mesh_size.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/config_docs.h>
#include <meshgrad/train/tools/program/import_config.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/presets.h>
#include <meshgrad/train/tools/program/usage.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

namespace meshgrad::cli {
namespace {

struct ConfigOptions {
  std::string file;
  std::string presets;
  std::string names;
  std::string data;
  std::vector<std::string> settings;
};

Config resolve(const ConfigOptions& options) {
  if (options.file.empty()) return parse_config("", "defaults", options.settings);
  return load_config(options.file, options.settings);
}

int run_default(const ConfigOptions& options, const GlobalOptions&) {
  print_result(commented_toml(resolve(options)));
  return kExitOk;
}

int run_effective(const ConfigOptions& options, const GlobalOptions&) {
  print_result(to_toml(resolve(options)));
  return kExitOk;
}

int run_preset(const ConfigOptions& options, const GlobalOptions&) {
  if (!options.presets.empty()) {
    print_result(presets_toml(presets_named(options.presets)));
    return kExitOk;
  }
  std::string text;
  for (const Preset& preset : presets()) text += fmt::format("{:12}{}\n", preset.name, preset.help);
  print_text(text);
  return kExitOk;
}

/// Over the meshes of all splits; of edges between nodes at one place, 0.
double shortest_edge(const Dataset& data) {
  double least = std::numeric_limits<double>::infinity();
  std::set<int64_t> seen;
  for (int64_t i = 0; i < data.trajectories(); ++i) {
    const TrajectoryView trajectory = data.trajectory(i);
    const MeshView& mesh = trajectory.mesh();
    if (!seen.insert(mesh.index).second) continue;
    for (size_t edge = 0; edge < mesh.senders.size(); ++edge)
      least = std::min(least, edge_length(mesh, edge));
  }
  return least;
}

int run_import(const ConfigOptions& options, const GlobalOptions& globals) {
  const OptionNames names = options.names == "physicsnemo" ? OptionNames::physicsnemo
                            : options.names == "deepmind"  ? OptionNames::deepmind
                                                           : OptionNames::keyvalue;
  std::optional<double> shortest;
  if (!options.data.empty()) shortest = shortest_edge(Dataset::open(options.data));
  const ImportedConfig imported =
      import_config(read_file(options.file, kLargestConfigFile + 1), options.file, names, shortest);
  print_result(imported.toml);
  if (globals.quiet) return kExitOk;
  for (const std::string& line : imported.mapped) print_note("mapped " + line);
  for (const std::string& line : imported.unmapped) print_note("not mapped: " + line);
  return kExitOk;
}

int run_schema(const ConfigOptions&, const GlobalOptions&) {
  print_result(config_schema());
  return kExitOk;
}

int run_docs(const ConfigOptions&, const GlobalOptions&) {
  print_result(config_markdown());
  return kExitOk;
}

}  // namespace

void add_config(CommandLine& line) {
  CLI::App* config = add_command(
      line.app, "config", "Show keys, defaults and resolved configurations",
      {"meshgrad config default > run.toml", "meshgrad config effective run.toml --set train.batch=4",
       "meshgrad config schema > meshgrad.schema.json"});
  config->footer(config->get_footer() + "\n\nKeys and their defaults:\n" + config_summary());
  config->require_subcommand(1);
  const auto options = std::make_shared<ConfigOptions>();

  CLI::App* defaults = add_command(*config, "default", "Print a commented file with every key at its default",
                                   {"meshgrad config default --set model.width=64 > run.toml"});
  add_settings(*defaults, options->settings);
  on_run(*defaults, line, options, run_default);

  CLI::App* effective = add_command(
      *config, "effective", "Print every key with its value after a file and overrides",
      {"meshgrad config effective run.toml", "meshgrad config effective run.toml -s train.lr=3e-4"});
  effective->add_option("FILE", options->file, "Configuration; without it, the defaults")->type_name("");
  add_settings(*effective, options->settings);
  on_run(*effective, line, options, run_effective);

  CLI::App* preset =
      add_command(*config, "preset", "Print presets for meshgrad init and train, or the settings of some",
                  {"meshgrad config preset", "meshgrad config preset full,low-memory"});
  preset->add_option("NAME", options->presets, "Presets with commas between them; without it, a list")
      ->type_name("");
  on_run(*preset, line, options, run_preset);

  CLI::App* import =
      add_command(*config, "import", "Print a configuration made from the options of another program",
                  {"meshgrad config import conf/config.yaml --from physicsnemo > run.toml"});
  import
      ->add_option("FILE", options->file,
                   "Lines NAME: VALUE, NAME = VALUE or NAME VALUE, a command line, or JSON")
      ->type_name("")
      ->required();
  import->add_option("--from", options->names, "Whose names the options have")
      ->type_name("physicsnemo|deepmind|keyvalue")
      ->check(one_of({"physicsnemo", "deepmind", "keyvalue"}))
      ->required();
  import
      ->add_option("--data", options->data,
                   "Packed file, for options that are multiples of its shortest edge")
      ->type_name("FILE");
  on_run(*import, line, options, run_import);

  CLI::App* schema = add_command(*config, "schema", "Print a JSON Schema (draft 4) for editors",
                                 {"meshgrad config schema > meshgrad.schema.json"});
  on_run(*schema, line, options, run_schema);

  CLI::App* docs =
      add_command(*config, "docs", "Print docs/config.md", {"meshgrad config docs > docs/config.md"});
  on_run(*docs, line, options, run_docs);
}

}  // namespace meshgrad::cli
