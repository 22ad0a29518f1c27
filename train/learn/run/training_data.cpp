// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/json_fault.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/training_data.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace meshgrad {
namespace {

constexpr std::string_view kOther = "use another checkpoint";

std::string offset_text(const std::map<std::string, std::vector<double>>& offsets) {
  std::string text;
  for (const auto& [field, offset] : offsets)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", field, fmt::join(offset, " "));
  return text.empty() ? "no offsets" : "offsets " + text;
}

}  // namespace

TrainingData training_data(const Dataset& dataset, const DataConfig& config) {
  TrainingData data{dataset.dt(), {}, dataset.dim(), {}};
  const std::vector<std::string> positions(config.world_position.empty() ? 0 : 1, config.world_position);
  for (const std::vector<std::string>* names : {&config.inputs, &config.targets, &positions}) {
    for (const std::string& name : *names) {
      const FieldInfo& field = dataset.field(name);
      if (!field.offset.empty()) data.offsets[name] = field.offset;
      const bool known =
          std::ranges::any_of(data.fields, [&](const FieldInfo& other) { return other.name == name; });
      if (known) continue;
      data.fields.push_back(field);
      data.fields.back().offset.clear();
    }
  }
  return data;
}

std::string to_json(const TrainingData& data) {
  nlohmann::json json{{"dt", data.dt}, {"offsets", data.offsets}};
  if (data.dim > 0) {
    json["dim"] = data.dim;
    json["fields"] = nlohmann::json::array();
    for (const FieldInfo& field : data.fields) {
      json["fields"].push_back({{"name", field.name},
                                {"components", field.components},
                                {"dynamic", field.dynamic},
                                {"unit", field.unit},
                                {"on", name_of(field.on)}});
    }
  }
  return json.dump();
}

TrainingData training_data_from_json(std::string_view text, std::string_view where) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    TrainingData data{json.at("dt").get<double>(),
                      json.at("offsets").get<std::map<std::string, std::vector<double>>>(),
                      json.value("dim", 0),
                      {}};
    for (const nlohmann::json& field : json.value("fields", nlohmann::json::array())) {
      const auto on = std::ranges::find(kFieldOnNames, field.at("on").get<std::string>());
      if (on == kFieldOnNames.end()) throw data_error(where, "a place of fields", field.dump(), kOther);
      data.fields.push_back({.name = field.at("name").get<std::string>(),
                             .components = field.at("components").get<int>(),
                             .dynamic = field.at("dynamic").get<bool>(),
                             .unit = field.at("unit").get<std::string>(),
                             .on = static_cast<FieldOn>(on - kFieldOnNames.begin())});
    }
    const bool fits = data.dim >= 0 && data.dim <= 3;
    const bool wide = std::ranges::all_of(
        data.fields, [](const FieldInfo& field) { return field.components > 0 && field.components < 65536; });
    if (!fits || !wide)
      throw data_error(where, "0 to 3 dimensions and fields of components",
                       fmt::format("{} dimensions", data.dim), kOther);
    return data;
  } catch (const nlohmann::json::exception& error) {
    throw data_error(where, "a description of the training data", json_fault(text, error), kOther);
  }
}

std::optional<OtherData> find_other_data(const std::string& checkpoint, const TrainingData& trained,
                                         const Dataset& dataset, const Config& config) {
  constexpr double kRounding = 1e-6;  // of a dt in f32
  if (over_time(config.task.name) && trained.dt > 0 && dataset.dt() > 0 &&
      std::abs(trained.dt - dataset.dt()) > kRounding * trained.dt) {
    return OtherData{fmt::format("dt = {} s, which {} learned changes over", trained.dt, checkpoint),
                     fmt::format("dt = {} s", dataset.dt()), "use data of that dt, or train on these"};
  }
  const TrainingData here = training_data(dataset, config.data);
  if (here.offsets == trained.offsets) return std::nullopt;
  return OtherData{fmt::format("the {} that {} was trained with", offset_text(trained.offsets), checkpoint),
                   offset_text(here.offsets),
                   "convert training and test data together, so that they share them"};
}

}  // namespace meshgrad
