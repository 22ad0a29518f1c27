// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/tools/extras/health.h>
#include <meshgrad/train/tools/extras/reach.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/output.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace meshgrad::cli {
namespace {

using Verdict = HealthCheck::Verdict;

struct DoctorCommand {
  std::string run;
  std::string folder = ".";
  bool json = false;
};

int64_t count_of(const std::vector<HealthCheck>& checks, Verdict verdict) {
  return std::ranges::count(checks, verdict, &HealthCheck::verdict);
}

std::string doctor_text(const std::vector<HealthCheck>& checks) {
  constexpr std::string_view kIndent = "                          ";
  std::string text;
  for (const HealthCheck& check : checks) {
    text += wrapped(check.found, text_width(),
                    fmt::format("{:<16}{:<10}", check.name, name_of(check.verdict)), kIndent) +
            "\n";
    if (!check.remedy.empty())
      text += wrapped("remedy: " + check.remedy, text_width(), kIndent, kIndent) + "\n";
    if (!check.gain.empty()) text += wrapped("gain: " + check.gain, text_width(), kIndent, kIndent) + "\n";
  }
  return text + fmt::format("\n{} good, {} to look at, {} bad, {} unknown\n", count_of(checks, Verdict::good),
                            counted(count_of(checks, Verdict::note), "note"), count_of(checks, Verdict::bad),
                            count_of(checks, Verdict::unknown));
}

std::string doctor_json(const DoctorCommand& command, const std::vector<HealthCheck>& checks) {
  nlohmann::ordered_json json{{"of", command.run.empty() ? "machine" : command.run},
                              {"bad", count_of(checks, Verdict::bad)},
                              {"checks", nlohmann::ordered_json::array()}};
  for (const HealthCheck& check : checks) {
    json["checks"].push_back({{"name", check.name},
                              {"verdict", name_of(check.verdict)},
                              {"found", check.found},
                              {"remedy", check.remedy},
                              {"gain", check.gain}});
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

int run(const DoctorCommand& command, const GlobalOptions&) {
  std::vector<HealthCheck> checks =
      command.run.empty() ? examine_machine(command.folder) : examine_run(command.run);
  if (!command.run.empty()) checks.push_back(examine_reach(command.run));
  if (command.json) {
    print_result(doctor_json(command, checks));
  } else {
    print_result(doctor_text(checks));
  }
  return count_of(checks, Verdict::bad) > 0 ? kExitFailed : kExitOk;
}

}  // namespace

void add_doctor(CommandLine& line) {
  CLI::App* doctor = add_command(
      line.app, "doctor",
      "Examine this machine, or the health of a run: what is wrong, and what a remedy gains",
      {"meshgrad doctor", "meshgrad doctor runs/cylinder", "meshgrad doctor runs/cylinder --json"});
  const auto options = std::make_shared<DoctorCommand>();
  doctor->add_option("RUN", options->run, "Run directory; default: this machine")->type_name("");
  doctor->add_option("--folder", options->folder, "Where the disk's speed is measured")
      ->type_name("DIR")
      ->capture_default_str();
  add_json(*doctor, options->json);
  on_first_run(*doctor, line, options, run);
}

}  // namespace meshgrad::cli
