// SPDX-License-Identifier: Apache-2.0
// What every command shares. A command is one file here with a function `add_NAME`, listed below and in
// cli.cpp.
#pragma once
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/dtype.h>
#include <meshgrad/train/cli/cli.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad::cli {

/// Flags that work with every command.
struct GlobalOptions {
  bool quiet = false;     ///< no progress and no notes on stderr, only errors
  bool no_color = false;  ///< no colour even on a terminal
};

/// The command line while it is built: a command hangs itself into `app`, and sets `action` once it is
/// chosen.
struct CommandLine {
  CLI::App app;
  GlobalOptions globals;
  std::function<int()> action;  ///< returns an ExitCode
};

/// Adds the command `name` below `parent`; `examples` are whole lines, shown at the end of its --help.
CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& help,
                      const std::vector<std::string>& examples);

/// Adds --set (and -s), which may be given many times.
void add_settings(CLI::App& command, std::vector<std::string>& settings);

/// Adds --json.
void add_json(CLI::App& command, bool& json);

/// Adds --device, one of auto, cpu, cuda, cuda:N.
void add_device(CLI::App& command, std::string& device);

/// The device of such a word, for a precision, with a line on stderr that says what "auto" chose. Throws
/// ConfigError and DeviceError.
Device chosen_device(const std::string& word, DType precision, const GlobalOptions& globals);

/// Adds --threads N, 0 for all.
void add_threads(CLI::App& command, int& threads);

/// Lets `command` call `run(*options, line.globals)` when it is chosen. The options live as long as the
/// action.
template <class Options>
void on_run(CLI::App& command, CommandLine& line, std::shared_ptr<Options> options,
            int (*run)(const Options&, const GlobalOptions&)) {
  command.callback(
      [&line, options, run] { line.action = [&line, options, run] { return run(*options, line.globals); }; });
}

void add_convert(CommandLine& line);
void add_train(CommandLine& line);
void add_evaluate(CommandLine& line);
void add_rollout(CommandLine& line);
void add_predict(CommandLine& line);
void add_config(CommandLine& line);
void add_info(CommandLine& line);
void add_memory(CommandLine& line);
void add_plan(CommandLine& line);
void add_verify(CommandLine& line);

}  // namespace meshgrad::cli
