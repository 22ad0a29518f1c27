// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/checkpoint.h>
#include <meshgrad/train/formats/safetensors.h>

#include <fmt/format.h>

#include <cstdlib>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

/// Doubles as text that reads back to the same bits.
std::string exact(double value) { return fmt::format("{:a}", value); }

/// Tensors to write, with the memory they borrow.
class Contents {
 public:
  explicit Contents(Runtime& runtime) : runtime_(runtime) {}

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
    for (const ParameterInfo& info : set.parameters()) {
      const Tensor slice =
          arena.row_range(info.offset, info.offset + info.shape.elements()).reshaped(info.shape);
      add(prefix + info.name, to_file_order(runtime_, info, slice));
    }
  }

  void add_values(const std::string& name, const std::vector<double>& values) {
    add(name,
        Tensor::from<double>(runtime_, values, Shape{static_cast<int64_t>(values.size())}, Tag::host, name));
  }

  void add_normalizer(const std::string& name, const Normalizer& normalizer) {
    add_values("normalizer." + name + ".count", {normalizer.count()});
    add_values("normalizer." + name + ".mean", normalizer.means());
    add_values("normalizer." + name + ".squared_deviation", normalizer.squared_deviations());
  }

  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

 private:
  Runtime& runtime_;
  std::vector<Tensor> kept_;
  std::vector<SafetensorsTensor> tensors_;
};

std::map<std::string, std::string> metadata_of(const Config& config, uint64_t fingerprint, const RunState& s,
                                               int64_t optimizer_steps) {
  return {{"format", "meshgrad checkpoint 1"},
          {"config", to_toml(config)},
          {"data_fingerprint", fmt::format("{:016x}", fingerprint)},
          {"step", fmt::format("{}", s.step)},
          {"micro", fmt::format("{}", s.micro)},
          {"learned", fmt::format("{}", s.learned)},
          {"skipped", fmt::format("{}", s.skipped)},
          {"loss_count", fmt::format("{}", s.loss_count)},
          {"best_step", fmt::format("{}", s.best_step)},
          {"optimizer_steps", fmt::format("{}", optimizer_steps)},
          {"window_loss", exact(s.window_loss)},
          {"loss_sum", exact(s.loss_sum)},
          {"last_loss", exact(s.last_loss)},
          {"last_valid_loss", exact(s.last_valid_loss)},
          {"best_valid_loss", exact(s.best_valid_loss)}};
}

void check_is_checkpoint(const SafetensorsView& view) {
  const auto format = view.metadata.find("format");
  if (format == view.metadata.end() || format->second != "meshgrad checkpoint 1") {
    throw data_error(view.file, "a checkpoint written by meshgrad train",
                     format == view.metadata.end() ? "another safetensors file" : format->second,
                     "name a file from a run's checkpoints folder");
  }
}

double number(const SafetensorsView& view, const std::string& key) {
  const std::string& text = view.metadata_at(key);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') {
    throw data_error(view.file + ": " + key, "a number", "\"" + text + "\"",
                     "use another checkpoint of the run");
  }
  return value;
}

void load_arena(const SafetensorsView& view, const std::string& prefix, const ParameterSet& set,
                const Tensor& arena) {
  for (const ParameterInfo& info : set.parameters()) {
    if (!view.contains(prefix + info.name)) {
      throw data_error(view.file, "parameter " + prefix + info.name, "none of this name",
                       "this is a checkpoint of another model: use the configuration it was trained with");
    }
    const SafetensorsTensor& tensor = view.at(prefix + info.name);
    std::vector<double> values = to_f64(tensor);
    const Tensor file =
        Tensor::borrow(values.data(), Shape(std::span<const int64_t>(tensor.shape)), DType::f64);
    try {
      from_file_order(info, file,
                      arena.row_range(info.offset, info.offset + info.shape.elements()).reshaped(info.shape));
    } catch (const DataError& error) {
      throw DataError(view.file + " is a checkpoint of another model: " + error.what());
    }
  }
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
  normalizer.restore(count[0], mean, squares);
}

}  // namespace

void save_checkpoint(const fs::path& path, Runtime& runtime, const Config& config, uint64_t data_fingerprint,
                     const ParameterSet& parameters, const Optimizer* optimizer,
                     const Normalizers& normalizers, const RunState& state) {
  Contents contents(runtime);
  contents.add_arena("model.", parameters, parameters.values());
  if (optimizer != nullptr) {
    if (optimizer->first_moment().defined())
      contents.add_arena("optimizer.first_moment.", parameters, optimizer->first_moment());
    if (optimizer->second_moment().defined())
      contents.add_arena("optimizer.second_moment.", parameters, optimizer->second_moment());
    if (state.micro > 0) contents.add_arena("window.gradients.", parameters, parameters.gradients());
  }
  contents.add_normalizer("nodes", normalizers.nodes);
  contents.add_normalizer("edges", normalizers.edges);
  contents.add_normalizer("targets", normalizers.targets);
  write_safetensors(
      path, contents.tensors(),
      metadata_of(config, data_fingerprint, state, optimizer != nullptr ? optimizer->steps() : 0));
}

Config checkpoint_config(const fs::path& path) {
  const SafetensorsFile file(path);
  check_is_checkpoint(file.view());
  return parse_config(file.view().metadata_at("config"), path.string() + " (its configuration)");
}

uint64_t checkpoint_data_fingerprint(const fs::path& path) {
  const SafetensorsFile file(path);
  check_is_checkpoint(file.view());
  return std::strtoull(file.view().metadata_at("data_fingerprint").c_str(), nullptr, 16);
}

RunState load_checkpoint(const fs::path& path, const ParameterSet& parameters, Optimizer* optimizer,
                         Normalizers& normalizers) {
  const SafetensorsFile file(path);
  const SafetensorsView& view = file.view();
  check_is_checkpoint(view);
  RunState s;
  s.step = static_cast<int64_t>(number(view, "step"));
  s.micro = static_cast<int64_t>(number(view, "micro"));
  s.learned = static_cast<int64_t>(number(view, "learned"));
  s.skipped = static_cast<int64_t>(number(view, "skipped"));
  s.loss_count = static_cast<int64_t>(number(view, "loss_count"));
  s.best_step = static_cast<int64_t>(number(view, "best_step"));
  s.window_loss = number(view, "window_loss");
  s.loss_sum = number(view, "loss_sum");
  s.last_loss = number(view, "last_loss");
  s.last_valid_loss = number(view, "last_valid_loss");
  s.best_valid_loss = number(view, "best_valid_loss");
  load_arena(view, "model.", parameters, parameters.values());
  if (optimizer != nullptr) {
    if (optimizer->first_moment().defined())
      load_arena(view, "optimizer.first_moment.", parameters, optimizer->first_moment());
    if (optimizer->second_moment().defined())
      load_arena(view, "optimizer.second_moment.", parameters, optimizer->second_moment());
    optimizer->set_steps(static_cast<int64_t>(number(view, "optimizer_steps")));
    if (s.micro > 0) load_arena(view, "window.gradients.", parameters, parameters.gradients());
  }
  load_normalizer(view, "nodes", normalizers.nodes);
  load_normalizer(view, "edges", normalizers.edges);
  load_normalizer(view, "targets", normalizers.targets);
  return s;
}

fs::path find_checkpoint(const fs::path& run, const std::string& word) {
  if (word != "best" && word != "last") {
    if (fs::exists(word)) return word;
    throw config_error("checkpoint", "best, last or a file", "\"" + word + "\", which does not exist",
                       "see " + (run / "checkpoints").string());
  }
  for (const std::string& name :
       word == "best" ? std::vector<std::string>{"best", "last"} : std::vector<std::string>{"last"}) {
    const fs::path path = run / "checkpoints" / (name + ".safetensors");
    if (fs::exists(path)) return path;
  }
  throw config_error(run.string(), "a run with checkpoints/last.safetensors",
                     fs::exists(run) ? "a folder without" : "no such folder",
                     "name the folder that meshgrad train wrote (run.dir)");
}

}  // namespace meshgrad
