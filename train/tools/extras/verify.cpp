// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/tools/extras/reference_values.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/usage.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace meshgrad::cli {
namespace {

struct VerifyOptions {
  std::string file;
  std::string precision = "f64";
  std::string device = "cpu";
  std::string path = "fused";
  int threads = 0;
  bool recompute_hidden = false;
  bool json = false;
};

std::string to_text(const VerifyReport& report) {
  std::string text = wrapped(fmt::format("{}: width {}, {}, {}, {}, {}, {}, in {}", report.file, report.width,
                                         counted(report.blocks, "block"), counted(report.graphs, "graph"),
                                         counted(report.nodes, "node"), counted(report.edges, "edge"),
                                         counted(report.steps, "Adam step"), name_of(report.precision)),
                             kTextWidth) +
                     "\n\n";
  text +=
      fmt::format("{:<22}{:>10}{:>12}{:>12}{:>12}\n", "group", "values", "absolute", "relative", "tolerance");
  for (const VerifyGroup& group : report.groups) {
    text += fmt::format("{:<22}{:>10}{:>12.2e}{:>12.2e}{:>12.0e}  {}\n", group.name, group.values,
                        group.absolute, group.relative, group.tolerance, group.passed() ? "ok" : "FAILED");
    if (!group.passed()) text += "  worst: " + group.worst + "\n";
  }
  return text + (report.passed() ? "\nall within tolerance\n" : "\nnot within tolerance\n");
}

std::string to_json(const VerifyReport& report) {
  nlohmann::ordered_json json{{"file", report.file},      {"precision", name_of(report.precision)},
                              {"width", report.width},    {"blocks", report.blocks},
                              {"nodes", report.nodes},    {"edges", report.edges},
                              {"graphs", report.graphs},  {"steps", report.steps},
                              {"passed", report.passed()}};
  for (const VerifyGroup& group : report.groups) {
    json["groups"].push_back({{"name", group.name},
                              {"values", group.values},
                              {"absolute", group.absolute},
                              {"relative", group.relative},
                              {"tolerance", group.tolerance},
                              {"worst", group.worst},
                              {"passed", group.passed()}});
  }
  return json.dump(2) + "\n";
}

DType dtype_named(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (name == name_of(dtype)) return dtype;
  }
  return DType::f64;
}

int run(const VerifyOptions& options, const GlobalOptions& globals) {
  const DType precision = dtype_named(options.precision);
  Runtime runtime({.device = chosen_device(options.device, precision, globals),
                   .threads = options.threads,
                   .allocator = allocator_options_from_environment(),
                   .log = log_of(globals.quiet)});
  const VerifyReport report =
      verify(runtime, options.file, precision, options.path == "fused", !options.recompute_hidden);
  if (options.json) {
    print_result(to_json(report));
  } else {
    print_text(to_text(report));
  }
  return report.passed() ? kExitOk : kExitFailed;
}

}  // namespace

void add_verify(CommandLine& line) {
  CLI::App* verify = add_command(
      line.app, "verify", "Compare the engine with values computed by another framework",
      {"meshgrad verify reference.safetensors", "meshgrad verify reference.safetensors --precision f32",
       "meshgrad verify reference.safetensors --precision f16 --device cuda"});
  const auto options = std::make_shared<VerifyOptions>();
  verify->add_option("FILE", options->file, "Reference values, a safetensors file")->required();
  verify->add_option("--precision", options->precision, "Precision of the computation")
      ->type_name("f64|f32|f16|bf16")
      ->check(one_of({"f64", "f32", "f16", "bf16"}))
      ->capture_default_str();
  verify->add_option("--path", options->path, "Fused kernels, or one per op")
      ->type_name("fused|op_by_op")
      ->check(one_of({"fused", "op_by_op"}))
      ->capture_default_str();
  verify->add_flag("--recompute-hidden", options->recompute_hidden,
                   "Recompute hidden activations in backward");
  add_device(*verify, options->device);
  add_threads(*verify, options->threads);
  add_json(*verify, options->json);
  on_first_run(*verify, line, options, run);
}

}  // namespace meshgrad::cli
