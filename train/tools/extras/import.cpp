// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/tools/extras/exported_weights.h>
#include <meshgrad/train/tools/extras/import_weights.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/usage.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace meshgrad::cli {
namespace {

struct ImportCommand {
  std::string file;
  std::string from;
  std::string config;
  std::vector<std::string> settings;
  std::string output;
  bool check = false, force = false;
  bool json = false;
};

WeightSource source_named(const std::string& name) {
  if (name == "deepmind") return WeightSource::deepmind;
  return name == "pyg" ? WeightSource::pyg : WeightSource::physicsnemo;
}

std::string to_text(const ImportReport& report, const ImportCommand& command) {
  const std::string mlps =
      report.hidden_layers > 0 ? counted(report.hidden_layers, "hidden layer") + " each MLP, " : "";
  const char* normalizers = report.normalizers == "file"   ? "of the file"
                            : report.normalizers == "none" ? "none, as normalize.mode says"
                                                           : "from the data set: the file has none";
  return fmt::format(
      "read        {}: width {}, {}, {}{} parameters\nnormalisers {}\n"
      "checkpoint  {}\n",
      command.file, report.width, counted(report.blocks, "block"), mlps, report.parameters, normalizers,
      command.output);
}

std::string to_text(const ImportCheck& check) {
  return fmt::format("check       {} on {}, {}: largest difference {:.2g} of the largest value, {} {:g}\n",
                     check.passed() ? "passed" : "FAILED", counted(check.nodes, "node"),
                     counted(check.edges, "edge"), check.difference, check.passed() ? "at most" : "more than",
                     check.tolerance);
}

bool is_checkpoint(const std::filesystem::path& path) {
  try {
    checkpoint_config(path);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

void check_checkpoint_output(const ImportCommand& command, std::vector<std::filesystem::path> taken) {
  taken.emplace_back(command.file);
  check_output({.path = command.output,
                .option = "-o",
                .kind = "a checkpoint of meshgrad",
                .is_of_kind = is_checkpoint,
                .replace = command.force,
                .taken = std::move(taken)});
}

/// A file that export wrote: it has its configuration, and nothing to compare with.
int run_exported(const ImportCommand& command) {
  constexpr const char* kOthers = "--from physicsnemo, deepmind or pyg";
  if (command.check)
    throw config_error("--check", kOthers, "--from meshgrad", "leave it out: names and shapes are checked");
  if (!command.config.empty())
    throw config_error("--config", kOthers, "--from meshgrad, whose file has its configuration",
                       "leave it out; --set changes a key");
  if (command.output.empty())
    throw config_error("-o", "a checkpoint to write", "none", "give -o RUN/checkpoints/last.safetensors");
  check_checkpoint_output(command, {});
  Runtime runtime({.device = {}, .threads = 0, .allocator = {}, .log = {}, .memory = {}});
  const ImportReport report = import_exported(runtime, command.file, command.settings, command.output);
  if (command.json) {
    const nlohmann::ordered_json json{{"file", command.file},
                                      {"from", command.from},
                                      {"checkpoint", command.output},
                                      {"parameters", report.parameters}};
    print_result(json.dump(2) + "\n");
  } else {
    print_text(to_text(report, command) +
               "optimizer   new, at step 0: train.init trains on with these weights\n");
  }
  return kExitOk;
}

int run(const ImportCommand& command, const GlobalOptions&) {
  if (command.from == "meshgrad") return run_exported(command);
  if (command.output.empty() && !command.check)
    throw config_error("-o", "a checkpoint to write, or --check", "no -o and no --check",
                       "give -o RUN/checkpoints/last.safetensors");
  const WeightSource source = source_named(command.from);
  const bool reads_config = !command.config.empty();
  if (!command.output.empty() && !reads_config)
    throw config_error("--config", "a configuration that names the data, their inputs and targets", "none",
                       "give --config CONFIG.toml");
  const Config config = reads_config ? load_config(command.config, command.settings)
                                     : parse_config("", "default", command.settings);
  if (!command.output.empty()) check_checkpoint_output(command, {command.config, config.data.path});
  Runtime runtime({.device = {}, .threads = 0, .allocator = {}, .log = {}, .memory = {}});
  nlohmann::ordered_json json{{"file", command.file}, {"from", command.from}};
  std::string text;
  bool passed = true;
  if (command.check) {
    const ImportCheck check = check_weights(runtime, command.file, source, config.model.activation);
    json["check"] = {{"nodes", check.nodes},
                     {"edges", check.edges},
                     {"difference", check.difference},
                     {"tolerance", check.tolerance},
                     {"passed", check.passed()}};
    text += to_text(check);
    passed = check.passed();
  }
  if (passed && !command.output.empty()) {  // wrong weights are not written
    require_data_path(config);
    const ImportReport report = import_weights(runtime, config, {command.file, source, command.output});
    json["checkpoint"] = command.output;
    json["parameters"] = report.parameters;
    json["normalizers"] = report.normalizers;
    text += to_text(report, command);
  }
  if (command.json) {
    print_result(json.dump(2) + "\n");
  } else {
    print_text(text);
  }
  return passed ? kExitOk : kExitFailed;
}

}  // namespace

void add_import(CommandLine& line) {
  CLI::App* import = add_command(
      line.app, "import", "Make a checkpoint of weights that were trained or edited elsewhere",
      {"meshgrad import edited.safetensors --from meshgrad -o runs/edited/checkpoints/last.safetensors",
       "meshgrad import mgn.safetensors --from physicsnemo --config cylinder.toml -o "
       "runs/theirs/checkpoints/last.safetensors",
       "meshgrad import mgn.safetensors --from physicsnemo --check"});
  const auto options = std::make_shared<ImportCommand>();
  import->add_option("FILE", options->file, "Weights, a safetensors file (scripts/pt-to-safetensors)")
      ->required();
  import->add_option("--from", options->from, "Where the names and conventions of the weights come from")
      ->type_name("meshgrad|physicsnemo|deepmind|pyg")
      ->check(one_of({"meshgrad", "physicsnemo", "deepmind", "pyg"}))
      ->required();
  import
      ->add_option("--config", options->config,
                   "Configuration that names data, inputs and targets; the file of meshgrad export has it")
      ->type_name("FILE");
  add_settings(*import, options->settings);
  import->add_option("-o,--output", options->output, "Checkpoint to write")->type_name("FILE");
  import->add_flag("--force", options->force, "Replace a checkpoint that is there");
  import->add_flag("--check", options->check,
                   "Compare with the prediction in the file: in.node_features, in.edge_features, in.senders, "
                   "in.receivers, out.prediction");
  add_json(*import, options->json);
  on_run(*import, line, options, run);
}

}  // namespace meshgrad::cli
