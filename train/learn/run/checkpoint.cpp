// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/optimizer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

/// Tensors to write, with the memory they borrow.
class Contents {
 public:
  explicit Contents(const Stream& stream) : stream_(stream) {}

  void add(const std::string& name, const Tensor& tensor) {
    kept_.push_back(tensor);
    std::vector<int64_t> shape;
    for (int axis = 0; axis < tensor.shape().rank(); ++axis) shape.push_back(tensor.shape()[axis]);
    tensors_.push_back({name,
                        safetensors_dtype(tensor.dtype()),
                        shape,
                        {static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())}});
  }

  /// A parameter-shaped arena, parameter by parameter, in file order.
  void add_arena(const std::string& prefix, const ParameterSet& set, const Tensor& arena) {
    const Tensor host = to_host(arena, stream_);
    for (size_t i = 0; i < set.parameters().size(); ++i) {
      const ParameterInfo& info = set.parameters()[i];
      add(prefix + info.name, to_file_order(info, set.slice(host, i)));
    }
  }

  void add_values(const std::string& name, const std::vector<double>& values) {
    const Tensor tensor = host_tensor(Shape{static_cast<int64_t>(values.size())}, DType::f64);
    std::copy(values.begin(), values.end(), tensor.data<double>());
    add(name, tensor);
  }

  void add_normalizer(const std::string& name, const Normalizer& normalizer) {
    check_statistics("normalizer." + name, normalizer.count(), normalizer.means(),
                     normalizer.squared_deviations(),
                     "look for bad values in the data; the last save is kept");
    add_values("normalizer." + name + ".count", {normalizer.count()});
    add_values("normalizer." + name + ".mean", normalizer.means());
    add_values("normalizer." + name + ".squared_deviation", normalizer.squared_deviations());
  }

  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

 private:
  Stream stream_;
  std::vector<Tensor> kept_;
  std::vector<SafetensorsTensor> tensors_;
};

Config saved_config(const SafetensorsView& view) {
  return parse_saved_config(view.metadata_at("config"), view.file + " (its configuration)");
}

/// Weights of another convention fit by their shapes.
void check_conventions(const SafetensorsView& view, const Config& saved, const ParameterSet& parameters) {
  const std::string theirs = parameter_conventions(saved.model);
  if (parameters.conventions().empty() || parameters.conventions() == theirs) return;
  throw data_error(view.file, "weights of a model with " + parameters.conventions(), theirs,
                   "make the model with make_model(checkpoint_config(file).model, sizes)");
}

/// Those of save_weights.
void check_own_model(const SafetensorsView& view, const ParameterSet& parameters) {
  constexpr const char* kFix = "make the model as the program did that wrote the file";
  const std::string& theirs = view.metadata_at("conventions");
  if (parameters.conventions() != theirs) {
    throw data_error(view.file, "weights of a model with conventions \"" + parameters.conventions() + "\"",
                     "\"" + theirs + "\"", kFix);
  }
  for (const SafetensorsTensor& tensor : view.tensors) {
    const std::string& name = tensor.name;
    if (name.starts_with("model.") && parameters.find(name.substr(6)) < 0)
      throw data_error(view.file, "parameters of this model alone", name.substr(6), kFix);
  }
}

void load_arena(const SafetensorsView& view, const std::string& prefix, const ParameterSet& set,
                const Tensor& arena, const Stream& stream) {
  const Tensor host = host_tensor(arena.shape(), arena.dtype());
  for (size_t i = 0; i < set.parameters().size(); ++i) {
    const ParameterInfo& info = set.parameters()[i];
    if (!view.contains(prefix + info.name)) {
      throw data_error(view.file, "parameter " + prefix + info.name,
                       fmt::format("{} tensors of other names", view.tensors.size()),
                       "this is a checkpoint of another model: use the configuration it was trained with");
    }
    const SafetensorsTensor& tensor = view.at(prefix + info.name);
    std::vector<double> values = to_f64(tensor);
    const Tensor file =
        Tensor::borrow(values.data(), Shape(std::span<const int64_t>(tensor.shape)), DType::f64);
    try {
      from_file_order(info, file, set.slice(host, i));
    } catch (const DataError& error) {
      throw DataError(view.file + " is a checkpoint of another model: " + error.what());
    }
  }
  set.set(arena, host, stream);
}

void load_normalizer(const SafetensorsView& view, const std::string& name, Normalizer& normalizer) {
  const std::string prefix = "normalizer." + name;
  const std::vector<double> count = to_f64(view.at(prefix + ".count"));
  const std::vector<double> mean = to_f64(view.at(prefix + ".mean"));
  const std::vector<double> squares = to_f64(view.at(prefix + ".squared_deviation"));
  if (count.size() != 1 || mean.size() != normalizer.width() || squares.size() != normalizer.width()) {
    throw data_error(view.file + ": " + prefix, fmt::format("{} columns", normalizer.width()),
                     fmt::format("{}", mean.size()),
                     "use the data and the configuration the checkpoint was trained with");
  }
  check_statistics(view.file + ": " + prefix, count[0], mean, squares,
                   "use another checkpoint of the run (--checkpoint FILE)");
  normalizer.restore(count[0], mean, squares);
}

void load_normalizers(const SafetensorsView& view, Normalizers& normalizers) {
  normalizers.each([&](const char* name, Normalizer& one) { load_normalizer(view, name, one); });
}

/// The average of the weights, where there is one.
void load_predicting_weights(const SafetensorsView& view, const ParameterSet& set, const Stream& stream) {
  const std::string prefix = view.contains("ema." + set.parameters().front().name) ? "ema." : "model.";
  load_arena(view, prefix, set, set.values(), stream);
}

}  // namespace

void check_statistics(const std::string& where, double count, std::span<const double> mean,
                      std::span<const double> squares, std::string_view fix) {
  const auto finite = [](double value) { return std::isfinite(value); };
  const auto sum_of_squares = [](double value) { return std::isfinite(value) && value >= 0.0; };
  if (sum_of_squares(count) && std::ranges::all_of(mean, finite) &&
      std::ranges::all_of(squares, sum_of_squares))
    return;
  throw data_error(where, "finite statistics", "nan, infinity or a negative sum of squares", fix);
}

void save_checkpoint(const fs::path& path, const Stream& stream, const Config& config, const Dataset& data,
                     const ParameterSet& parameters, const Optimizer& optimizer,
                     const Normalizers& normalizers, const RunState& state, const CheckpointExtra* extra) {
  Contents contents(stream);
  contents.add_arena("model.", parameters, parameters.values());
  if (optimizer.first_moment().defined())
    contents.add_arena("optimizer.first_moment.", parameters, optimizer.first_moment());
  if (optimizer.second_moment().defined())
    contents.add_arena("optimizer.second_moment.", parameters, optimizer.second_moment());
  if (optimizer.average().defined()) contents.add_arena("ema.", parameters, optimizer.average());
  if (state.micro > 0) contents.add_arena("window.gradients.", parameters, parameters.gradients());
  normalizers.each([&](const char* name, const Normalizer& one) { contents.add_normalizer(name, one); });
  RunState now = state;
  now.optimizer = optimizer.state();
  std::map<std::string, std::string> metadata = metadata_of_state(now, config);
  metadata["config"] = to_toml(config);
  metadata["data_fingerprint"] = fmt::format("{:016x}", data.fingerprint());
  metadata["data"] = to_json(training_data(data, config.data));
  std::vector<SafetensorsTensor> tensors = contents.tensors();
  if (extra != nullptr) {
    tensors.insert(tensors.end(), extra->tensors.begin(), extra->tensors.end());
    for (const auto& [key, value] : extra->metadata) metadata[key] = value;
  }
  metadata["checksum"] = checkpoint_checksum(tensors, metadata);
  write_safetensors(path, tensors, metadata);
}

Config checkpoint_config(const fs::path& path) {
  const SafetensorsFile file = open_checkpoint(path);
  return saved_config(file.view());
}

uint64_t checkpoint_data_fingerprint(const fs::path& path) {
  return read_data_fingerprint(open_checkpoint(path).view());
}

std::optional<TrainingData> checkpoint_training_data(const fs::path& path) {
  const SafetensorsFile file = open_checkpoint(path);
  if (!file.view().metadata.contains("data")) return std::nullopt;
  return training_data_from_json(file.view().metadata_at("data"), path.string());
}

RunState load_checkpoint(const fs::path& path, const Stream& stream, const ParameterSet& parameters,
                         Optimizer* optimizer, Normalizers& normalizers) {
  const SafetensorsFile file = open_checkpoint(path);
  const SafetensorsView& view = file.view();
  const Config saved = saved_config(view);
  check_conventions(view, saved, parameters);
  const RunState s = read_run_state(view, saved);
  if (optimizer == nullptr) {
    load_predicting_weights(view, parameters, stream);
  } else {
    load_arena(view, "model.", parameters, parameters.values(), stream);
    if (optimizer->average().defined()) load_arena(view, "ema.", parameters, optimizer->average(), stream);
    if (optimizer->first_moment().defined())
      load_arena(view, "optimizer.first_moment.", parameters, optimizer->first_moment(), stream);
    if (optimizer->second_moment().defined())
      load_arena(view, "optimizer.second_moment.", parameters, optimizer->second_moment(), stream);
    if (s.micro > 0) load_arena(view, "window.gradients.", parameters, parameters.gradients(), stream);
    optimizer->set_state(s.optimizer);
  }
  load_normalizers(view, normalizers);
  return s;
}

void save_weights(const fs::path& path, const Stream& stream, const ParameterSet& parameters,
                  const Normalizers* normalizers) {
  Contents contents(stream);
  contents.add_arena("model.", parameters, parameters.values());
  if (normalizers != nullptr)
    normalizers->each([&](const char* name, const Normalizer& one) { contents.add_normalizer(name, one); });
  std::map<std::string, std::string> metadata = metadata_of_weights();
  metadata["conventions"] = parameters.conventions();
  metadata["checksum"] = checkpoint_checksum(contents.tensors(), metadata);
  write_safetensors(path, contents.tensors(), metadata);
}

void load_weights(const fs::path& path, const Stream& stream, const ParameterSet& parameters,
                  Normalizers* normalizers) {
  const SafetensorsFile file = open_weights(path);
  const SafetensorsView& view = file.view();
  if (view.metadata.contains("config")) {
    check_conventions(view, saved_config(view), parameters);
  } else {
    check_own_model(view, parameters);
  }
  load_predicting_weights(view, parameters, stream);
  if (normalizers != nullptr) load_normalizers(view, *normalizers);
}

fs::path find_checkpoint(const fs::path& run, const std::string& word) {
  if (word != "best" && word != "last") {
    if (path_exists(word)) return word;
    throw config_error("checkpoint", "best, last or a file", "\"" + word + "\", which does not exist",
                       "see " + (run / "checkpoints").string());
  }
  for (const std::string& name :
       word == "best" ? std::vector<std::string>{"best", "last"} : std::vector<std::string>{"last"}) {
    const fs::path path = run / "checkpoints" / (name + ".safetensors");
    if (path_exists(path)) return path;
  }
  throw config_error(run.string(), "a run with checkpoints/last.safetensors",
                     !path_exists(run)       ? "a missing folder"
                     : fs::is_directory(run) ? "a folder without checkpoints"
                                             : "a file",
                     "name the folder that meshgrad train wrote: run.dir of its configuration");
}

}  // namespace meshgrad
