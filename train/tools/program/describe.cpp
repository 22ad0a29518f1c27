// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/packed_file.h>
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/tools/program/describe.h>
#include <meshgrad/train/tools/program/progress.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace meshgrad::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string printed(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string number_text(const FieldInfo& field, size_t component, double value) {
  // Numbers far from zero differ in their last digits.
  return fmt::format("{:.{}g}", value, field.offset_of(component) == 0 ? 6 : 15);
}

/// Of the split of the statistics; none in a packed file of version 1.
std::vector<ValueRange> ranges_of(const Dataset& data, const FieldInfo& field) {
  const FieldStatistics stats = data.field_stats(field.name);
  std::vector<ValueRange> ranges;
  for (size_t c = 0; c < stats.min.size() && stats.count > 0; ++c) {
    const double offset = field.offset_of(c);
    ranges.push_back({stats.min[c] + offset, stats.max[c] + offset, {}, {}, {}});
    if (stats.mean.empty()) continue;
    ranges.back().mean = stats.mean[c] + offset;
    ranges.back().deviation = stats.std[c];
  }
  return ranges;
}

/// "0: 1876, 6: 233", without types that do not occur.
std::string types_text(const std::vector<int64_t>& counts) {
  std::string text;
  for (size_t type = 0; type < counts.size(); ++type) {
    if (counts[type] > 0) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", type, counts[type]);
  }
  return text;
}

/// "1.6 to 2.2 by 1".
std::string extent_text(const std::vector<MeshExtent>& axes) {
  std::string text;
  for (const MeshExtent& axis : axes) {
    const std::string least = fmt::format("{:.4g}", axis.least), most = fmt::format("{:.4g}", axis.most);
    text += fmt::format("{}{}", text.empty() ? "" : " by ", least == most ? least : least + " to " + most);
  }
  return text;
}

/// "train 8, valid 1, test 1", in trajectories.
std::string splits_text(const std::vector<SplitInfo>& splits) {
  std::string text;
  for (const SplitInfo& split : splits)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", split.name, split.count);
  return text;
}

Json fields_json(const std::vector<FieldInfo>& fields) {
  Json list = Json::array();
  for (const FieldInfo& field : fields) {
    list.push_back({{"name", field.name},
                    {"components", field.components},
                    {"dynamic", field.dynamic},
                    {"unit", field.unit},
                    {"on", std::string(name_of(field.on))},
                    {"dtype", std::string(name_of(field.dtype))}});
    if (field.node_split) list.back()["role"] = "node split";
  }
  return list;
}

std::string describe_dataset(const std::string& path, bool json) {
  const Dataset data = Dataset::open(path);
  const DataFacts facts = data_facts(data);
  if (json) {
    Json object{{"kind", "packed data"},   {"path", path},
                {"bytes", data.bytes()},   {"fingerprint", fmt::format("{:016x}", data.fingerprint())},
                {"source", data.source()}, {"warnings", data.warnings()}};
    object.update(facts_json(facts));
    for (size_t f = 0; f < facts.fields.size(); ++f) {
      Json& field = object["fields"][f];
      for (const char* key : {"minimum", "maximum", "mean", "deviation"}) field[key] = Json::array();
      for (const ValueRange& range : ranges_of(data, facts.fields[f])) {
        field["minimum"].push_back(range.least);
        field["maximum"].push_back(range.most);
        if (range.mean) field["mean"].push_back(*range.mean);
        if (range.deviation) field["deviation"].push_back(*range.deviation);
      }
    }
    return printed(object);
  }
  std::string text =
      fmt::format("packed    {} ({}), from {}\n", path, bytes_text(data.bytes()), data.source());
  text += facts_text(facts);
  for (const FieldInfo& field : facts.fields) text += value_lines(field, ranges_of(data, field));
  for (const std::string& warning : data.warnings()) text += "warning   " + warning + "\n";
  return text + fmt::format("content   {:016x}\n", data.fingerprint());
}

std::string describe_weights(const std::string& path, bool json) {
  const SafetensorsFile file{std::filesystem::path(path)};
  Json tensors = Json::array();
  std::string lines;
  uint64_t bytes = 0;
  for (const SafetensorsTensor& tensor : file.view().tensors) {
    bytes += tensor.bytes.size();
    tensors.push_back({{"name", tensor.name}, {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}});
    lines +=
        fmt::format("  {:4} [{}] {}\n", dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "), tensor.name);
  }
  if (json) {
    return printed({{"kind", "safetensors"},
                    {"path", path},
                    {"bytes", bytes},
                    {"metadata", file.view().metadata},
                    {"tensors", tensors}});
  }
  std::string text = fmt::format("weights   {} ({} of tensor data)\n", path, bytes_text(bytes));
  for (const auto& [key, value] : file.view().metadata) {
    constexpr size_t kLongest = 80;
    const std::string first_line = value.substr(0, std::min(value.find('\n'), kLongest));
    text += fmt::format("  {} = {}{}\n", key, first_line, first_line.size() < value.size() ? "..." : "");
  }
  return text + fmt::format("tensors   {}\n", tensors.size()) + lines;
}

}  // namespace

std::string fields_text(const std::vector<FieldInfo>& fields) {
  std::string text;
  for (const FieldInfo& field : fields) {
    std::vector<std::string_view> notes;
    if (field.on != FieldOn::node) notes.push_back(name_of(field.on));
    if (field.dtype != DType::f32) notes.push_back(name_of(field.dtype));
    if (!field.dynamic) notes.emplace_back("static");
    if (field.node_split) notes.emplace_back("node split");
    text += fmt::format("{}{}[{}]{}{}", text.empty() ? "" : ", ", field.name, field.components,
                        field.unit.empty() ? "" : " ", field.unit);
    if (!notes.empty()) text += fmt::format(" ({})", fmt::join(notes, ", "));
  }
  return text;
}

std::string dimensions_text(int dim) { return dim == 0 ? "without positions" : fmt::format("in {}-D", dim); }

std::string facts_text(const DataFacts& facts) {
  std::string text =
      fmt::format("data      {}, {}, {} {}{}\n", counted(facts.trajectories, "trajectory", "trajectories"),
                  counted(facts.frames, "frame"), counted(facts.meshes, "mesh", "meshes"),
                  dimensions_text(facts.dim), facts.directed ? ", directed edges" : "");
  text += facts.dt > 0 ? fmt::format("dt        {} s\n", facts.dt) : std::string("dt        unknown\n");
  text += fmt::format("nodes     {} to {} a mesh, {:.0f} on average; directed edges {} to {}, {:.0f}\n",
                      facts.nodes_min, facts.nodes_max, facts.nodes_mean, facts.edges_min, facts.edges_max,
                      facts.edges_mean);
  if (!facts.extents.empty())
    text += "extent    " + extent_text(facts.extents) + " (sizes of meshes along the axes)\n";
  text += fmt::format("types     {} (nodes of each type times frames, in split {})\n",
                      types_text(facts.node_types), facts.statistics_split);
  text += "splits    " + splits_text(facts.splits) + "\n";
  return text + "fields    " + fields_text(facts.fields) + "\n";
}

Json facts_json(const DataFacts& facts) {
  Json splits = Json::object(), extent = Json::array();
  for (const SplitInfo& split : facts.splits) splits[split.name] = split.count;
  for (const MeshExtent& axis : facts.extents) extent.push_back({{"min", axis.least}, {"max", axis.most}});
  return {{"dim", facts.dim},
          {"directed", facts.directed},
          {"dt", facts.dt},
          {"trajectories", facts.trajectories},
          {"frames", facts.frames},
          {"meshes", facts.meshes},
          {"nodes", {{"min", facts.nodes_min}, {"mean", facts.nodes_mean}, {"max", facts.nodes_max}}},
          {"edges", {{"min", facts.edges_min}, {"mean", facts.edges_mean}, {"max", facts.edges_max}}},
          {"extent", std::move(extent)},
          {"node_types", facts.node_types},
          {"splits", std::move(splits)},
          {"statistics_split", facts.statistics_split},
          {"fields", fields_json(facts.fields)}};
}

std::string value_lines(const FieldInfo& field, const std::vector<ValueRange>& components) {
  constexpr size_t kMostLines = 16;
  const std::string unit = field.unit.empty() ? "" : " " + field.unit;
  if (components.size() > kMostLines && field.offset.empty()) {
    const double least = std::ranges::min(components, {}, &ValueRange::least).least;
    const double most = std::ranges::max(components, {}, &ValueRange::most).most;
    return fmt::format("values    {}: {} to {}{} in {} components\n", field.name,
                       number_text(field, 0, least), number_text(field, 0, most), unit, components.size());
  }
  std::string text;
  for (size_t c = 0; c < components.size(); ++c) {
    const ValueRange& values = components[c];
    text += fmt::format("values    {}: {} to {}{}",
                        field.components == 1 ? field.name : fmt::format("{}[{}]", field.name, c),
                        number_text(field, c, values.least), number_text(field, c, values.most), unit);
    if (values.mean) text += ", mean " + number_text(field, c, *values.mean);
    if (values.deviation) text += fmt::format(", deviation {:.4g}", *values.deviation);
    if (values.change) text += fmt::format(", change per frame {:.3g}", *values.change);
    text += "\n";
  }
  return text;
}

std::vector<std::string> read_lines(const std::vector<ReadTrajectory>& read) {
  constexpr size_t kMost = 12;
  std::vector<std::string> lines;
  for (const ReadTrajectory& t : read) {
    if (lines.size() == kMost) {
      lines.push_back(counted(std::ssize(read) - std::ssize(lines), "more trajectory", "more trajectories"));
      break;
    }
    std::string line = fmt::format("{}: {}", t.name, counted(t.frames, "frame"));
    if (t.times.size() > 1) {
      line += fmt::format(", times {:.6g} to {:.6g}", t.times.front(), t.times.back());
    } else if (!t.times.empty()) {
      line += fmt::format(", time {:.6g}", t.times.front());
    } else if (t.frames > 1) {
      line += t.dt > 0 ? fmt::format(", dt {:.6g}", t.dt) : ", times unknown";
    }
    if (t.files.size() > 1)
      line += fmt::format(", {} files, {} to {}", t.files.size(), t.files.front(), t.files.back());
    lines.push_back(line + ", in " + t.split);
  }
  return lines;
}

std::string manifest_of(const std::string& path) {
  std::string text = Dataset::open(path).manifest();
  if (!text.empty()) return text + "\n";
  throw data_error(path, "a packed file that says what it was read from", "none",
                   "convert the data again: files before version 4 do not say it");
}

std::string describe_file(const std::string& path, bool json, bool all) {
  if (is_packed_file(path)) return describe_dataset(path, json);
  const std::string start = read_file(path, kPackedMagic.size());
  // The header of safetensors is its length, below 100 MB, then JSON.
  if (start.size() == 8 && start.substr(4) != std::string(4, '\0')) {
    throw data_error(path, "a .mgd or a .safetensors file",
                     fmt::format("a file that begins with the bytes {:02x}",
                                 fmt::join(std::vector<uint8_t>(start.begin(), start.end()), " ")),
                     "check the path");
  }
  if (!json && !all && is_checkpoint(SafetensorsFile{std::filesystem::path(path)}.view()))
    return describe_checkpoint(path);
  return describe_weights(path, json);
}

}  // namespace meshgrad::cli
