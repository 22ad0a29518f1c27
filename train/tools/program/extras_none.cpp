// SPDX-License-Identifier: Apache-2.0
// The commands of train/tools/extras in a build without them.
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/program/command.h>

namespace meshgrad::cli {
namespace {

void add_absent(CommandLine& line, const std::string& name) {
  CLI::App* command = line.app.add_subcommand(name, "Not built here; the preset release has it");
  command->fallthrough(false);  // whatever follows is this command's
  command->allow_extras();
  command->callback([&line, name] {
    line.action = [name]() -> int {
      throw invalid_argument(
          "meshgrad " + name, "a build with all commands", "a build of the preset core",
          "build the preset release: cmake --preset release && cmake --build --preset release");
    };
  });
}

}  // namespace

void add_check(CommandLine& line) { add_absent(line, "check"); }
void add_init(CommandLine& line) { add_absent(line, "init"); }
void add_export(CommandLine& line) { add_absent(line, "export"); }
void add_import(CommandLine& line) { add_absent(line, "import"); }
void add_memory(CommandLine& line) { add_absent(line, "memory"); }
void add_report(CommandLine& line) { add_absent(line, "report"); }
void add_doctor(CommandLine& line) { add_absent(line, "doctor"); }
void add_verify(CommandLine& line) { add_absent(line, "verify"); }

}  // namespace meshgrad::cli
