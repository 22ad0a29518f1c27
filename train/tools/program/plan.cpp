// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/part_plan.h>
#include <meshgrad/train/tools/program/plan_text.h>
#include <meshgrad/train/tools/program/usage.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <optional>

namespace meshgrad::cli {
namespace {

struct PlanCommand {
  std::string config;
  std::vector<std::string> settings;
  std::string device_memory;
  std::string mode;
  std::string gpu;
  std::optional<int64_t> nodes, edges;
  int dim = 2;
  std::vector<std::string> fields;
  int64_t ranks = 1;
  bool json = false;
};

/// "pressure=1" or "drag=2@graph".
void add_field(const std::string& given, PlannedMesh& mesh) {
  constexpr std::string_view kOnGraphs = "@graph";
  const bool on_graphs = given.ends_with(kOnGraphs);
  const std::string text = given.substr(0, given.size() - (on_graphs ? kOnGraphs.size() : 0));
  const size_t equals = text.find('=');
  const std::optional<double> count =
      equals == 0 || equals == text.npos ? std::nullopt : parse_number(text.substr(equals + 1));
  constexpr double kMost = 64;
  if (!count || *count < 1 || *count > kMost || *count != std::floor(*count)) {
    throw invalid_argument(
        "--field", fmt::format("NAME=COMPONENTS or NAME=COMPONENTS@graph, of 1 to {} components", kMost),
        '"' + given + '"', "for example --field pressure=1 --field drag=2@graph");
  }
  const std::string name = text.substr(0, equals);
  mesh.fields[name] = static_cast<int>(*count);
  if (on_graphs) mesh.on_graphs.insert(name);
}

std::optional<PlannedMesh> mesh_of(const PlanCommand& command) {
  if (!command.nodes) return std::nullopt;
  PlannedMesh mesh{.nodes = *command.nodes, .edges = *command.edges, .dim = command.dim, .fields = {}};
  for (const std::string& text : command.fields) add_field(text, mesh);
  return mesh;
}

int run(const PlanCommand& command, const GlobalOptions&) {
  Config config = load_config(command.config, command.settings);
  config.memory = allocator_options_from_environment(config.memory);
  const std::optional<int64_t> bytes = parse_size(command.device_memory);
  if (!bytes) {
    const bool lacks = parse_size(command.device_memory + "iB").has_value();  // "16G"
    throw invalid_argument("--device-memory", "a size with a unit: GiB of 2^30 bytes, GB of 10^9, MiB or MB",
                           "\"" + command.device_memory + "\"",
                           "write --device-memory " + (lacks ? command.device_memory + "iB" : "8GiB"));
  }
  if (!command.mode.empty())
    config.plan.mode = command.mode == "measured" ? PlanMode::measured : PlanMode::predicted;
  const PlanOptions options{.mode = config.plan.mode,
                            .device_memory = *bytes,
                            .gpu = command.gpu,
                            .time = true,
                            .mesh = mesh_of(command)};
  const auto print = [&](const auto& plan) {
    if (command.json) {
      print_result(to_json(plan));
    } else {
      print_text(to_text(plan));
    }
  };
  if (command.ranks > 1) {
    print(plan_parts(config, options, command.ranks));
    return kExitOk;
  }
  print(plan_memory(config, options));
  return kExitOk;
}

}  // namespace

void add_plan(CommandLine& line) {
  CLI::App* plan = add_command(
      line.app, "plan", "Predict the memory of training, the batch that fits, and what to change",
      {"meshgrad plan config.toml", "meshgrad plan config.toml --device-memory 8GiB --set train.batch=auto",
       "meshgrad plan config.toml --gpu a100 --nodes 150000 --edges 900000",
       "meshgrad plan config.toml --mode measured --json"});
  const auto options = std::make_shared<PlanCommand>();
  plan->add_option("CONFIG", options->config, "Configuration in TOML; see meshgrad config default")
      ->required();
  add_settings(*plan, options->settings);
  plan->add_option(
          "--device-memory", options->device_memory,
          "Memory of the device to plan for, which need not exist; default: that of --gpu or run.device")
      ->type_name("SIZE");
  plan->add_option("--mode", options->mode, "static: a dry run; measured: runs steps; default: plan.mode")
      ->type_name("static|measured")
      ->check(one_of({"static", "measured"}));
  constexpr int64_t kMost = INT32_MAX - 1;
  CLI::Option* nodes = plan->add_option("--nodes", options->nodes,
                                        "Nodes of the largest mesh, to plan without data; needs --edges")
                           ->check(whole_number(1, kMost));
  CLI::Option* edges =
      plan->add_option("--edges", options->edges, "Its directed edges: twice the connections")
          ->check(whole_number(1, kMost))
          ->needs(nodes);
  nodes->needs(edges);
  plan->add_option("--dim", options->dim, "Its dimensions")
      ->check(whole_number(2, 3))
      ->needs(nodes)
      ->capture_default_str();
  plan->add_option(
          "--field", options->fields,
          "Components of a field, with @graph of one on graphs; default: as many as dimensions, on nodes; "
          "may be repeated")
      ->type_name("NAME=COMPONENTS[@graph]")
      ->needs(nodes);
  plan->add_option("--ranks", options->ranks,
                   "Ranks that compute each mesh together (ranks.partition): memory and halo bytes of each")
      ->check(whole_number(1, 65536))
      ->capture_default_str();
  plan->add_option("--gpu", options->gpu,
                   "GPU to plan for, which need not be there: its memory, its kernels and its stated peaks")
      ->type_name(fmt::format("{}", fmt::join(gpu::card_names(), "|")))
      ->check(one_of(gpu::card_names()));
  add_json(*plan, options->json);
  on_first_run(*plan, line, options, run);
}

}  // namespace meshgrad::cli
