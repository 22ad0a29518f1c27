// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/kernels/mlp.h>
#include <meshgrad/train/data/json_fault.h>
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/embed/online_config.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/tools/extras/exported_weights.h>
#include <meshgrad/train/tools/extras/foreign_weights.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using Description = nlohmann::ordered_json;

constexpr const char* kKey = "meshgrad";

/// The task of a checkpoint, over data without meshes.
Task task_of(const Config& config, const std::optional<TrainingData>& data, const std::string& file) {
  if (!find_key("data.hops")->applies_to(config.task.name)) {
    throw config_error("task.name", "a task on meshes, whose columns have names",
                       toml_quoted(name_of(config.task.name)), "read the checkpoint itself");
  }
  if (!data || data->dim == 0) {
    throw data_error(file, "a description of the fields", data ? "dim = 0" : "no metadata entry \"data\"",
                     "train one more step: raise train.steps by 1 and run meshgrad train --resume");
  }
  return make_task(config, empty_dataset({.dim = data->dim, .dt = data->dt, .fields = data->fields}, config));
}

Description column_list(std::span<const ColumnGroup> groups) {
  Description list = Description::array();
  for (const ColumnGroup& group : groups) list.push_back({{"name", group.name}, {"width", group.width}});
  return list;
}

/// What the MLPs of a block concatenate, in order.
struct Concatenation {
  std::vector<std::string> edges, nodes;
};
Concatenation concatenation_of(ConcatOrder order, const std::vector<std::string>& edge_sets) {
  std::vector<std::string> sums;
  for (const std::string& set : edge_sets) sums.push_back(edge_sets.size() == 1 ? "sum" : "sum of " + set);
  if (order == ConcatOrder::edge_sender_receiver) {
    sums.emplace_back("node");
    return {{"edge", "sender", "receiver"}, sums};
  }
  sums.insert(sums.begin(), "node");
  return {{"sender", "receiver", "edge"}, sums};
}

/// What was taken from the fields before they were stored as f32 and normalised; those with none are left
/// out.
Description offsets_of(const Task& task) {
  Description offsets = Description::object();
  for (const FieldInfo& field : task.dataset().fields())
    if (!field.offset.empty()) offsets[field.name] = field.offset;
  return offsets;
}

/// The description of an export is a MeshGraphNet's, without tables of identifiers.
void need_mesh_graph_net(const Config& config, const std::string& checkpoint) {
  const ModelConfig& model = config.model;
  if (!config.data.embed.empty())
    throw config_error(checkpoint, "a model that can be exported: without data.embed",
                       listed(config.data.embed),
                       "read the parameters in the checkpoint, which is a safetensors file");
  if (model.slices > 0)
    throw config_error(checkpoint, "a model that can be exported: with model.slices = 0",
                       std::to_string(model.slices),
                       "read the parameters in the checkpoint, which is a safetensors file");
  if (model.name == ModelName::mesh_graph_net) return;
  throw config_error(checkpoint, "a model that can be exported: mesh_graph_net",
                     std::string(name_of(model.name)),
                     "read the parameters in the checkpoint, which is a safetensors file");
}

/// What a reader of the tensors must know beside their names and shapes.
Description description_of(const Config& config, const Task& task) {
  const MeshGraphNetOptions options = mesh_graph_net_options(config.model);
  const bool after = options.aggregate == AggregateOrder::after_residual;
  const ModelSizes& sizes = task.sizes();
  const TaskDescription describes = task.describe();
  Description edge_columns = Description::object();
  std::span<const ColumnGroup> rest = describes.edge_inputs;
  for (size_t set = 0; set < sizes.edge_inputs.size(); ++set) {
    size_t groups = 0;
    for (int64_t width = 0; width < sizes.edge_inputs[set]; ++groups) width += rest[groups].width;
    edge_columns[sizes.edge_set_names[set]] = column_list(rest.first(groups));
    rest = rest.subspan(groups);
  }
  const Concatenation concatenation = concatenation_of(options.concat_order, sizes.edge_set_names);
  return {{"version", 1},
          {"task", name_of(config.task.name)},
          {"node_columns", column_list(describes.node_inputs)},
          {"edge_columns", edge_columns},
          {"relative_position", "sender - receiver"},
          {"hops", config.data.hops},
          {"period", config.data.period},
          {"world_radius", config.data.world_radius},
          {"world_pairs", config.data.world_pairs == WorldPairs::all ? "all" : "other_type"},
          {"offsets", offsets_of(task)},
          {"target_columns", column_list(describes.outputs)},
          {"predicted_types", config.data.predicted_types},
          {"width", options.width},
          {"blocks", options.blocks},
          {"hidden_layers", options.hidden_layers},
          {"activation", name_of(options.activation)},
          {"norm", name_of(options.norm)},
          {"eps", MlpWeights{}.epsilon},
          {"edge_mlp", concatenation.edges},
          {"node_mlp", concatenation.nodes},
          {"residual", {"edges", "nodes"}},
          {"aggregate", after ? "after_residual" : "before_residual"},
          {"reduce", name_of(options.reduce)}};
}

void check_description(const Description& needed, const Description& got, const std::string& file) {
  const std::string where = file + ": metadata \"" + kKey + "\"";
  if (!got.is_object()) {
    throw data_error(where, "an object with the entries of the exported file", got.dump(),
                     "write the metadata that export wrote, unchanged");
  }
  for (const auto& [name, value] : needed.items()) {
    if (got.contains(name) && got.at(name) == value) continue;
    throw data_error(where + ": " + name, value.dump() + ", as in the file's configuration",
                     got.contains(name) ? got.at(name).dump() : "none",
                     "undo the change, or set the key that it belongs to, as in --set model.activation=silu");
  }
  for (const auto& [name, value] : got.items()) {
    if (!needed.contains(name))
      throw data_error(where + ": " + name, "no such entry", value.dump(), "leave it out");
  }
}

Description description_in(const SafetensorsView& view) {
  const auto found = view.metadata.find(kKey);
  if (found == view.metadata.end()) {
    throw data_error(
        view.file, fmt::format("the metadata of the exported file, with \"{}\"", kKey),
        fmt::format("{}", fmt::join(std::views::keys(view.metadata), ", ")),
        "write them beside the tensors, as save_file(tensors, FILE, metadata=file.metadata()) does");
  }
  try {
    return Description::parse(found->second);
  } catch (const nlohmann::json::exception& error) {
    throw data_error(fmt::format("{}: metadata \"{}\"", view.file, kKey), "JSON",
                     json_fault(found->second, error), "write the metadata that export wrote, unchanged");
  }
}

/// Before a model of this size is made, which a damaged configuration may ask for.
void check_sizes(const SafetensorsView& view, const ModelConfig& model) {
  for (const std::string& name : {std::string("node_encoder.linear_0.weight"),
                                  fmt::format("processor.{}.node_mlp.linear_0.weight", model.blocks - 1)}) {
    const bool there = view.contains(name) && !view.at(name).shape.empty();
    if (there && view.at(name).shape.front() == model.width) continue;
    throw data_error(view.file + ": " + name, fmt::format("a tensor of {} rows", model.width),
                     there ? fmt::format("{} rows", view.at(name).shape.front()) : "none",
                     "write all tensors and the metadata of the exported file");
  }
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// Reads what a model of this description has, and nothing else.
class ExportedTensors {
 public:
  ExportedTensors(const SafetensorsView& view, DType precision)
      : view_(view),
        most_(precision == DType::f64 ? std::numeric_limits<double>::max()
                                      : std::numeric_limits<float>::max()) {}

  ForeignParameter take(const std::string& name, const std::vector<int64_t>& shape) {
    if (!view_.contains(name)) {
      throw data_error(view_.file, fmt::format("tensor {} {}", name, shape_text(shape)), "none",
                       "write all tensors of the exported file");
    }
    const SafetensorsTensor& tensor = view_.at(name);
    if (tensor.shape != shape) {
      throw data_error(view_.file + ": " + name, shape_text(shape), shape_text(tensor.shape),
                       "write matrices as [out, in], with the sizes of the exported file");
    }
    using enum SafetensorsDtype;
    if (tensor.dtype != f64 && tensor.dtype != f32 && tensor.dtype != f16 && tensor.dtype != bf16) {
      throw data_error(view_.file + ": " + name, "floating-point values", dtype_name(tensor.dtype),
                       "write weights as F64, F32, F16 or BF16");
    }
    ForeignParameter parameter{name, shape, to_f64(tensor)};
    for (size_t i = 0; i < parameter.values.size(); ++i) {
      if (std::abs(parameter.values[i]) <= most_) continue;
      throw data_error(view_.file + ": " + name, fmt::format("finite values, at most {:.3g}", most_),
                       fmt::format("{} at {}", parameter.values[i], i),
                       "look for the step of the training elsewhere that made it");
    }
    taken_.insert(name);
    return parameter;
  }

  Normalizer take_normalizer(const std::string& name, size_t width) {
    const std::vector<int64_t> shape{static_cast<int64_t>(width)};
    const ForeignParameter mean = take("normalizer." + name + ".mean", shape);
    const ForeignParameter deviation = take("normalizer." + name + ".std", shape);
    const Normalizer normalizer = Normalizer::fixed(mean.values, deviation.values);
    for (size_t i = 0; i < width; ++i) {  // one that is too small or too large is not kept
      const double kept = normalizer.standard_deviation(i);
      if (std::abs(kept - deviation.values[i]) <= 1e-6 * kept && std::isfinite(kept)) continue;
      throw data_error(view_.file + ": " + deviation.name, "standard deviations from 1e-8 to 1e150",
                       fmt::format("{} at {}", deviation.values[i], i), "write 1 for a constant column");
    }
    return normalizer;
  }

  void check_all_taken() const {
    for (const SafetensorsTensor& tensor : view_.tensors) {
      if (taken_.contains(tensor.name)) continue;
      throw data_error(view_.file + ": " + tensor.name, "no such tensor, as the exported file has none",
                       shape_text(tensor.shape), "leave it out");
    }
  }

 private:
  const SafetensorsView& view_;
  double most_;  ///< that the run's precision holds
  std::set<std::string> taken_;
};

/// As files hold it: a matrix as [out, in].
std::vector<int64_t> file_shape(const ParameterInfo& info) {
  std::vector<int64_t> shape;
  for (int axis = info.shape.rank(); axis-- > 0;) shape.push_back(info.shape[axis]);
  return shape;
}

}  // namespace

ExportReport export_weights(Runtime& runtime, const fs::path& checkpoint, const fs::path& output) {
  const SafetensorsFile file = open_checkpoint(checkpoint);
  const SafetensorsView& view = file.view();
  const Config config = checkpoint_config(checkpoint);
  need_mesh_graph_net(config, checkpoint.string());
  const Task task = task_of(config, checkpoint_training_data(checkpoint), checkpoint.string());
  const Model model = make_model(runtime, config, task.sizes());
  const ParameterSet& parameters = model.parameters;
  Normalizers normalizers = task.online_normalizers();
  load_weights(checkpoint, runtime.stream(), parameters, &normalizers);
  std::deque<Tensor> kept;
  std::vector<SafetensorsTensor> tensors;
  const auto add = [&](const std::string& name, const Tensor& tensor, std::vector<int64_t> shape) {
    kept.push_back(tensor);
    tensors.push_back({name,
                       safetensors_dtype(tensor.dtype()),
                       std::move(shape),
                       {static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())}});
  };
  for (size_t i = 0; i < parameters.parameters().size(); ++i) {
    const ParameterInfo& info = parameters.parameters()[i];
    add(info.name, to_file_order(info, parameters.value(i)), file_shape(info));
  }
  normalizers.each([&](const std::string& name, const Normalizer& one) {
    const auto width = static_cast<int64_t>(one.width());
    const Tensor mean = host_tensor({width}, DType::f64), deviation = host_tensor({width}, DType::f64);
    for (size_t i = 0; i < one.width(); ++i) {
      mean.data<double>()[i] = one.mean(i);
      deviation.data<double>()[i] = one.standard_deviation(i);
    }
    add("normalizer." + name + ".mean", mean, {width});
    add("normalizer." + name + ".std", deviation, {width});
  });
  std::map<std::string, std::string> metadata{{kKey, description_of(config, task).dump()}};
  for (const char* const key : {"config", "data", "data_fingerprint"}) metadata[key] = view.metadata_at(key);
  write_safetensors(output, tensors, metadata);
  return {.step = read_run_state(view, config).step,
          .parameters = parameters.count(),
          .average = view.contains("ema." + parameters.parameters().front().name)};
}

bool is_exported(const fs::path& path) {
  try {
    return SafetensorsFile(path).view().metadata.contains(kKey);
  } catch (const DataError&) {
    return false;
  }
}

ImportReport import_exported(Runtime& runtime, const fs::path& path, const std::vector<std::string>& settings,
                             const fs::path& output) {
  const SafetensorsFile file(path);
  const SafetensorsView& view = file.view();
  const Description described = description_in(view);
  Config config = parse_saved_config(view.metadata_at("config"), view.file + " (its configuration)");
  if (!settings.empty()) config = parse_config(to_toml(config), view.file, settings);
  const std::string& data = view.metadata_at("data");
  const Task task = task_of(config, training_data_from_json(data, view.file), view.file);
  check_description(description_of(config, task), described, view.file);
  check_sizes(view, config.model);
  const Model model = make_model(runtime, config, task.sizes());
  ExportedTensors tensors(view, config.precision);
  ForeignModel weights;
  for (const ParameterInfo& info : model.parameters.parameters())
    weights.parameters[info.name] = tensors.take(info.name, file_shape(info));
  Normalizers normalizers = task.online_normalizers();
  normalizers.each(
      [&](const std::string& name, Normalizer& one) { one = tensors.take_normalizer(name, one.width()); });
  tensors.check_all_taken();
  set_parameters(weights, view.file, model.parameters, runtime.stream());
  const Optimizer optimizer(runtime, model.parameters, config.optimizer, config.train.clip_norm, {});
  std::error_code ignored;  // save_checkpoint names what cannot be written
  if (output.has_parent_path()) fs::create_directories(output.parent_path(), ignored);
  const CheckpointExtra extra{{},
                              {{"imported", path.filename().string()},
                               {"data", data},
                               {"data_fingerprint", view.metadata_at("data_fingerprint")}}};
  save_checkpoint(output, runtime.stream(), config, task.dataset(), model.parameters, optimizer, normalizers,
                  {}, &extra);
  return {.width = config.model.width,
          .blocks = config.model.blocks,
          .hidden_layers = config.model.hidden_layers,
          .parameters = model.parameters.count(),
          .normalizers = "file"};
}

}  // namespace meshgrad
