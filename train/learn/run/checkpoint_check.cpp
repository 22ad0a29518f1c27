// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/json_fault.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace meshgrad {
namespace {

constexpr const char* kUseAnother = "use another checkpoint of the run (--checkpoint FILE)";
constexpr const char* kChecksumKey = "checksum";
constexpr const char* kFormatKey = "format";
constexpr const char* kFormat = "meshgrad checkpoint 3";
constexpr const char* kWeightsFormat = "meshgrad weights 1";

std::string offset_text(const std::map<std::string, std::vector<double>>& offsets) {
  std::string text;
  for (const auto& [field, offset] : offsets)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", field, fmt::join(offset, " "));
  return text.empty() ? "no offsets" : "offsets " + text;
}

/// Numbers as text of metadata, doubles so that they read back to the same bits.
struct WrittenNumbers {
  std::map<std::string, std::string> metadata;

  bool has(const char*, bool written) const { return written; }
  void whole(const char* key, int64_t value, int64_t, int64_t) { metadata[key] = fmt::format("{}", value); }
  template <class Valid>
  void real(const char* key, double value, const Valid&, std::string_view) {
    metadata[key] = exact_text(value);
  }
};

/// What formats 1 and 2 called some of the numbers.
const std::map<std::string_view, std::string_view> kEarlierNames{
    {"window_batches", "micro"},
    {"normalizer_samples", "learned"},
    {"skipped_steps", "skipped"},
    {"consecutive_skips", "skipped_in_a_row"},
    {"non_finite_losses", "bad_losses"},
    {"last_skipped_step", "bad_window"},
    {"last_skipped_scale", "bad_scale"},
    {"steps_at_loss_scale", "clean_steps"},
    {"first_batch_gradient_square", "first_square"}};

/// Numbers of metadata; those outside their range are refused.
struct ReadNumbers {
  const SafetensorsView& view;
  bool earlier = view.metadata_at(kFormatKey) != kFormat;

  std::string name(std::string_view key) const {
    const auto found = earlier ? kEarlierNames.find(key) : kEarlierNames.end();
    return std::string(found == kEarlierNames.end() ? key : found->second);
  }
  bool has(std::string_view key, bool) const { return view.metadata.contains(name(key)); }
  void whole(std::string_view key, int64_t& value, int64_t least, int64_t most) const {
    const std::string& text = view.metadata_at(name(key));
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool valid = error == std::errc() && end == text.data() + text.size();
    if (!valid || value < least || value > most)
      refuse(key, fmt::format("a whole number from {} to {}", least, most));
  }
  template <class Valid>
  void real(std::string_view key, double& value, const Valid& valid, std::string_view needed) const {
    const std::optional<double> number = parse_number(view.metadata_at(name(key)));
    if (!number) refuse(key, "a number");
    if (!valid(*number)) refuse(key, needed);
    value = *number;
  }
  [[noreturn]] void refuse(std::string_view key, std::string_view needed) const {
    const std::string stored = name(key);
    throw data_error(view.file + ": " + stored, needed, "\"" + view.metadata_at(stored) + "\"", kUseAnother);
  }
};

/// Writes or reads all numbers of a state, each with what a run could have written.
template <class Numbers>
void each_number(Numbers& numbers, RunState& s, const Config& config) {
  // Positions in the sequence of samples are products of these, and must fit 64 bits.
  const int64_t window = std::max<int64_t>(1, config.train.batch) * config.train.accumulate;
  const int64_t most = (int64_t{1} << 62) / std::max<int64_t>(1, window) - 1;
  const auto any = [](double) { return true; };
  const auto finite = [](double value) { return std::isfinite(value); };
  const auto scale = [](double value) { return value > 0.0 && std::isfinite(value); };
  StepState& o = s.optimizer;
  numbers.whole("step", s.step, 0, most);
  numbers.whole("window_batches", s.micro, 0, config.train.accumulate - 1);
  numbers.whole("normalizer_samples", s.learned, 0, (s.step + 1) * window);
  numbers.whole("best_step", s.best_step, -1, s.step);
  numbers.whole("optimizer_steps", o.steps, 0, s.step);
  numbers.whole("skipped_steps", o.skipped, 0, s.step - o.steps);
  numbers.whole("consecutive_skips", o.consecutive_skips, 0, o.skipped);
  numbers.whole("non_finite_losses", o.non_finite_losses, 0, (s.step + 1) * config.train.accumulate);
  numbers.real("window_loss", o.window_loss, any, "");
  // A loss that is not finite belongs to the open window, or to a skipped step, of which the last is
  // recomputed.
  const bool skipped = o.skipped > 0 || (o.non_finite_losses > 0 && std::isfinite(o.window_loss));
  numbers.whole("last_skipped_step", o.last_skipped_step, skipped ? 0 : -1, s.step);
  numbers.whole("loss_count", o.loss_count, 0, s.step);
  numbers.real("last_valid_loss", s.last_valid_loss, any, "");
  const bool validated = s.best_step >= 0;
  numbers.real(
      "best_valid_loss", s.best_valid_loss,
      [&](double loss) { return validated ? std::isfinite(loss) : loss == HUGE_VAL; },
      validated ? "a finite loss" : "inf before the first validation");
  if (numbers.has("best_valid_error", true)) {
    numbers.real("last_valid_error", s.last_valid_error, any, "");
    numbers.real(
        "best_valid_error", s.best_valid_error, [](double error) { return error >= 0.0; },
        "a number of at least 0");
  }
  numbers.real("loss_sum", o.loss_sum, finite, "a finite sum");
  numbers.real("last_loss", o.last_loss, any, "");
  if (numbers.has("penalty_sum", config.loss.change_penalty > 0)) {
    numbers.real("window_penalty", o.window_penalty, any, "");
    numbers.real("penalty_sum", o.penalty_sum, finite, "a finite sum");
  }
  if (numbers.has("validation_interval", s.validation_interval > 0)) {
    numbers.whole("validation_interval", s.validation_interval, 1, 1'000'000);
    numbers.whole("validated_rollout_steps", s.rollout_steps, 0, most);
  }
  if (numbers.has("best_valid_rollout", config.train.validate_rollouts > 0)) {
    numbers.real("last_valid_rollout", s.last_valid_rollout, any, "");
    numbers.real(
        "best_valid_rollout", s.best_valid_rollout, [](double error) { return error >= 0.0; },
        "a number of at least 0");
  }
  if (numbers.has("best_valid_metric", !best_metric(config).empty())) {
    numbers.real("last_valid_metric", s.last_valid_metric, any, "");
    numbers.real("best_valid_metric", s.best_valid_metric, any, "");
  }
  if (!numbers.has("loss_scale", config.precision == DType::f16)) return;
  numbers.real("loss_scale", o.loss_scale, scale, "a finite number above 0");
  numbers.real("last_skipped_scale", o.last_skipped_scale, scale, "a finite number above 0");
  numbers.whole("steps_at_loss_scale", o.clean_steps, 0, o.steps);
}

}  // namespace

std::string checkpoint_checksum(std::span<const SafetensorsTensor> tensors,
                                const std::map<std::string, std::string>& metadata) {
  XXH64_hash_t hash = 0;
  const auto add = [&](const void* data, size_t bytes) { hash = XXH3_64bits_withSeed(data, bytes, hash); };
  const auto add_text = [&](std::string_view text) { add(text.data(), text.size()); };
  for (const auto& [key, value] : metadata) {
    if (key == kChecksumKey) continue;
    add_text(key);
    add_text(value);
  }
  std::map<std::string_view, const SafetensorsTensor*> by_name;
  for (const SafetensorsTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor);
  for (const auto& [name, tensor] : by_name) {
    add_text(name);
    add_text(dtype_name(tensor->dtype));
    add(tensor->shape.data(), tensor->shape.size() * sizeof(int64_t));
    add(tensor->bytes.data(), tensor->bytes.size());
  }
  return fmt::format("{:016x}", hash);
}

SafetensorsFile open_weights(const std::filesystem::path& path) {
  SafetensorsFile file(path);
  const SafetensorsView& view = file.view();
  const auto format = view.metadata.find(kFormatKey);
  const std::string name = format == view.metadata.end() ? "" : format->second;
  if (name != "meshgrad checkpoint 1" && name != "meshgrad checkpoint 2" && name != kFormat &&
      name != kWeightsFormat) {
    throw data_error(view.file, "a checkpoint written by meshgrad train",
                     name.empty() ? "a safetensors file without \"format\"" : name,
                     "name a file from a run's checkpoints folder");
  }
  if (name == "meshgrad checkpoint 1" && !view.metadata.contains(kChecksumKey)) return file;
  if (view.metadata_at(kChecksumKey) != checkpoint_checksum(view.tensors, view.metadata)) {
    throw data_error(view.file, "the checksum " + view.metadata_at(kChecksumKey),
                     checkpoint_checksum(view.tensors, view.metadata) + ": the file is damaged", kUseAnother);
  }
  return file;
}

SafetensorsFile open_checkpoint(const std::filesystem::path& path) {
  SafetensorsFile file = open_weights(path);
  if (file.view().metadata_at(kFormatKey) != kWeightsFormat) return file;
  throw data_error(file.view().file, "a checkpoint written by meshgrad train",
                   "weights of a program's own model", "load them into that model by load_weights");
}

std::map<std::string, std::string> metadata_of_weights() { return {{kFormatKey, kWeightsFormat}}; }

std::map<std::string, std::string> metadata_of_state(const RunState& state, const Config& config) {
  WrittenNumbers written;
  RunState s = state;
  written.metadata[kFormatKey] = kFormat;
  each_number(written, s, config);
  const auto any = [](double) { return true; };
  if (s.validation_due) written.metadata["validation_due"] = "1";
  if (s.first_square) written.real("first_batch_gradient_square", *s.first_square, any, "");
  return written.metadata;
}

RunState read_run_state(const SafetensorsView& view, const Config& config) {
  RunState s;
  ReadNumbers read{view};
  each_number(read, s, config);
  s.validation_due = read.has("validation_due", true);
  if (read.has("first_batch_gradient_square", true))
    read.real(
        "first_batch_gradient_square", s.first_square.emplace(), [](double) { return true; }, "");
  return s;
}

uint64_t read_data_fingerprint(const SafetensorsView& view) {
  const std::string& text = view.metadata_at("data_fingerprint");
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size())
    throw data_error(view.file + ": data_fingerprint", "16 hexadecimal digits", "\"" + text + "\"",
                     kUseAnother);
  return value;
}

namespace {

/// Of the fields in `data`; nothing for data without statistics, such as meshes in memory.
std::optional<TrainingRanges> ranges_of(const Dataset& with_made_edges, const TrainingData& data) {
  const Dataset dataset = with_made_edges.with_edges({});
  const std::string& split = dataset.statistics_split();
  if (dataset.node_type_counts().empty() || !dataset.has_split(split)) return std::nullopt;
  TrainingRanges ranges;
  for (const FieldInfo& field : data.fields) {
    const FieldStatistics statistics = dataset.field_stats(field.name);
    if (statistics.count == 0 || statistics.min.empty()) continue;
    for (size_t c = 0; c < statistics.min.size(); ++c) {
      const double offset = dataset.field(field.name).offset_of(c);
      ranges.fields[field.name].push_back({statistics.min[c] + offset, statistics.max[c] + offset});
    }
  }
  for (int64_t i = 0; i < dataset.size(split); ++i) {
    const auto nodes = static_cast<double>(dataset.mesh_sizes(split, i).nodes);
    ranges.nodes = {i == 0 ? nodes : std::min(ranges.nodes.least, nodes), std::max(ranges.nodes.most, nodes)};
  }
  if (const FieldStatistics edges = dataset.edge_stats(); !edges.mean.empty())
    ranges.edge_length = edges.mean.back();
  return ranges;
}

nlohmann::json to_json(const TrainingRanges& ranges) {
  nlohmann::json json{{"fields", nlohmann::json::object()},
                      {"nodes", {ranges.nodes.least, ranges.nodes.most}},
                      {"edge_length", ranges.edge_length}};
  for (const auto& [name, components] : ranges.fields)
    for (const SeenRange& range : components) json["fields"][name].push_back({range.least, range.most});
  return json;
}

TrainingRanges ranges_from(const nlohmann::json& json) {
  const auto range = [](const nlohmann::json& pair) {
    return SeenRange{pair.at(0).get<double>(), pair.at(1).get<double>()};
  };
  TrainingRanges ranges{{}, range(json.at("nodes")), json.at("edge_length").get<double>()};
  for (const auto& [name, components] : json.at("fields").items())
    for (const nlohmann::json& pair : components) ranges.fields[name].push_back(range(pair));
  return ranges;
}

}  // namespace

TrainingData training_data(const Dataset& dataset, const DataConfig& config) {
  TrainingData data{dataset.dt(), {}, dataset.dim(), {}};
  const std::vector<std::string> positions(config.world_position.empty() ? 0 : 1, config.world_position);
  for (const std::vector<std::string>* names :
       {&config.inputs, &config.targets, &positions, &config.edge_inputs, &config.embed}) {
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
  data.ranges = ranges_of(dataset, data);
  data.directed = dataset.directed();
  return data;
}

std::string to_json(const TrainingData& data) {
  nlohmann::json json{{"dt", data.dt}, {"offsets", data.offsets}};
  if (!data.fields.empty()) {
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
  if (data.directed) json["directed"] = *data.directed;
  if (data.ranges) json["ranges"] = to_json(*data.ranges);
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
      if (on == kFieldOnNames.end()) throw data_error(where, "a place of fields", field.dump(), kUseAnother);
      data.fields.push_back({.name = field.at("name").get<std::string>(),
                             .components = field.at("components").get<int>(),
                             .dynamic = field.at("dynamic").get<bool>(),
                             .unit = field.at("unit").get<std::string>(),
                             .on = static_cast<FieldOn>(on - kFieldOnNames.begin())});
    }
    if (json.contains("directed")) data.directed = json.at("directed").get<bool>();
    if (json.contains("ranges")) data.ranges = ranges_from(json.at("ranges"));
    const bool fits = data.dim >= 0 && data.dim <= 3;
    const bool wide = std::ranges::all_of(
        data.fields, [](const FieldInfo& field) { return field.components > 0 && field.components < 65536; });
    if (!fits || !wide)
      throw data_error(where, "0 to 3 dimensions and fields of components",
                       fmt::format("{} dimensions", data.dim), kUseAnother);
    return data;
  } catch (const nlohmann::json::exception& error) {
    throw data_error(where, "a description of the training data", json_fault(text, error), kUseAnother);
  }
}

std::string_view name_of_edges(bool directed) {
  return directed ? "directed edges" : "edges without directions";
}

bool same_dt(double trained, double dt) {
  constexpr double kRounding = 1e-6;  // of a dt in f32
  return trained <= 0 || dt <= 0 || std::abs(trained - dt) <= kRounding * trained;
}

std::optional<OtherData> find_other_data(const std::string& checkpoint, const TrainingData& trained,
                                         const Task& task, const Config& config) {
  const Dataset& dataset = task.dataset();
  if (task.describe().over_time && !same_dt(trained.dt, dataset.dt())) {
    return OtherData{fmt::format("dt = {} s, which {} learned changes over", trained.dt, checkpoint),
                     fmt::format("dt = {} s", dataset.dt()), "use data of that dt, or train on these"};
  }
  if (trained.directed && *trained.directed != dataset.directed()) {
    return OtherData{
        fmt::format("{}, which {} was trained on", name_of_edges(*trained.directed), checkpoint),
        std::string(name_of_edges(dataset.directed())),
        *trained.directed ? "convert the data with --directed" : "convert the data with --undirected"};
  }
  const TrainingData here = training_data(dataset, config.data);
  if (here.offsets == trained.offsets) return std::nullopt;
  return OtherData{fmt::format("the {} that {} was trained with", offset_text(trained.offsets), checkpoint),
                   offset_text(here.offsets),
                   "convert training and test data together, so that they share them"};
}

}  // namespace meshgrad
