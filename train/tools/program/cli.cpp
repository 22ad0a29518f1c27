// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/tools/program/bus_error.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/failure.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/signals.h>
#include <meshgrad/train/tools/program/usage.h>

#include <algorithm>

namespace meshgrad {
namespace cli {
namespace {

using AddCommand = void (*)(CommandLine&);
constexpr AddCommand kCommands[] = {add_convert, add_check,  add_init,   add_train, add_evaluate, add_rollout,
                                    add_predict, add_verify, add_config, add_info,  add_memory,   add_plan,
                                    add_report,  add_export, add_import, add_doctor};

void add_everything(CommandLine& line) {
  line.app.name("meshgrad");
  line.app.description("Trains graph neural networks on simulation meshes.");
  line.app.set_version_flag("--version", "meshgrad " MESHGRAD_VERSION);
  line.app.add_flag("-q,--quiet", line.globals.quiet, "Print results and errors only");
  line.app.add_flag("--no-color", line.globals.no_color, "No colour (like NO_COLOR in the environment)");
  line.app.require_subcommand(1);
  line.app.fallthrough();  // global flags may follow the command
  line.app.get_formatter()->column_width(34);
  line.app.footer("`meshgrad COMMAND --help` shows the options of a command and examples.");
  for (const AddCommand add : kCommands) add(line);
}

/// Fills `line`; returns an exit code when there is no command to run.
int parse(CommandLine& line, int argc, char** argv) {
  try {
    line.app.parse(argc, argv);
    return kExitOk;
  } catch (const CLI::CallForHelp&) {
    print_text(line.app.help());
  } catch (const CLI::CallForAllHelp&) {
    print_text(line.app.help("", CLI::AppFormatMode::All));
  } catch (const CLI::CallForVersion& version) {
    print_result(std::string(version.what()) + "\n");
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> words(argv + 1, argv + std::max(argc, 1));
    if (words.empty()) {
      print_text(line.app.help());
      return kExitUsage;
    }
    throw InvalidArgument(usage_error(line.app, words, error));
  }
  return kExitOk;
}

}  // namespace

CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& help,
                      const std::vector<std::string>& examples) {
  CLI::App* command = parent.add_subcommand(name, help);
  std::string footer;
  for (const std::string& example : examples) footer += (footer.empty() ? "Examples:\n  " : "\n  ") + example;
  command->footer(footer);
  return command;
}

void add_settings(CLI::App& command, std::vector<std::string>& settings) {
  command.add_option("-s,--set", settings, "Override a key of the configuration; may be repeated")
      ->type_name("SECTION.KEY=VALUE")
      ->allow_extra_args(false);
}

void add_json(CLI::App& command, bool& json) { command.add_flag("--json", json, "Print the result as JSON"); }

void add_device(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "auto, cpu, cuda or cuda:N")->capture_default_str();
}

Device chosen_device(const std::string& word, DType precision, const GlobalOptions& globals,
                     std::string_view option) {
  std::string note;
  const Device device = resolve_device_for(word, precision, &note, option);
  if (!globals.quiet && !note.empty()) print_note(note);
  return device;
}

void add_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "CPU threads, 0 for all; results do not depend on it")
      ->type_name("N")
      ->check(whole_number(0, 4096));
}

}  // namespace cli

int run_cli(int argc, char** argv) {
  cli::prepare_process();
  cli::catch_bus_errors();
  bool color = cli::stderr_takes_color();
  try {
    cli::CommandLine line;
    cli::add_everything(line);
    const int code = cli::parse(line, argc, argv);
    color = color && !line.globals.no_color;
    return line.action ? line.action() : code;
  } catch (...) {
    const cli::Failure failure = cli::current_failure();
    cli::print_error(failure.text, color);
    return failure.exit_code;
  }
}

}  // namespace meshgrad
