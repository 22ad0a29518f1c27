// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/cli/command.h>
#include <meshgrad/train/cli/output.h>
#include <meshgrad/train/machine.h>

namespace meshgrad::cli {
namespace {

struct InfoOptions {
  bool json = false;
};

int run(const InfoOptions& options, const GlobalOptions&) {
  const MachineInfo machine = machine_info();
  print_result(options.json ? to_json(machine) : to_text(machine));
  return kExitOk;
}

}  // namespace

void add_info(CommandLine& line) {
  CLI::App* info = add_command(line.app, "info", "Describe this machine and this build",
                               {"meshgrad info", "meshgrad info --json"});
  const auto options = std::make_shared<InfoOptions>();
  add_json(*info, options->json);
  on_run(*info, line, options, run);
}

}  // namespace meshgrad::cli
