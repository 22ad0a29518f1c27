// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/tools/extras/history_page.h>
#include <meshgrad/train/tools/extras/page.h>
#include <meshgrad/train/tools/extras/replay/replay.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/output.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

namespace meshgrad::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ReplayCommand {
  std::vector<std::string> traces;
  std::vector<std::string> policies;
  std::string capacity;
  double scale = 1.0;
  bool json = false;
};

std::optional<int64_t> capacity_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const bool digits = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  const std::optional<int64_t> bytes = parse_size(digits ? text + "B" : text);
  if (bytes && *bytes > 0) return bytes;
  throw invalid_argument("--capacity", "a size", '"' + text + '"', "for example --capacity 8GiB");
}

std::vector<ReplayPolicy> chosen_policies(const std::vector<std::string>& names) {
  std::vector<ReplayPolicy> policies;
  for (const std::string& name : names) policies.push_back(find_replay_policy(name));
  if (names.empty()) policies.assign(replay_policies().begin(), replay_policies().end());
  return policies;
}

Json to_json(const std::string& path, const ReplayReport& report, std::optional<int64_t> capacity) {
  Json json{{"trace", path},
            {"policy", report.policy},
            {"peak_requested", report.peak_requested},
            {"peak_reserved", report.unlimited.peak_reserved},
            {"ratio", report.ratio()},
            {"driver_calls", report.unlimited.driver_calls},
            {"min_capacity", report.min_capacity},
            {"min_capacity_ratio", report.min_capacity_ratio()},
            {"flushes_at_1_05", report.tight.flushes},
            {"driver_calls_at_1_05", report.tight.driver_calls},
            {"oom_at_1_05", !report.tight.completes},
            {"fragmentation_at_peak", report.unlimited.fragmentation_at_peak},
            {"ns_per_operation", report.ns_per_operation}};
  if (report.at_capacity) {
    json["capacity"] = *capacity;
    json["completes_at_capacity"] = report.at_capacity->completes;
    json["peak_reserved_at_capacity"] = report.at_capacity->peak_reserved;
    json["flushes_at_capacity"] = report.at_capacity->flushes;
    json["driver_calls_at_capacity"] = report.at_capacity->driver_calls;
  }
  return json;
}

std::string headline(const std::string& path, const MemoryTrace& trace) {
  return fmt::format("{}\n{}, {}, {}, peak requested {:.1f} MiB\n\n", path,
                     counted(trace.allocations, "allocation"), counted(trace.steps, "step"),
                     counted(trace.streams, "stream"), mebibytes(trace.peak_requested));
}

std::string run_columns(const ReplayRun& run) {
  return fmt::format("  {:>7}  {:>9}", run.completes ? fmt::to_string(run.flushes) : "OOM", run.driver_calls);
}

/// Two tables, which fit 80 columns: without a limit, and with. `capacity` is the text of --capacity; empty
/// without the option.
std::string table(const std::vector<ReplayReport>& reports, const std::string& capacity) {
  std::string text = fmt::format("{:18}  {:>9}  {:>6}  {:>5}  {:>12}  {:>6}\n", "without limit", "MiB",
                                 "ratio", "frag.", "driver calls", "ns/op");
  for (const ReplayReport& report : reports) {
    text += fmt::format("{:18}  {:9.1f}  {:6.4f}  {:5.2f}  {:12}  {:6.0f}\n", report.policy,
                        mebibytes(report.unlimited.peak_reserved), report.ratio(),
                        report.unlimited.fragmentation_at_peak, report.unlimited.driver_calls,
                        report.ns_per_operation);
  }
  text += fmt::format("\n{:18}  {:-^17}  {:-^18}", "", " min capacity ", " 1.05 x requested ");
  if (!capacity.empty()) text += fmt::format("  {:-^18}", " " + capacity + " ");
  const std::string of_run = fmt::format("  {:>7}  {:>9}", "flushes", "drv.calls");
  text += fmt::format("\n{:18}  {:>9}  {:>6}", "with limits", "MiB", "ratio") + of_run +
          (capacity.empty() ? "" : of_run) + "\n";
  for (const ReplayReport& report : reports) {
    text += fmt::format("{:18}  {:9.1f}  {:6.4f}", report.policy, mebibytes(report.min_capacity),
                        report.min_capacity_ratio());
    text += run_columns(report.tight) + (report.at_capacity ? run_columns(*report.at_capacity) : "") + "\n";
  }
  return text;
}

/// A progress line before each policy, once the command has run for a while.
std::function<void(const std::string&)> replay_progress(bool quiet) {
  using Clock = std::chrono::steady_clock;
  return [quiet, last = Clock::now()](const std::string& text) mutable {
    constexpr std::chrono::seconds kPatience{2};
    if (quiet || Clock::now() - last < kPatience) return;
    last = Clock::now();
    print_note(text);
  };
}

int run(const ReplayCommand& command, const GlobalOptions& globals) {
  const std::optional<int64_t> capacity = capacity_of(command.capacity);
  const std::vector<ReplayPolicy> policies = chosen_policies(command.policies);
  if (!(command.scale > 0 && command.scale <= 1e6)) {
    throw invalid_argument("--scale", "a factor above 0, up to 1e6", fmt::format("{}", command.scale),
                           "for example --scale 0.5");
  }
  const auto progress = replay_progress(globals.quiet);
  Json json = Json::array();
  std::string text;
  for (const std::string& path : command.traces) {
    const MemoryTrace trace = read_memory_trace(path, command.scale);
    if (trace.unmatched_frees > 0 && !globals.quiet)
      print_note(fmt::format("{}: skipped {} frees of allocations older than the history", path,
                             trace.unmatched_frees));
    std::vector<ReplayReport> reports;
    for (const ReplayPolicy& policy : policies) {
      progress(fmt::format("replaying {} through {}", path, policy.name));
      reports.push_back(replay_trace(trace, policy, capacity));
      json.push_back(to_json(path, reports.back(), capacity));
    }
    text += (text.empty() ? "" : "\n") + headline(path, trace) + table(reports, command.capacity);
  }
  if (command.json) {
    print_result(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    print_text(text);
  }
  return kExitOk;
}

std::string policies_help() {
  std::string text = "\n\nPolicies:\n";
  for (const ReplayPolicy& policy : replay_policies())
    text += fmt::format("  {:<18}  {}\n", policy.name, policy.summary);
  return text +
         "\nAll policies but the default are simulated from their documentation. MiB: peak of reserved "
         "memory,\n"
         "and its ratio to the peak of requested memory; frag.: 1 - largest / all free memory at that time. "
         "The\n"
         "search for the min capacity assumes that a trace that completes also completes with more memory.";
}

struct PageCommand {
  std::string history, output = "memory.html";
};

int run_page(const PageCommand& command, const GlobalOptions&) {
  namespace fs = std::filesystem;
  fs::path file = command.history;
  if (std::error_code none; fs::is_directory(file, none)) file = file / "memory" / "history.json";
  check_output(page_output("-o", command.output, {file}));
  const std::string page = history_page(read_history_file(file));
  write_file_atomically(command.output, page);
  print_text(fmt::format("wrote     {} ({})\n", command.output, bytes_text(std::ssize(page))));
  return kExitOk;
}

void add_page(CLI::App& memory, CommandLine& line) {
  const auto options = std::make_shared<PageCommand>();
  CLI::App* page = add_command(memory, "page", "Draw a run's memory.history as a page for a browser",
                               {"meshgrad memory page runs/default -o memory.html"});
  page->add_option("RUN", options->history, "Run directory, or its memory/history.json")
      ->type_name("")
      ->required();
  page->add_option("-o,--output", options->output, "Page to write")
      ->type_name("FILE.html")
      ->capture_default_str();
  on_run(*page, line, options, run_page);
}

}  // namespace

void add_memory(CommandLine& line) {
  CLI::App* memory = add_command(line.app, "memory", "Analyse memory allocation",
                                 {"meshgrad memory replay trace.txt", "meshgrad memory page runs/default"});
  memory->require_subcommand(1);
  add_page(*memory, line);
  const auto options = std::make_shared<ReplayCommand>();
  CLI::App* replay =
      add_command(*memory, "replay", "Replay an allocation trace through this allocator and others",
                  {"meshgrad memory replay trace.txt rmm.csv history.json",
                   "meshgrad memory replay trace.txt --capacity 8GiB",
                   "meshgrad memory replay trace.txt.gz --policy default --scale 0.5 --json"});
  replay->footer(replay->get_footer() + policies_help());
  replay
      ->add_option("TRACE", options->traces,
                   "Plain text (a ID BYTES, f ID, s STEP), RMM's CSV log or history.json; also gzipped")
      ->type_name("")
      ->required();
  replay->add_option("--capacity", options->capacity, "Also replay with this limited memory")
      ->type_name("SIZE");
  replay->add_option("--policy", options->policies, "Replay this policy only; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  replay->add_option("--scale", options->scale, "Factor for all sizes, for example 0.5 for 16-bit storage")
      ->type_name("F");
  add_json(*replay, options->json);
  on_run(*replay, line, options, run);
}

}  // namespace meshgrad::cli
