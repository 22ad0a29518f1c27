// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/host_memory_error.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/part_step.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/learn/task/captured_prediction.h>
#include <meshgrad/train/learn/task/evaluation.h>

#include <fmt/format.h>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

/// The folder that train ran in, from BASE/run.dir/checkpoints/NAME; nothing when the run was moved.
std::optional<fs::path> training_folder(const Config& config, const fs::path& checkpoint) {
  const fs::path run = fs::path(config.run.dir).lexically_normal();
  if (run.is_absolute()) return {};
  const fs::path actual = fs::absolute(checkpoint).lexically_normal().parent_path().parent_path();
  fs::path base = actual;
  for ([[maybe_unused]] const fs::path& part : run) base = base.parent_path();
  if ((base / run).lexically_normal() != actual) return {};
  return base;
}

/// The data set of a run. An evaluation may be started in another folder than the training.
std::string data_of(const Config& config, const fs::path& checkpoint, const std::string& given) {
  if (!given.empty()) return given;
  if (const auto found = data_of_run(config, checkpoint)) return found->string();
  if (fs::path(config.data.path).is_absolute()) return config.data.path;
  const std::optional<fs::path> folder = training_folder(config, checkpoint);
  throw data_error(config.data.path, "the run's data set, at a path relative to the folder that train ran in",
                   folder ? "none in " + folder->string() : "none in " + fs::current_path().string(),
                   "name the packed file with --data");
}

}  // namespace

std::optional<fs::path> data_of_run(const Config& config, const fs::path& checkpoint) {
  const fs::path path = config.data.path;
  if (!path.is_absolute()) {
    const std::optional<fs::path> folder = training_folder(config, checkpoint);
    if (folder && path_exists(*folder / path))
      return (*folder / path).lexically_proximate(fs::current_path());
  }
  return path_exists(path) ? std::optional(path) : std::nullopt;
}

Config config_of_predictions(const fs::path& checkpoint) {
  Config config = checkpoint_config(checkpoint);
  config.loss.class_weights.clear();
  const bool classes = config.task.name == TaskName::graph_classification && config.data.classes == 0;
  const bool identifiers = !config.data.embed.empty() && config.data.identifiers == 0;
  if (!classes && !identifiers) return config;
  const std::optional<TrainingData> trained = checkpoint_training_data(checkpoint);
  if (!trained || !trained->ranges) return config;
  const auto most = [&](const std::string& name) {
    const auto field = trained->ranges->fields.find(name);
    const bool known = field != trained->ranges->fields.end() && !field->second.empty();
    return known ? static_cast<int64_t>(field->second.front().most) : -1;
  };
  if (classes) config.data.classes = most(config.data.targets.front()) + 1;
  if (!identifiers) return config;
  for (const std::string& name : config.data.embed)
    config.data.identifiers = std::max(config.data.identifiers, most(name) + 1);
  return config;
}

struct Predictor::Loaded {
  Loaded(Runtime& on, const fs::path& checkpoint, const std::string& data_path, Ranks* ranks);

  Runtime& runtime;
  Config config;
  Task task;
  Model model;
  Normalizers normalizers;
  RunState state;
  std::vector<std::string> warnings;
  std::unique_ptr<MeshParts> parts;              // null: meshes are whole
  std::unique_ptr<CapturedPrediction> captured;  // of whole meshes, with graphs = "capture" on a GPU; or null
};

Predictor::Loaded::Loaded(Runtime& on, const fs::path& checkpoint, const std::string& data_path, Ranks* ranks)
    : runtime(on),
      config(config_of_predictions(checkpoint)),
      task(make_task(config, Dataset::open(data_of(config, checkpoint, data_path)))),
      model(make_model(config.model, task.sizes())),
      normalizers(task.online_normalizers()) {
  check_precision(runtime.device(), config.precision);
  const Dataset& data = task.dataset();
  if (data_path.empty() && checkpoint_data_fingerprint(checkpoint) != data.fingerprint()) {
    warnings.push_back(fmt::format(
        "[{}] has other content than the data that {} was trained on, so its splits may contain that data",
        data.path().string(), checkpoint.string()));
  }
  // One graph's links are split; of many graphs all are reconstructed.
  const SafetensorsFile stored = open_checkpoint(checkpoint);
  const auto sample = stored.view().metadata.find("sample");
  if (sample != stored.view().metadata.end() && sample->second != task.describe().sample) {
    throw data_error(data.path().string(),
                     fmt::format("data in which a sample is {}, as in training", sample->second),
                     task.describe().sample, "give data of that kind");
  }
  if (const auto trained = checkpoint_training_data(checkpoint)) {
    if (const auto other = find_other_data(checkpoint.string(), *trained, task, config))
      throw data_error(data.path().string(), other->needed, other->got, other->fix);
    if (task.describe().over_time && (trained->dt > 0) != (data.dt() > 0)) {
      const auto text = [](double dt) {
        return dt > 0 ? fmt::format("dt = {} s", dt) : std::string("no dt");
      };
      warnings.push_back(fmt::format("[{}] has {}, and {} was trained on data with {}, so they may differ",
                                     data.path().string(), text(data.dt()), checkpoint.string(),
                                     text(trained->dt)));
    }
  }
  model.parameters.allocate(runtime, config.precision, 0);
  state = load_checkpoint(checkpoint, runtime.stream(), model.parameters, nullptr, normalizers);
  Ranks alone;
  if (auto made = make_mesh_parts(runtime, config, ranks != nullptr ? *ranks : alone))
    parts = std::make_unique<MeshParts>(std::move(*made));
  if (config.graphs == GraphsMode::capture && runtime.stream().on_gpu() && parts == nullptr)
    captured = std::make_unique<CapturedPrediction>(runtime, model);
}

Predictor::Predictor(Runtime& runtime, const fs::path& checkpoint, const std::string& data_path, Ranks* ranks)
    : loaded_(std::make_unique<const Loaded>(runtime, checkpoint, data_path, ranks)) {}
Predictor::~Predictor() = default;

const Config& Predictor::config() const { return loaded_->config; }
const Dataset& Predictor::dataset() const { return loaded_->task.dataset(); }
int64_t Predictor::step() const { return loaded_->state.step; }
const std::vector<std::string>& Predictor::warnings() const { return loaded_->warnings; }
const Task& Predictor::task() const { return loaded_->task; }
TrainedModel Predictor::trained() const {
  return {loaded_->runtime,          loaded_->task,        loaded_->model,         loaded_->normalizers,
          loaded_->config.precision, loaded_->parts.get(), loaded_->captured.get()};
}

void check_predicts(const Config& config, bool over_time) {
  const TaskName task = config.task.name;
  if (task == (over_time ? TaskName::mesh_dynamics : TaskName::steady_field)) return;
  throw config_error("task.name",
                     over_time ? "\"mesh_dynamics\": a rollout goes through time"
                               : "\"steady_field\": predict is for fields without time",
                     toml_quoted(name_of(task)),
                     task == TaskName::mesh_dynamics ? "use meshgrad rollout"
                     : over_time                     ? "use meshgrad predict"
                                 : "convert the new data, and name the packed file with --data");
}

const MeshTask& Predictor::mesh_dynamics() const {
  const MeshTask& task = loaded_->task.mesh();
  check_predicts(config(), true);
  return task;
}

const MeshTask& Predictor::steady_field() const {
  const MeshTask& task = loaded_->task.mesh();
  check_predicts(config(), false);
  return task;
}

Evaluation evaluate(const Predictor& predictor, const EvaluateOptions& options) {
  const TrainedModel trained = predictor.trained();
  if (const TaskName task = predictor.config().task.name;
      !options.label.empty() && task != TaskName::link_reconstruction) {
    throw config_error("--label", "a run of task.name = \"link_reconstruction\", whose graphs have scores",
                       toml_quoted(name_of(task)), "leave it out");
  }
  EvaluateOptions resolved = options;
  if (!resolved.boundary) resolved.boundary = predictor.config().rollout.boundary;
  if (resolved.horizons.empty()) resolved.horizons = predictor.config().evaluate.horizons;
  return with_host_memory_named(predictor.dataset().path(), !trained.runtime.stream().on_gpu(), "to evaluate",
                                [&] { return trained.task.evaluate(trained, resolved); });
}

PredictedTable predict_table(const Predictor& predictor, const EvaluateOptions& options) {
  const TrainedModel trained = predictor.trained();
  return with_host_memory_named(predictor.dataset().path(), !trained.runtime.stream().on_gpu(), "to predict",
                                [&] { return trained.task.table(trained, options); });
}

FieldState state_at(const Predictor& predictor, const TrajectoryView& trajectory, int64_t t) {
  return predictor.mesh_dynamics().state_at(trajectory, t);
}

std::vector<float> predict_next(const Predictor& predictor, const TrajectoryView& trajectory, int64_t t,
                                const FieldState& state) {
  return predict_next(predictor.trained(), predictor.mesh_dynamics(), trajectory, t, state);
}

void roll_out(const Predictor& predictor, const TrajectoryView& trajectory, const RolloutOptions& options,
              const std::function<void(const RolloutFrame&)>& one_frame) {
  roll_out(predictor.trained(), predictor.mesh_dynamics(), trajectory, options, one_frame);
}

std::vector<float> predict_steady(const Predictor& predictor, const TrajectoryView& trajectory, int64_t t,
                                  std::vector<float>* graphs) {
  const MeshTask& task = predictor.steady_field();
  return predict_next(predictor.trained(), task, trajectory, t, task.state_at(trajectory, t), graphs);
}

}  // namespace meshgrad
