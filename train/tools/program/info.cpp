// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/run/environment.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/describe.h>
#include <meshgrad/train/tools/program/output.h>

namespace meshgrad::cli {
namespace {

struct InfoOptions {
  std::string path;
  bool json = false, manifest = false;
};

int run(const InfoOptions& options, const GlobalOptions&) {
  if (options.manifest && options.path.empty()) {
    throw invalid_argument("--manifest", "a packed file", "none", "write meshgrad info FILE --manifest");
  }
  if (options.manifest) {
    print_result(manifest_of(options.path));
    return kExitOk;
  }
  if (!options.path.empty()) {
    const std::string text = describe_file(options.path, options.json);
    options.json ? print_result(text) : print_text(text);
    return kExitOk;
  }
  const MachineInfo machine = machine_info();
  if (options.json) {
    print_result(to_json(machine));
  } else {
    print_text(to_text(machine));
  }
  return kExitOk;
}

}  // namespace

void add_info(CommandLine& line) {
  CLI::App* info = add_command(line.app, "info", "Describe this machine, a packed file or a checkpoint",
                               {"meshgrad info", "meshgrad info cylinder.mgd",
                                "meshgrad info runs/default/checkpoints/last.safetensors --json"});
  const auto options = std::make_shared<InfoOptions>();
  info->add_option("FILE", options->path, "A .mgd or .safetensors file; default: this machine")
      ->type_name("");
  info->add_flag("--manifest", options->manifest,
                 "Print from which files and arrays a packed file was made, as JSON");
  add_json(*info, options->json);
  on_run(*info, line, options, run);
}

}  // namespace meshgrad::cli
