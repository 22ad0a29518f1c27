// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/packed_file.h>
#include <meshgrad/train/tools/extras/first_config.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/packed_copy.h>
#include <meshgrad/train/tools/program/presets.h>

#include <fmt/format.h>

namespace meshgrad::cli {
namespace {

namespace fs = std::filesystem;

struct InitCommand {
  std::string data, output, presets;
  std::vector<std::string> targets;
};

/// The packed file of `path`: itself, or NAME.mgd beside it, which is made where it is not there.
fs::path packed_file(fs::path path, const GlobalOptions& globals) {
  const bool folder = fs::is_directory(path);
  if (!folder && is_packed_file(path)) return path;
  if (!path.has_filename()) path = path.parent_path();
  fs::path packed = path;
  folder ? packed += ".mgd" : packed.replace_extension(".mgd");
  ConvertOptions options;
  options.input = path;
  options.output = packed;
  options.replace = false;
  if (fs::exists(packed)) {
    if (is_up_to_date(options)) return packed;
    throw data_error(packed.string(), fmt::format("a packed file of {} as it is now", path.string()),
                     "a packed file of other files or options",
                     fmt::format("--data {0} uses it, meshgrad convert {1} -o {0} --force replaces it",
                                 packed.string(), path.string()));
  }
  const ConvertReport report = convert(options);
  if (globals.quiet) return packed;
  for (const std::string& warning : report.warnings) print_note("warning: " + warning);
  print_read(report);
  print_note(
      fmt::format("packed {} into {}; meshgrad convert has options for node types, units, splits and dt",
                  path.string(), packed.string()));
  return packed;
}

int64_t gpu_bytes() { return cuda_devices().empty() ? 0 : gpu::memory(0).total; }

int run(const InitCommand& command, const GlobalOptions& globals) {
  const std::vector<Preset> chosen = presets_named(command.presets);
  if (!command.output.empty()) {
    check_output({.path = command.output,
                  .option = "-o",
                  .kind = {},
                  .taken = {command.data},
                  .fix = "choose another name, or delete that file"});
  }
  const Dataset dataset = Dataset::open(packed_file(command.data, globals));
  const FirstConfig first = first_config(dataset, chosen, command.targets);
  const std::string text = to_toml(first);
  if (command.output.empty()) {
    print_result(text);
    return kExitOk;
  }
  write_file_atomically(command.output, text);
  if (globals.quiet) return kExitOk;
  for (const std::string& note : first.notes) print_note("to do: " + note);
  if (chosen.empty()) print_note(preset_advice(gpu_bytes()));
  print_note(fmt::format("wrote {0}; next: meshgrad check {0}, then meshgrad train {0}", command.output));
  return kExitOk;
}

}  // namespace

void add_init(CommandLine& line) {
  CLI::App* init = add_command(line.app, "init", "Write a configuration that trains on given data",
                               {"meshgrad init --data cylinder.mgd -o config.toml",
                                "meshgrad init --data results/ -o config.toml --preset small",
                                "meshgrad init --data flow.npz --preset full,low-memory"});
  const auto options = std::make_shared<InitCommand>();
  init->add_option("--data", options->data,
                   "A packed file, or what convert reads, which is then packed into NAME.mgd beside it")
      ->type_name("FILE|FOLDER")
      ->required();
  init->add_option("-o,--output", options->output,
                   "File to write, which must not exist; default: standard output")
      ->type_name("CONFIG");
  init->add_option("--targets", options->targets,
                   "Fields to predict; the others are inputs (default: guessed)")
      ->type_name("A,B,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  std::string names;
  for (const Preset& preset : presets()) names += (names.empty() ? "" : ", ") + std::string(preset.name);
  init->add_option("--preset", options->presets, "Settings to begin with: " + names + ", or several")
      ->type_name("NAME,...");
  on_first_run(*init, line, options, run);
}

}  // namespace meshgrad::cli
