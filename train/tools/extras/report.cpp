// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/tag.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/mapped_file.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/metrics_log.h>
#include <meshgrad/train/learn/run/run_verdict.h>
#include <meshgrad/train/tools/extras/page.h>
#include <meshgrad/train/tools/extras/run_pictures.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/errors_text.h>
#include <meshgrad/train/tools/program/field_image.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/usage.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace meshgrad::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct ReportCommand {
  std::vector<std::string> runs;
  std::string output = "report.html";
  std::string split = "test";
  std::string checkpoint = "best";
  bool no_evaluation = false;
  int pictures = 8;
  std::string device = "auto";
  int threads = 0;
};

std::string text_of(const fs::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// Columns of the lines that have `key`: "step" and `keys`, each line a mean of several where there are more
/// than a chart shows.
Json columns(const std::vector<std::map<std::string, double>>& rows, const std::string& key,
             const std::vector<std::string>& keys) {
  std::vector<const std::map<std::string, double>*> chosen;
  for (const auto& row : rows)
    if (row.contains(key)) chosen.push_back(&row);
  constexpr size_t kMost = 600;
  const size_t together = (chosen.size() + kMost - 1) / kMost;
  Json json{{"step", Json::array()}};
  for (const std::string& name : keys) json[name] = Json::array();
  for (size_t begin = 0; begin < chosen.size(); begin += together) {
    const size_t end = std::min(begin + together, chosen.size());
    json["step"].push_back(chosen[end - 1]->at("step"));
    for (const std::string& name : keys) {
      double sum = 0, count = 0;
      for (size_t i = begin; i < end; ++i) {
        const auto found = chosen[i]->find(name);
        if (found == chosen[i]->end() || !std::isfinite(found->second)) continue;
        sum += found->second;
        count += 1;
      }
      json[name].push_back(count > 0 ? Json(sum / count) : Json(nullptr));
    }
  }
  return json;
}

/// Bytes of each tag at the peak of each epoch, under the tag's name.
Json memory_by_tag(const std::vector<std::map<std::string, double>>& rows) {
  std::vector<std::string> keys;
  std::map<std::string, std::string> tags;
  for (int i = 0; i < kTagCount; ++i) {
    const std::string tag(name_of(static_cast<Tag>(i)));
    const std::string key = fmt::format("memory_peak_{}_bytes", tag);
    if (!std::ranges::any_of(rows, [&](const auto& row) { return row.contains(key); })) continue;
    keys.push_back(key);
    tags[key] = tag;
  }
  const Json found = columns(rows, "memory_headroom_bytes", keys);
  Json json{{"step", keys.empty() ? Json::array() : found["step"]}};
  for (const std::string& key : keys) json[tags[key]] = found[key];
  return json;
}

/// Of a trace (run/step_trace.h): what was in use over the time of its step, by tag, and the phases of the
/// step; milliseconds. Of many allocations within a short time the one with most in use is kept, and the
/// last.
Json memory_over(const Json& trace, int64_t step) {
  constexpr double kParts = 400;
  double until = 0;
  std::vector<const Json*> counters;
  Json phases = Json::array();
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("pid") != 1) continue;  // rank 0
    if (event.at("ph") == "C") counters.push_back(&event);
    if (event.at("ph") != "X" || event.at("cat") != "phase") continue;
    const std::string name = event.at("name");
    const double begin = event.at("ts").get<double>() / 1e3;
    const double end = begin + event.at("dur").get<double>() / 1e3;
    if (name.starts_with("step ")) until = end;
    for (const char* const shown : {"load batch", "forward", "backward", "optimizer", "validation"})
      if (name == shown) phases.push_back({name, begin, end});
  }
  if (counters.empty() || !(until > 0)) return nullptr;
  const auto part_of = [&](const Json& event) {
    return std::floor(event.at("ts").get<double>() / 1e3 / until * kParts);
  };
  const auto in_use = [](const Json& event) {
    int64_t sum = 0;
    for (const Json& bytes : event.at("args")) sum += bytes.get<int64_t>();
    return sum;
  };
  std::vector<const Json*> kept;
  for (size_t begin = 0, end = 0; begin < counters.size(); begin = end) {
    while (end < counters.size() && part_of(*counters[end]) == part_of(*counters[begin])) ++end;
    const auto most = std::max_element(counters.begin() + static_cast<ptrdiff_t>(begin),
                                       counters.begin() + static_cast<ptrdiff_t>(end),
                                       [&](const Json* a, const Json* b) { return in_use(*a) < in_use(*b); });
    kept.push_back(*most);
    if (*most != counters[end - 1]) kept.push_back(counters[end - 1]);
  }
  Json json{{"of", step}, {"until", until}, {"phases", phases}, {"step", Json::array()}};
  for (const auto& [tag, bytes] : kept.front()->at("args").items()) json[tag] = Json::array();
  for (const Json* event : kept) {
    json["step"].push_back(event->at("ts").get<double>() / 1e3);
    for (const auto& [tag, bytes] : event->at("args").items()) json[tag].push_back(bytes);
  }
  return json;
}

/// memory_over() the newest step that the run has a trace of. Null without one, and for one that is damaged.
Json memory_over_step(const fs::path& run) {
  fs::path newest;
  int64_t step = 0;
  for (const auto& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().stem().string();
    if (!name.starts_with("trace-") || entry.path().extension() != ".json") continue;
    const auto number = static_cast<int64_t>(parse_number(name.substr(6)).value_or(0));
    if (number <= step) continue;
    step = number;
    newest = entry.path();
  }
  if (newest.empty()) return nullptr;
  try {
    return memory_over(Json::parse(text_of(newest)), step);
  } catch (const Json::exception&) {
    return nullptr;
  }
}

/// What the files of a run directory say.
Json describe_run(const fs::path& run) {
  if (!fs::exists(run / "metrics.jsonl")) {
    throw config_error("RUN", "a run directory with metrics.jsonl", run.string() + " without metrics.jsonl",
                       "name the folder that `meshgrad train` wrote (run.dir)");
  }
  Json json{{"name", fs::weakly_canonical(run).filename().string()}, {"path", run.string()}};
  const auto rows = read_metrics(run / "metrics.jsonl");
  json["training"] =
      columns(rows, "loss",
              {"loss", "learning_rate", "gradient_norm", "steps_per_second", "data_wait_seconds",
               "memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes"});
  json["memory"] = memory_by_tag(rows);
  json["step_memory"] = memory_over_step(run);
  json["validation"] = columns(rows, "valid_loss", {"valid_loss", "valid_error", "valid_baseline"});
  const fs::path resolved = run / "config.resolved.toml";
  const Config config =
      fs::exists(resolved) ? parse_saved_config(text_of(resolved), resolved.string()) : Config();
  const RunVerdict verdict = verdict_of(rows, config);
  json["verdict"] = {{"kind", name_of(verdict.kind)}, {"text", verdict.text}};
  json["config"] = fs::exists(resolved) ? text_of(resolved) : "";
  json["environment"] = nullptr;
  if (fs::exists(run / "environment.json"))
    json["environment"] = Json::parse(text_of(run / "environment.json"), nullptr, false);
  if (json["environment"].is_discarded()) json["environment"] = nullptr;
  return json;
}

Json errors_over_steps(const Evaluation& evaluation) {
  Json json{{"split", evaluation.split},
            {"trajectories", evaluation.trajectories},
            {"steady", !evaluation.dynamics.has_value()},
            {"fields", errors_json(evaluation.fields)},
            {"baseline", evaluation.baseline},
            {"rollouts", Json::array()},
            {"metrics", Json::array()}};
  for (const Metric& metric : evaluation.metrics)
    json["metrics"].push_back({metric.name, metric.value, metric.unit});
  if (!evaluation.dynamics) return json;
  for (const RolloutErrors& rollout : evaluation.dynamics->rollouts)
    json["rollouts"].push_back({{"steps", rollout.steps}, {"fields", errors_json(rollout.fields)}});
  return json;
}

/// Errors and pictures of the run's checkpoint. Without its data the page says why they are missing.
void add_predictions(Json& json, const ReportCommand& command, const std::string& run,
                     const GlobalOptions& globals) {
  try {
    const fs::path checkpoint = find_checkpoint(run, command.checkpoint);
    Runtime runtime(
        {.device = chosen_device(command.device, checkpoint_config(checkpoint).precision, globals),
         .threads = command.threads,
         .allocator = allocator_options_from_environment(),
         .log = log_of(globals.quiet)});
    const Predictor predictor(runtime, checkpoint);
    EvaluateOptions options;
    options.split = command.split;
    if (!globals.quiet)
      options.progress = [&](const std::string& text) { print_note(fmt::format("{}: {}", run, text)); };
    RunPictures pictures(predictor, command.split, command.pictures);
    options.rollout_step = [&](int64_t trajectory, int64_t step, const auto& ours, const auto& truth) {
      pictures.add_step(trajectory, step, ours, truth);
    };
    json["evaluation"] = errors_over_steps(evaluate(predictor, options));
    json["evaluation"]["checkpoint_step"] = predictor.step();
    json.update(pictures.finish());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data && error.kind() != ErrorKind::config) throw;
    json["without_evaluation"] = error.what();
    if (!globals.quiet)
      print_note(fmt::format("warning: {}: no errors in the report: {}", run, error.what()));
  }
}

int run(const ReportCommand& command, const GlobalOptions& globals) {
  check_output(page_output("-o", command.output));
  Json page{{"version", MESHGRAD_VERSION}, {"tags", Json::array()}, {"runs", Json::array()}};
  for (int tag = 0; tag < kTagCount; ++tag) page["tags"].push_back(name_of(static_cast<Tag>(tag)));
  for (const ColourMap map : {ColourMap::viridis, ColourMap::magma})
    for (const Colour colour : stops_of(map))
      page["colours"][std::string(name_of(map))].push_back({colour.red, colour.green, colour.blue});
  for (const std::string& run : command.runs) {
    Json json = describe_run(run);
    json["evaluation"] = nullptr;
    json["meshes"] = json["pictures"] = Json::array();
    json["without_evaluation"] = command.no_evaluation ? "--no-evaluation" : "";
    if (!command.no_evaluation) add_predictions(json, command, run, globals);
    page["runs"].push_back(std::move(json));
  }
  const std::string data = page.dump(-1, ' ', false, Json::error_handler_t::replace);
  write_file_atomically(command.output, make_page(kReportPage, data));
  print_text(fmt::format("wrote     {} ({})\n", command.output,
                         counted(static_cast<int64_t>(command.runs.size()), "run")));
  return kExitOk;
}

}  // namespace

void add_report(CommandLine& line) {
  CLI::App* report = add_command(
      line.app, "report", "Compare runs on one HTML page: losses, errors, pictures, configuration, machine",
      {"meshgrad report runs/cylinder", "meshgrad report runs/a runs/b -o compare.html --split valid"});
  const auto options = std::make_shared<ReportCommand>();
  report->add_option("RUN", options->runs, "Run directories, at most 8")->required()->expected(1, 8);
  report->add_option("-o,--output", options->output, "Page to write")
      ->type_name("FILE")
      ->capture_default_str();
  report->add_option("--split", options->split, "Split of the data for errors and pictures")
      ->capture_default_str();
  report->add_option("--checkpoint", options->checkpoint, "best or last")->capture_default_str();
  report->add_option("--pictures", options->pictures, "Pictures of predictions for each run, 1 to 50")
      ->type_name("N")
      ->check(CLI::Range(1, 50))
      ->capture_default_str();
  report->add_flag("--no-evaluation", options->no_evaluation,
                   "Neither errors nor pictures: what the run wrote");
  add_device(*report, options->device);
  add_threads(*report, options->threads);
  on_first_run(*report, line, options, run);
}

}  // namespace meshgrad::cli
