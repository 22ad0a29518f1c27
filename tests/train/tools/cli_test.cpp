// SPDX-License-Identifier: Apache-2.0
// The program as its users meet it: exit codes, and what goes to stdout and to stderr.
#include "paths.h"
#include "train/scratch_directory.h"

#include <doctest/doctest.h>
#include <meshgrad/train/learn/config/config.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace meshgrad {
namespace {

struct Captured {
  int code = -1;
  std::string out;
  std::string err;
};

/// Runs `meshgrad ARGUMENTS` in a shell; redirections in `arguments` work.
Captured run(const std::string& arguments) {
  const test::ScratchDirectory scratch;
  const std::string out = (scratch.path / "out").string();
  const std::string err = (scratch.path / "err").string();
  const int status =
      std::system(("exec >" + out + " 2>" + err + "; exec " + test::program() + " " + arguments).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, test::read_text(out), test::read_text(err)};
}

void check_has(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  CHECK(text.find(part) != std::string::npos);
}

/// One line `meshgrad: error: ...` on stderr, nothing on stdout.
void check_command_fails(const std::string& arguments, int code, const std::string& part) {
  CAPTURE(arguments);
  const Captured outcome = run(arguments);
  CHECK(outcome.code == code);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.rfind("meshgrad: error: ", 0) == 0);
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  check_has(outcome.err, part);
}

TEST_CASE("help and version are results") {
  const std::string commands[] = {"",
                                  "convert",
                                  "config",
                                  "config default",
                                  "config effective",
                                  "config schema",
                                  "config docs",
                                  "config preset",
                                  "config import",
                                  "verify",
                                  "info",
                                  "plan",
                                  "check",
                                  "init",
                                  "export",
                                  "import"};
  for (const std::string& command : commands) {
    CAPTURE(command);
    const Captured outcome = run(command + " --help");
    CHECK(outcome.code == 0);
    CHECK(outcome.err.empty());
    check_has(outcome.out, "Usage: meshgrad" + (command.empty() ? "" : " " + command));
    check_has(outcome.out, command.empty() ? "Subcommands:" : "Examples:\n  meshgrad " + command);
  }
  for (const char* command : {"", "train", "config default"}) {
    const Captured version = run(std::string(command) + " --version");
    CHECK(version.code == 0);
    CHECK(version.out.rfind("meshgrad ", 0) == 0);
  }
  check_has(run("config --help").out, "train.noise = 0.02");
}

TEST_CASE("a wrong command line exits 2 and says what was meant") {
  const Captured alone = run("");
  CHECK(alone.code == 2);
  CHECK(alone.err.empty());
  check_has(alone.out, "Usage: meshgrad");
  check_command_fails("-q", 2, "[command] needed convert|check|init|train|");
  check_command_fails("confg", 2, "did you mean \"config\"?");
  check_command_fails("convert in -o out.mgd --unit velocity", 2,
                      "[--unit] needed FIELD=UNIT, got \"velocity\"");
  check_command_fails("frobnicate", 2, "got \"frobnicate\"; fix: see `meshgrad --help`");
  check_command_fails("config", 2, "[config] needed default|effective|preset|import|schema|docs, got none");
  check_command_fails("config efective", 2, "did you mean \"effective\"?");
  check_command_fails("config default --sett train.batch=3", 2, "did you mean --set?");
  check_command_fails("info --jsn", 2, "did you mean --json?");
  check_command_fails("config docs extra", 2, "[config docs] needed no further argument, got \"extra\"");
  check_command_fails("convert", 2, "[convert] needed INPUT, got none; fix: see `meshgrad convert --help`");
  check_command_fails("train --lr 1e-3 c.toml", 2,
                      "[train] needed an option that exists, got --lr; fix: --set optimizer.lr=1e-3");
  check_command_fails("train c.toml --batch=4", 2, "fix: --set train.batch=4");
  check_command_fails("train c.toml --final-lr 1", 2, "fix: --set schedule.final_lr=1");
  check_command_fails("evaluate x --stride 0", 2, "[--stride] needed a whole number, 1 or more, got \"0\"");
  check_command_fails("evaluate x --stride 1.5", 2, "got \"1.5\"");
  check_command_fails("verify x --threads 4097", 2,
                      "[--threads] needed a whole number, 0 to 4096, got \"4097\"");
  check_command_fails("rollout x --boundary foo", 2,
                      "[--boundary] needed data or initial, for the run's own data, got \"foo\"");
  check_command_fails("rollout x --steps", 2, "[--steps] needed a value, got none");
  check_command_fails("convert x -o y --dt fast", 2, "[--dt] needed a number, got \"fast\"");
  check_command_fails("train c.toml --checkpoint x", 2, "[--checkpoint] needed --resume with it, got none");
  check_command_fails("verify " + test::data_file("oracles/mgn_small.safetensors") + " --device gpu", 2,
                      "[--device] needed \"auto\"");
  check_command_fails("convert x -o y --format tfrecord", 2, "tfrecord");
  check_command_fails("convert x -o y --by mass", 2, "[--by] needed auto, trajectory or time, got \"mass\"");
  check_command_fails("convert x -o y --dt -1", 2, "[--dt] needed a positive number of seconds, got -1");
  check_command_fails("convert x -o y --dt nan", 2, "[--dt] needed a positive number of seconds, got nan");
  check_command_fails("convert x -o y --dt 0", 2, "[--dt] needed a positive number of seconds, got 0");
  check_command_fails("convert x -o y --split a,b,c", 2, "split");
  check_command_fails("convert x -o y -o z", 2, "[--output] needed one value, got 2");
  check_command_fails("convert x -o y --unit u=m --unit u=K", 2,
                      "[--unit] needed each name once, got two for u");
  check_command_fails("--foo", 2, "needed an option that exists, got --foo");
}

TEST_CASE("a wrong configuration exits 2 with all its faults") {
  check_command_fails("config effective /nonexistent.toml", 2, "[/nonexistent.toml] needed a TOML file");
  check_command_fails("config effective --set train.batch=0", 2,
                      "[train.batch] needed an integer from 1 to 1e6, or \"auto\", got 0");
  const Captured outcome = run("config effective -s train.batch=0 -s model.widht=3");
  CHECK(outcome.code == 2);
  check_has(outcome.err, "meshgrad: error: defaults: 2 faults\n");
  check_has(outcome.err, "did you mean model.width?");
}

TEST_CASE("bad data exits 1") {
  check_command_fails("info " + test::source_file("docs/config.md"), 1,
                      "needed a .mgd or a .safetensors file, got a file that begins with the bytes ");
  check_command_fails("verify " + test::source_file("docs/config.md"), 1,
                      "needed a safetensors file, got a file that begins with ");
  check_command_fails("convert /nonexistent -o /tmp/meshgrad-never.mgd", 1, "/nonexistent");
  check_command_fails("info /nonexistent.mgd", 1, "/nonexistent.mgd");
  check_command_fails("config default >/dev/full", 1, "[stdout] needed to write the result");
}

TEST_CASE("config prints what the parser reads back") {
  const Captured defaults = run("config default");
  CHECK(defaults.code == 0);
  CHECK(defaults.err.empty());
  CHECK(to_toml(parse_config(defaults.out, "default.toml")) == to_toml(Config{}));

  const test::ScratchDirectory scratch;
  const std::string file = (scratch.path / "run.toml").string();
  std::ofstream(file) << "[train]\nsteps = 7\nnoise = 1\n";
  const Captured effective =
      run("config effective -s train.batch=5 " + file + " --set data.inputs='[\"a\", \"b\"]'");
  CHECK(effective.code == 0);
  const Config config = parse_config(effective.out, "effective.toml");
  CHECK(config.train.steps == 7);
  CHECK(config.train.batch == 5);
  CHECK(config.data.inputs.size() == 2);
  CHECK(nlohmann::json::parse(run("config schema").out).contains("properties"));
  CHECK(run("config docs").out == test::read_text(test::source_file("docs/config.md")));
}

TEST_CASE("info describes the machine") {
  const auto machine = nlohmann::json::parse(run("info --json --quiet --no-color").out);
  CHECK(machine["cpus"].get<int>() >= 1);
  CHECK(machine["memory_bytes"].get<int64_t>() > 0);
  CHECK(machine.contains("default_device"));
  check_has(run("--quiet info").out, "device    ");
}

TEST_CASE("every instruction set of this CPU agrees with the reference") {
  const auto machine = nlohmann::json::parse(run("info --json").out);
  REQUIRE(machine["isas"].size() >= 1);
  for (const auto& isa : machine["isas"]) {
    setenv("MESHGRAD_CPU_ISA", isa.get<std::string>().c_str(), 1);
    CHECK(nlohmann::json::parse(run("info --json").out)["isa"] == isa);
    for (const char* precision : {"f64", "f32", "f16", "bf16"}) {
      CAPTURE(precision);
      const Captured outcome =
          run("verify " + test::data_file("oracles/mgn_small.safetensors") + " --precision " + precision);
      CAPTURE(outcome.out);
      CHECK(outcome.code == 0);
    }
  }
  setenv("MESHGRAD_CPU_ISA", "mmx", 1);
  check_command_fails("info", 2, "[MESHGRAD_CPU_ISA] needed scalar");
  unsetenv("MESHGRAD_CPU_ISA");
}

TEST_CASE("a command says which device auto chose") {
  const std::string verify =
      "verify " + test::data_file("oracles/mgn_small.safetensors") + " --precision f32";
  check_has(run(verify + " --device auto").err, "meshgrad: device: ");
  CHECK(run(verify + " --device auto --quiet").err.empty());
  CHECK(run(verify + " --device cpu").err.empty());
}

TEST_CASE("a removed key is refused where it asks for something") {
  const std::string text = "[run]\npin = true\n";
  const Captured given = run("config effective --set run.pin=true");
  CHECK(given.code == 2);
  check_has(given.err, "[run.pin] needed no key of this name, as it was removed");
  CHECK_THROWS_WITH_AS(
      parse_config(text, "config.toml"),
      doctest::Contains("config.toml:2: [run.pin] needed no key of this name, as it was removed, got "
                        "true; fix: leave it out"),
      ConfigError);
  CHECK(to_toml(parse_config("[run]\npin = false\n", "config.toml")) == to_toml(Config{}));
  CHECK(to_toml(parse_saved_config(text, "last.safetensors")) == to_toml(Config{}));

  // At the top level.
  check_has(run("config effective --set wgmma=true").err, "[wgmma] needed no key of this name");
  CHECK_THROWS_WITH_AS(parse_config("wgmma = true\n", "config.toml"),
                       doctest::Contains("config.toml:1: [wgmma] needed no key of this name, as it was "
                                         "removed, got true; fix: leave it out"),
                       ConfigError);
  CHECK(to_toml(parse_config("wgmma = false\n", "config.toml")) == to_toml(Config{}));
  CHECK(to_toml(parse_saved_config("wgmma = true\n", "last.safetensors")) == to_toml(Config{}));
}

TEST_CASE("no colour codes where stderr is no terminal") {
  CHECK(run("confg").err.find('\033') == std::string::npos);
}

}  // namespace
}  // namespace meshgrad
