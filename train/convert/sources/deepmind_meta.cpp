// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/deepmind_meta.h>
#include <meshgrad/train/convert/sources/trajectory_source.h>
#include <meshgrad/train/data/json_fault.h>

namespace meshgrad {
namespace {

using Json = nlohmann::json;

const Json& member(const Json& object, const char* key, std::string_view where) {
  if (object.is_object()) {
    const auto found = object.find(key);
    if (found != object.end()) return *found;
  }
  throw data_error(where, fmt::format("the key \"{}\"", key), "none",
                   "add it, or take the meta.json that came with the data");
}

std::string text_member(const Json& object, const char* key, std::string_view where) {
  const Json& value = member(object, key, where);
  if (value.is_string()) return value.get<std::string>();
  throw data_error(where, fmt::format("a string for \"{}\"", key), value.type_name(), "put it in quotes");
}

std::optional<NumberType> number_type(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, NumberType>, 4> kTypes{{{"float32", NumberType::float32},
                                                                           {"float64", NumberType::float64},
                                                                           {"int32", NumberType::int32},
                                                                           {"int64", NumberType::int64}}};
  for (const auto& [known, type] : kTypes) {
    if (known == name) return type;
  }
  return std::nullopt;
}

NumberType read_type(const Json& feature, const std::string& where, const WarningCallback& warn) {
  const std::string text = text_member(feature, "dtype", where);
  if (const auto type = number_type(text)) return *type;
  constexpr std::string_view kPrefix = "<dtype: '";
  constexpr std::string_view kSuffix = "'>";
  if (text.starts_with(kPrefix) && text.ends_with(kSuffix) && text.size() > kPrefix.size() + kSuffix.size()) {
    const std::string inner = text.substr(kPrefix.size(), text.size() - kPrefix.size() - kSuffix.size());
    if (const auto type = number_type(inner)) {
      if (warn)
        warn(fmt::format("[{}] dtype \"{}\" was read as \"{}\" (a known fault of meta.json)", where, text,
                         inner));
      return *type;
    }
  }
  throw data_error(where, "a dtype of float32, float64, int32 or int64", fmt::format("\"{}\"", text),
                   "write the data as one of these");
}

FeatureKind read_kind(const Json& feature, const std::string& where) {
  const std::string text = text_member(feature, "type", where);
  if (text == "static") return FeatureKind::fixed;
  if (text == "dynamic") return FeatureKind::dynamic;
  if (text == "dynamic_varlen") return FeatureKind::dynamic_varlen;
  throw data_error(where, "a type of static, dynamic or dynamic_varlen", fmt::format("\"{}\"", text),
                   "correct the type in meta.json");
}

void read_shape(const Json& json, DeepmindFeature& feature, const std::string& where) {
  const Json& shape = member(json, "shape", where);
  std::vector<int64_t> dims;
  if (shape.is_array() && shape.size() >= 2 && shape.size() <= 8) {
    for (const Json& dim : shape) dims.push_back(dim.is_number_integer() ? dim.get<int64_t>() : 0);
  }
  // [nodes, components..] for varlen (its rows of all frames follow each other), else [frames, nodes,
  // components..].
  const size_t first_component = dims.size() == 2 ? 1 : 2;
  bool good = !dims.empty();
  for (size_t i = 0; good && i < dims.size(); ++i) {
    const bool open = dims[i] == -1 && i < first_component;
    good = open || (dims[i] >= 1 && dims[i] <= std::numeric_limits<int32_t>::max());
    if (good && i >= first_component) feature.components *= dims[i];
    good = good && feature.components <= 65535;
  }
  if (!good) {
    throw data_error(where, "a shape such as [1, -1, 3] (frames, nodes, components)", shape.dump(),
                     "correct the shape in meta.json; only frames and nodes can be -1");
  }
  if (dims.size() > 2) feature.frames = dims[0];
  feature.nodes = dims[first_component - 1];
}

DeepmindMeta meta_of(const Json& json, std::string_view where, const WarningCallback& warn) {
  DeepmindMeta meta;
  const Json& features = member(json, "features", where);
  const Json& names = member(json, "field_names", where);
  if (!names.is_array())
    throw data_error(where, "a list for \"field_names\"", names.type_name(), "make it a list");
  for (const Json& name : names) {
    if (!name.is_string())
      throw data_error(where, "names in \"field_names\"", name.dump(), "make it a list of names");
    DeepmindFeature feature;
    feature.name = name.get<std::string>();
    const Json& description = member(features, feature.name.c_str(), fmt::format("{}: features", where));
    const std::string here = fmt::format("{}: features.{}", where, feature.name);
    feature.kind = read_kind(description, here);
    feature.type = read_type(description, here, warn);
    read_shape(description, feature, here);
    if (description.contains("unit") && description["unit"].is_string()) {
      feature.unit = description["unit"].get<std::string>();
    }
    meta.features.push_back(std::move(feature));
  }
  if (json.contains("trajectory_length") && json["trajectory_length"].is_number_integer()) {
    meta.trajectory_length = json["trajectory_length"].get<int64_t>();
  }
  if (json.contains("dt") && json["dt"].is_number()) meta.dt = json["dt"].get<double>();
  if (meta.dt != 0) checked_dt(meta.dt, fmt::format("{}: dt", where));  // DeepMind's quasi-static data have 0
  return meta;
}

}  // namespace

size_t number_bytes(NumberType type) {
  return type == NumberType::float32 || type == NumberType::int32 ? 4 : 8;
}

DeepmindMeta parse_deepmind_meta(std::string_view json, std::string_view where, const WarningCallback& warn) {
  Json parsed;
  try {
    parsed = Json::parse(json);
  } catch (const Json::exception& error) {
    throw data_error(where, "JSON", json_fault(json, error),
                     "correct the file, or take the one that came with the data");
  }
  return meta_of(parsed, where, warn);
}

}  // namespace meshgrad
