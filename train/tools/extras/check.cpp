// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/conversion_advice.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/packed_file.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/tools/extras/check_page.h>
#include <meshgrad/train/tools/extras/config_check.h>
#include <meshgrad/train/tools/extras/first_config.h>
#include <meshgrad/train/tools/extras/page.h>
#include <meshgrad/train/tools/program/command.h>
#include <meshgrad/train/tools/program/describe.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/output.h>
#include <meshgrad/train/tools/program/packed_copy.h>
#include <meshgrad/train/tools/program/progress.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

namespace meshgrad::cli {
namespace {

using Json = nlohmann::ordered_json;
using Severity = Finding::Severity;

struct CheckCommand {
  std::string path;
  std::vector<std::string> settings;
  std::string page;
  bool json = false;
};

/// What was given, and the configuration that it is checked with.
struct Checked {
  bool packed = true;  ///< false: the data set is a copy, which was packed for the check
  std::string path;    ///< of the data, as the user knows it
  Dataset dataset;
  Config config;
  bool guessed = false;  ///< the configuration is what meshgrad init would write
  DataSummary data;
  std::optional<ConfigSummary> use;  ///< absent when nothing can be learned from the data
  std::vector<Finding> findings;     ///< of both

  int64_t count(Severity severity) const {
    return std::ranges::count(findings, severity, &Finding::severity);
  }
};

Checked check_packed(const CheckCommand& command, Dataset dataset) {
  Checked checked{true, command.path, std::move(dataset), {}, true, {}, {}, {}};
  checked.data = check_data(checked.dataset);
  try {
    checked.config = first_config(checked.dataset).config;
    checked.use = check_config(checked.config, checked.dataset);
  } catch (const ConfigError& error) {
    std::string what = error.what();
    if (what.starts_with('[')) what.erase(0, what.find("] ") + 2);  // the place, which may be a copy's
    checked.data.findings.push_back({Severity::error, command.path, what,
                                     "no configuration can be written for this data", "see docs/data.md"});
  }
  return checked;
}

Checked check_configuration(const CheckCommand& command) {
  const Config config = load_config(command.path, command.settings);
  require_data_path(config);
  const Dataset dataset = Dataset::open(config.data.path);
  ConfigSummary use = check_config(config, dataset);  // wrong fields are reported before the data is read
  return {true, dataset.path().string(), dataset, config, false, check_data(dataset), std::move(use), {}};
}

/// What a conversion says beside what a packed file shows.
void add_warnings_of(const ConvertReport& report, Checked& checked) {
  std::vector<Finding>& findings = checked.data.findings;
  for (const std::string& warning : report.warnings) {
    Finding finding = finding_of_warning(warning);
    const std::string start = finding.what.substr(0, finding.what.find_first_of(":,"));
    const auto same = [&](const Finding& known) { return known.what.starts_with(start); };
    if (std::ranges::none_of(findings, same)) findings.push_back(std::move(finding));
  }
}

/// Of what meshgrad convert reads.
Checked check_raw(const CheckCommand& command, const GlobalOptions& globals) {
  ConvertOptions options;
  options.input = command.path;
  ConvertReport report;
  Dataset copy = packed_copy(std::move(options), report);
  if (!globals.quiet) {
    print_read(report);
    print_note("read as meshgrad convert does without options; to check it with others, convert it first");
  }
  Checked checked = check_packed(command, std::move(copy));
  checked.packed = false;
  add_warnings_of(report, checked);
  return checked;
}

Checked check_path(const CheckCommand& command, const GlobalOptions& globals) {
  const std::filesystem::path path(command.path);
  Checked checked = path.extension() == ".toml" ? check_configuration(command)
                    : names_packed_file(path)   ? check_packed(command, Dataset::open(path))
                                                : check_raw(command, globals);
  checked.findings = checked.data.findings;
  if (checked.use)
    checked.findings.insert(checked.findings.end(), checked.use->findings.begin(),
                            checked.use->findings.end());
  sort_findings(checked.findings);
  return checked;
}

std::string columns_text(const std::vector<ColumnGroup>& groups) {
  int64_t width = 0;
  std::string text;
  for (const ColumnGroup& group : groups) {
    width += group.width;
    text += fmt::format("{}{} [{}]", text.empty() ? "" : ", ", group.name, group.width);
  }
  return fmt::format("{}: {}", width, text);
}

std::string field_lines(const FieldSummary& field) {
  std::vector<ValueRange> ranges;
  for (const ComponentSummary& component : field.components) {
    ranges.push_back({component.min, component.max, {}, {}, {}});
    if (field.info.dtype == DType::f32) ranges.back().mean = component.mean;
    if (component.change > 0) ranges.back().change = component.change;
  }
  return value_lines(field.info, ranges);
}

/// Which values of the targets are given.
std::string predicted_text(const std::vector<int64_t>& types, double share) {
  if (share >= 1.0) return "at all nodes";
  return fmt::format(
      "at {:.1f} % of the nodes, of type {}; {:.1f} % of the targets are given, as in the data", 100 * share,
      fmt::join(types, ", "), 100 * (1 - share));
}

std::string use_text(const Checked& checked) {
  const ConfigSummary& use = *checked.use;
  std::string text = fmt::format("task      {}{}\n", name_of(checked.config.task.name),
                                 checked.guessed ? ", as meshgrad init would configure it" : "");
  text += "nodes in  " + columns_text(use.columns.node_inputs) + "\n";
  text += "edges in  " + columns_text(use.columns.edge_inputs) + "\n";
  text += "outputs   " + columns_text(use.columns.outputs) + "\n";
  if (use.predicted_share)
    text += "predicted " + predicted_text(checked.config.data.predicted_types, *use.predicted_share) + "\n";
  if (use.reach) text += "reach     " + reach_text(*use.reach) + "\n";
  text += fmt::format("samples   {} in {}, {} in {}\n", use.train_samples, checked.config.data.train_split,
                      use.valid_samples, checked.config.data.valid_split);
  if (use.memory) {
    text += fmt::format("memory    {:.1f} MiB a step of batch {} on {}; it may use {:.0f} MiB\n",
                        mebibytes(use.memory->step.reserved), use.memory->batch, name_of(use.memory->device),
                        mebibytes(use.memory->usable));
  }
  return text;
}

std::string to_text(const Checked& checked) {
  const Dataset& data = checked.dataset;
  const DataSummary& summary = checked.data;
  std::string text =
      checked.packed
          ? fmt::format("packed    {} ({}), from {}\n", checked.path, bytes_text(data.bytes()), data.source())
          : fmt::format("read      {} ({} packed)\n", data.source(), bytes_text(data.bytes()));
  text += facts_text(summary.facts);
  const HistogramRange degree = range_of(summary.degrees);
  text +=
      fmt::format("degree    {} to {} edges a node, median {}\n", degree.least, degree.most, degree.median);
  if (data.dim() > 0) {
    text += fmt::format("edges     {:.3g} to {:.3g} long, mean {:.3g}\n", summary.edge_length.least,
                        summary.edge_length.most, summary.mean_edge_length);
  }
  for (const FieldSummary& field : summary.fields) text += field_lines(field);
  if (checked.use) text += use_text(checked);
  text += fmt::format("found     {}, {}, {}\n", counted(checked.count(Severity::error), "error"),
                      counted(checked.count(Severity::warning), "warning"),
                      counted(checked.count(Severity::note), "note"));
  for (const Finding& finding : checked.findings) {
    text += fmt::format("\n{:9} [{}] {}\n", name_of(finding.severity), finding.place, finding.what);
    text += fmt::format("  why     {}\n  fix     {}\n", finding.why, finding.remedy);
  }
  return text;
}

Json columns_json(const std::vector<ColumnGroup>& groups) {
  Json list = Json::array();
  for (const ColumnGroup& group : groups) list.push_back({{"name", group.name}, {"width", group.width}});
  return list;
}

Json values_json(const FieldSummary& field) {
  Json values = Json::array();
  for (const ComponentSummary& component : field.components) {
    values.push_back({{"minimum", component.min},
                      {"maximum", component.max},
                      {"mean", component.mean},
                      {"change_per_frame", component.change},
                      {"histogram", component.histogram}});
  }
  return values;
}

Json use_json(const Checked& checked) {
  const ConfigSummary& use = *checked.use;
  Json json{{"task", name_of(checked.config.task.name)},
            {"guessed", checked.guessed},
            {"node_inputs", columns_json(use.columns.node_inputs)},
            {"edge_inputs", columns_json(use.columns.edge_inputs)},
            {"outputs", columns_json(use.columns.outputs)},
            {"predicted_share", use.predicted_share ? Json(*use.predicted_share) : Json()},
            {"train_samples", use.train_samples},
            {"valid_samples", use.valid_samples}};
  if (use.reach) {
    json["reach"] = {{"edges", use.reach->edges},
                     {"diameter", {{"min", use.reach->diameter_least}, {"max", use.reach->diameter_most}}},
                     {"sources", Json::array()}};
    for (const ReachSource& source : use.reach->sources)
      json["reach"]["sources"].push_back(
          {{"name", source.name}, {"distance", {{"min", source.least}, {"max", source.most}}}});
  }
  if (use.memory) {
    json["memory"] = {{"device", name_of(use.memory->device)},
                      {"batch", use.memory->batch},
                      {"step_bytes", use.memory->step.reserved},
                      {"usable_bytes", use.memory->usable},
                      {"fits", use.memory->fits}};
  }
  return json;
}

Json to_json(const Checked& checked) {
  const Dataset& data = checked.dataset;
  const DataSummary& summary = checked.data;
  const HistogramRange degree = range_of(summary.degrees);
  Json json{{"path", checked.path}, {"source", data.source()}, {"bytes", data.bytes()}};
  json.update(facts_json(summary.facts));
  for (size_t f = 0; f < summary.fields.size(); ++f)
    json["fields"][f]["values"] = values_json(summary.fields[f]);
  json["degree"] = {{"min", degree.least}, {"median", degree.median}, {"max", degree.most}};
  json["degrees"] = summary.degrees;
  json["edge_length"] = {{"min", summary.edge_length.least},
                         {"mean", summary.mean_edge_length},
                         {"max", summary.edge_length.most}};
  if (checked.use) json["use"] = use_json(checked);
  json["findings"] = Json::array();
  for (const Finding& finding : checked.findings) {
    json["findings"].push_back({{"severity", name_of(finding.severity)},
                                {"place", finding.place},
                                {"what", finding.what},
                                {"why", finding.why},
                                {"remedy", finding.remedy}});
  }
  return json;
}

int run(const CheckCommand& command, const GlobalOptions& globals) {
  if (!command.page.empty()) check_output(page_output("--html", command.page, {command.path}));
  const Checked checked = check_path(command, globals);
  const auto dumped = [&](int indent) {
    return to_json(checked).dump(indent, ' ', false, Json::error_handler_t::replace);
  };
  if (!command.page.empty()) write_check_page(command.page, checked.dataset, dumped(-1));
  if (command.json) {
    print_result(dumped(2) + "\n");
  } else {
    print_text(to_text(checked));
  }
  return checked.count(Severity::error) > 0 ? kExitFailed : kExitOk;
}

}  // namespace

void add_check(CommandLine& line) {
  CLI::App* check =
      add_command(line.app, "check", "Examine data, and what a configuration makes of it",
                  {"meshgrad check cylinder.mgd", "meshgrad check config.toml",
                   "meshgrad check results/ --json", "meshgrad check cylinder.mgd --html check.html"});
  const auto options = std::make_shared<CheckCommand>();
  check
      ->add_option("PATH", options->path,
                   "A packed file, what convert reads, or a configuration and its data")
      ->type_name("DATA|CONFIG")
      ->required();
  add_settings(*check, options->settings);
  check->add_option("--html", options->page, "Also write a page with histograms and a picture of a mesh")
      ->type_name("FILE");
  add_json(*check, options->json);
  on_first_run(*check, line, options, run);
}

}  // namespace meshgrad::cli
