// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/run/environment.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/describe.h>
#include <meshgrad/train/tools/program/output.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace meshgrad::cli {
namespace {

std::string gibibytes(int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0));
}

std::string text_of(const MachineInfo& machine) {
  std::string text = fmt::format("meshgrad  {} ({}, {})\n", machine.version, machine.compiler,
                                 machine.cuda_build ? "with CUDA" : "without CUDA");
  text += fmt::format("cpu       {}\n", machine.cpu.empty() ? "unknown" : machine.cpu);
  text += fmt::format("isa       {} (of {})\n", machine.isa, fmt::join(machine.isas, ", "));
  text += fmt::format("cpus      {}\n", machine.cpus);
  text += fmt::format("memory    {}\n", gibibytes(machine.memory_bytes));
  for (const CudaDevice& gpu : machine.gpus) {
    text += fmt::format("gpu       {}, {}, compute capability {}.{}\n", gpu.name, gibibytes(gpu.memory_bytes),
                        gpu.major, gpu.minor);
  }
  if (machine.gpus.empty()) text += "gpu       none\n";
  return text + fmt::format("device    {} (what device = \"auto\" resolves to)\n", machine.default_device);
}

struct InfoOptions {
  std::string path;
  bool json = false, manifest = false, all = false;
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
    const std::string text = describe_file(options.path, options.json, options.all);
    options.json ? print_result(text) : print_text(text);
    return kExitOk;
  }
  const MachineInfo machine = machine_info();
  if (options.json) {
    print_result(to_json(machine));
  } else {
    print_text(text_of(machine));
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
  info->add_flag("--all", options->all,
                 "Of a checkpoint: its counters, as a run resumes from them, and tensors");
  add_json(*info, options->json);
  on_run(*info, line, options, run);
}

}  // namespace meshgrad::cli
