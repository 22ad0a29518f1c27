// SPDX-License-Identifier: Apache-2.0
// Shared by all commands. Each command is one file here with a function `add_NAME`, listed below and in
// cli.cpp.
#pragma once
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/dtype.h>
#include <meshgrad/train/tools/program/cli.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad::cli {

/// Flags that work with every command.
struct GlobalOptions {
  bool quiet = false;     ///< no progress and no notes on stderr, errors only
  bool no_color = false;  ///< no colour even on a terminal
};

/// The command line while it is built: a command adds itself to `app`, and sets `action` when it is selected.
struct CommandLine {
  CLI::App app;
  GlobalOptions globals;
  std::function<int()> action;  ///< returns an ExitCode
};

/// Adds the command `name` to `parent`; `examples` are whole command lines, shown at the end of its --help.
CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& help,
                      const std::vector<std::string>& examples);

/// Adds --set (and -s), which may be repeated.
void add_settings(CLI::App& command, std::vector<std::string>& settings);

/// Adds --json.
void add_json(CLI::App& command, bool& json);

/// Adds --device, one of auto, cpu, cuda, cuda:N.
void add_device(CLI::App& command, std::string& device);

/// The device that `word` selects for a precision; a line on stderr says what "auto" selected. Throws
/// ConfigError and DeviceError, which call the setting `option`.
Device chosen_device(const std::string& word, DType precision, const GlobalOptions& globals,
                     std::string_view option = "--device");

/// Adds --threads N, 0 for all.
void add_threads(CLI::App& command, int& threads);

/// Makes `command` call `run(*options, line.globals)` when it is selected. The action keeps the options
/// alive.
template <class Options>
void on_run(CLI::App& command, CommandLine& line, std::shared_ptr<Options> options,
            int (*run)(const Options&, const GlobalOptions&)) {
  command.callback(
      [&line, options, run] { line.action = [&line, options, run] { return run(*options, line.globals); }; });
}

void add_convert(CommandLine& line);
void add_check(CommandLine& line);
void add_init(CommandLine& line);
void add_train(CommandLine& line);
void add_evaluate(CommandLine& line);
void add_rollout(CommandLine& line);
void add_predict(CommandLine& line);
void add_export(CommandLine& line);
void add_import(CommandLine& line);
void add_config(CommandLine& line);
void add_info(CommandLine& line);
void add_memory(CommandLine& line);
void add_plan(CommandLine& line);
void add_report(CommandLine& line);
void add_doctor(CommandLine& line);
void add_verify(CommandLine& line);

}  // namespace meshgrad::cli
