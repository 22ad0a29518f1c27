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

namespace meshgrad::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string printed(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string unit_text(const FieldInfo& field) { return field.unit.empty() ? "" : " " + field.unit; }

/// A line for each component, or one for many: minimum, maximum, mean and deviation over the split of the
/// statistics.
std::string values_text(const Dataset& data) {
  constexpr size_t kMostLines = 16;
  std::string text;
  for (const FieldInfo& field : data.fields()) {
    const FieldStatistics stats = data.field_stats(field.name);
    if (stats.count > 0 && stats.min.size() > kMostLines && field.offset.empty()) {
      text += fmt::format(
          "{:10}{}: {:.6g} to {:.6g} in {} components{}{}\n", text.empty() ? "values" : "", field.name,
          std::ranges::min(stats.min), std::ranges::max(stats.max), field.components,
          stats.std.empty() ? ""
                            : fmt::format(", deviations {:.6g} to {:.6g}", std::ranges::min(stats.std),
                                          std::ranges::max(stats.std)),
          unit_text(field));
      continue;
    }
    for (size_t c = 0; c < stats.min.size() && stats.count > 0; ++c) {
      const std::string name = field.components == 1 ? field.name : fmt::format("{}[{}]", field.name, c);
      // Numbers far from zero differ in their last digits.
      const double offset = field.offset_of(c);
      const int digits = offset == 0 ? 6 : 15;
      const std::string mean = stats.mean.empty() ? ""
                                                  : fmt::format(", mean {:.{}g}, deviation {:.6g}",
                                                                stats.mean[c] + offset, digits, stats.std[c]);
      text +=
          fmt::format("{:10}{}: {:.{}g} to {:.{}g}{}{}\n", text.empty() ? "values" : "", name,
                      stats.min[c] + offset, digits, stats.max[c] + offset, digits, mean, unit_text(field));
    }
  }
  return text;
}

/// "0: 1876, 6: 233", without types that do not occur.
std::string node_types_text(const std::vector<double>& counts) {
  std::string text;
  for (size_t type = 0; type < counts.size(); ++type) {
    if (counts[type] > 0) text += fmt::format("{}{}: {:.0f}", text.empty() ? "" : ", ", type, counts[type]);
  }
  return text;
}

/// fields_json with minimum, maximum, mean and deviation of each component; a packed file of version 1 has no
/// ranges.
Json fields_with_values(const Dataset& data) {
  Json fields = fields_json(data.fields());
  for (size_t f = 0; f < fields.size(); ++f) {
    const FieldInfo& info = data.fields()[f];
    Json& field = fields[f];
    FieldStatistics stats = data.field_stats(info.name);
    for (std::vector<double>* numbers : {&stats.min, &stats.max, &stats.mean}) {
      for (size_t c = 0; c < numbers->size(); ++c) (*numbers)[c] += info.offset_of(c);
    }
    field["minimum"] = stats.min;
    field["maximum"] = stats.max;
    field["mean"] = stats.mean;
    field["deviation"] = stats.std;
  }
  return fields;
}

std::string describe_dataset(const std::string& path, bool json) {
  const Dataset data = Dataset::open(path);
  if (json) {
    return printed({{"kind", "packed data"},
                    {"path", path},
                    {"bytes", data.bytes()},
                    {"fingerprint", fmt::format("{:016x}", data.fingerprint())},
                    {"source", data.source()},
                    {"dim", data.dim()},
                    {"directed", data.directed()},
                    {"dt", data.dt()},
                    {"trajectories", data.trajectories()},
                    {"meshes", data.meshes()},
                    {"fields", fields_with_values(data)},
                    {"splits", splits_json(data.splits())},
                    {"statistics_split", data.statistics_split()},
                    {"node_types", data.node_type_counts()},
                    {"warnings", data.warnings()}});
  }
  std::string text =
      fmt::format("packed    {} ({}), from {}\n", path, bytes_text(data.bytes()), data.source());
  text += fmt::format("data      {}, {} {}{}\n", counted(data.trajectories(), "trajectory", "trajectories"),
                      counted(data.meshes(), "mesh", "meshes"), dimensions_text(data.dim()),
                      data.directed() ? ", directed edges" : "");
  text += data.dt() > 0 ? fmt::format("dt        {} s\n", data.dt()) : std::string("dt        unknown\n");
  text += "fields    " + fields_text(data.fields()) + "\n";
  text += "splits    " + splits_text(data.splits()) + "\n";
  text += values_text(data);
  text +=
      fmt::format("types     {} (nodes of each type times frames; types and values are those of split {})\n",
                  node_types_text(data.node_type_counts()), data.statistics_split());
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

std::string extent_text(const std::vector<MeshExtent>& axes) {
  std::string text;
  for (const MeshExtent& axis : axes) {
    const std::string least = fmt::format("{:.4g}", axis.least), most = fmt::format("{:.4g}", axis.most);
    text += fmt::format("{}{}", text.empty() ? "" : " by ", least == most ? least : least + " to " + most);
  }
  return text + " (sizes of meshes along the axes)";
}

nlohmann::ordered_json extent_json(const std::vector<MeshExtent>& axes) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const MeshExtent& axis : axes) list.push_back({{"min", axis.least}, {"max", axis.most}});
  return list;
}

std::string splits_text(const std::vector<SplitInfo>& splits) {
  std::string text;
  for (const SplitInfo& split : splits) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", split.name, split.count);
  }
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

Json splits_json(const std::vector<SplitInfo>& splits) {
  Json object = Json::object();
  for (const SplitInfo& split : splits) object[split.name] = split.count;
  return object;
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
