// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/cli/command.h>
#include <meshgrad/train/cli/output.h>
#include <meshgrad/train/cli/usage.h>
#include <meshgrad/train/planning/plan.h>

namespace meshgrad::cli {
namespace {

struct PlanCommand {
  std::string config;
  std::vector<std::string> settings;
  std::string device_memory;
  std::string mode = "static";
  bool json = false;
};

int run(const PlanCommand& command, const GlobalOptions&) {
  Config config = load_config(command.config, command.settings);
  config.memory = allocator_options_from_environment(config.memory);
  const std::optional<int64_t> bytes = parse_size(command.device_memory);
  if (!bytes) {
    throw invalid_argument("--device-memory", "a size with a unit", "\"" + command.device_memory + "\"",
                           "for example --device-memory 8GiB");
  }
  const MemoryPlan plan =
      plan_memory(config, {.mode = command.mode == "measured" ? PlanMode::measured : PlanMode::predicted,
                           .device_memory = *bytes});
  if (command.json) {
    print_result(to_json(plan));
  } else {
    print_text(to_text(plan));
  }
  return kExitOk;
}

}  // namespace

void add_plan(CommandLine& line) {
  CLI::App* plan = add_command(
      line.app, "plan", "Predict the memory of training, the batch that fits, and what to change",
      {"meshgrad plan config.toml", "meshgrad plan config.toml --device-memory 8GiB --set train.batch=auto",
       "meshgrad plan config.toml --mode measured --json"});
  const auto options = std::make_shared<PlanCommand>();
  plan->add_option("CONFIG", options->config, "Configuration in TOML; see meshgrad config default")
      ->required();
  add_settings(*plan, options->settings);
  plan->add_option("--device-memory", options->device_memory,
                   "Memory of the device to plan for, which need not exist; default: that of run.device")
      ->type_name("SIZE");
  plan->add_option("--mode", options->mode, "static: a dry run; measured: runs steps")
      ->type_name("static|measured")
      ->check(one_of({"static", "measured"}))
      ->capture_default_str();
  add_json(*plan, options->json);
  on_run(*plan, line, options, run);
}

}  // namespace meshgrad::cli
