// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/tools/extras/exported_weights.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/output.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace meshgrad::cli {
namespace {

namespace fs = std::filesystem;

struct ExportCommand {
  std::string run;
  std::string checkpoint = "best";
  std::string output;
  bool force = false;
  bool json = false;
};

int run(const ExportCommand& command, const GlobalOptions&) {
  const fs::path checkpoint = fs::is_regular_file(command.run)
                                  ? fs::path(command.run)
                                  : find_checkpoint(command.run, command.checkpoint);
  check_output({.path = command.output,
                .option = "-o",
                .kind = "weights that meshgrad export wrote",
                .is_of_kind = is_exported,
                .replace = command.force,
                .taken = {checkpoint}});
  Runtime runtime({.device = {}, .threads = 0, .allocator = {}, .log = {}, .memory = {}});
  const ExportReport report = export_weights(runtime, checkpoint, command.output);
  if (command.json) {
    const nlohmann::ordered_json json{{"checkpoint", checkpoint.string()},
                                      {"step", report.step},
                                      {"average", report.average},
                                      {"parameters", report.parameters},
                                      {"file", command.output}};
    print_result(json.dump(2) + "\n");
  } else {
    print_text(fmt::format("read        {} of step {}: {} parameters{}\nwritten     {}\n",
                           checkpoint.string(), report.step, report.parameters,
                           report.average ? ", their average (train.ema)" : "", command.output));
  }
  return kExitOk;
}

}  // namespace

void add_export(CommandLine& line) {
  CLI::App* command =
      add_command(line.app, "export", "Write the weights of a run for PyTorch and other frameworks",
                  {"meshgrad export runs/heat -o heat.safetensors",
                   "meshgrad export runs/heat -o heat.safetensors --checkpoint last"});
  const auto options = std::make_shared<ExportCommand>();
  command->add_option("RUN", options->run, "Run directory, or a checkpoint")->required();
  command->add_option("-o,--output", options->output, "File to write: docs/weights.md has its layout")
      ->type_name("FILE.safetensors")
      ->required();
  command->add_option("--checkpoint", options->checkpoint, "best, last or a file")->capture_default_str();
  command->add_flag("--force", options->force, "Replace an exported file that is there");
  add_json(*command, options->json);
  on_run(*command, line, options, run);
}

}  // namespace meshgrad::cli
