// SPDX-License-Identifier: Apache-2.0
// What a MeshPredictor is made of: a checkpoint, a trainer, or a program's own model.
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor_state.h>
#include <meshgrad/train/embed/online_config.h>
#include <meshgrad/train/embed/online_trainer_state.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/precision.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

void check_on_meshes(TaskName task, const char* needed, const char* fix) {
  if (find_key("data.hops")->applies_to(task)) return;
  throw config_error("task.name", needed, toml_quoted(name_of(task)), fix);
}

TrainingData described_data(const fs::path& checkpoint) {
  check_on_meshes(checkpoint_config(checkpoint).task.name, "a checkpoint of a task on meshes",
                  "use GraphPredictor, in C meshgrad_graph_predictor, or meshgrad predict");
  if (auto data = checkpoint_training_data(checkpoint); data && data->dim > 0) {
    if (!data->directed.value_or(false)) return std::move(*data);
    throw data_error(checkpoint.string(),
                     "a model of edges without directions, as meshes in memory have them",
                     std::string(name_of_edges(true)),
                     "pack the data, then use --data of meshgrad rollout or meshgrad predict");
  }
  throw data_error(checkpoint.string(), "a description of the fields, to predict without their data set",
                   "a checkpoint of an earlier version",
                   "train one more step: raise train.steps by 1 and run meshgrad train --resume");
}

/// Throws InvalidArgument unless the model and the normalisers are what the predictor takes.
void check_model(const Model& model, const Normalizers& normalizers, const Config& config,
                 const Normalizers& needed) {
  constexpr const char* kWhere = "MeshPredictor: model";
  const ParameterSet& parameters = model.parameters;
  if (!parameters.values().defined())
    throw invalid_argument(kWhere, "parameters with memory", "none", "call parameters.allocate first");
  const DType stored = (parameters.storage().defined() ? parameters.storage() : parameters.values()).dtype();
  if (stored != config.precision) {
    throw invalid_argument(kWhere, fmt::format("parameters in {}, the precision", name_of(config.precision)),
                           std::string(name_of(stored)), "allocate them so, or set precision");
  }
  const auto widths = [](const Normalizers& all) {
    const size_t graphs = all.graph_targets.width();
    return fmt::format("{} node, {} edge and {} target columns{}", all.nodes.width(), all.edges.width(),
                       all.targets.width(), graphs > 0 ? fmt::format(", and {} of graphs", graphs) : "");
  };
  if (widths(normalizers) == widths(needed) && normalizers.world.width() == needed.world.width()) return;
  throw invalid_argument("MeshPredictor: normalizers", widths(needed), widths(normalizers),
                         "mesh_model_sizes has the widths");
}

}  // namespace

std::shared_ptr<MemoryData> MeshPredictor::Loaded::empty_data() const {
  auto none = std::make_shared<MemoryData>();
  none->dim = trained.dim;
  none->edge_options = edge_options(config.data);
  none->dt = trained.dt;
  none->node_types = config.data.node_types;
  none->fields = trained.fields;
  none->splits = {{.name = "train", .first = 0, .count = 0}};
  return none;
}

MeshPredictor::Loaded::Loaded(Runtime& own, Ranks* with, Config given, TrainingData trained_on,
                              const std::function<void(Loaded&)>& load)
    : runtime(own),
      ranks(with == nullptr ? alone : *with),
      process(runtime, ranks),
      config(checked_for_given_meshes(std::move(given))),
      trained(std::move(trained_on)),
      data(empty_data()),
      task(make_task(config, Dataset::over(data))),
      normalizers(task.online_normalizers()) {
  check_precision(runtime.device(), config.precision);
  load(*this);
  model.parameters.release_gradients();
  for (const FieldSelection::Input& input : fields().inputs) inputs.push_back(input.field);
  const auto& position = fields().world_position;
  if (position && std::ranges::find(inputs, position->field.name, &FieldInfo::name) == inputs.end())
    inputs.push_back(position->field);
  targets = fields().targets.fields;
}

void MeshPredictor::Loaded::make_model_of_config() {
  model = make_model(config.model, task.sizes());
  model.parameters.allocate(runtime, config.precision, 0);
}

MeshPredictor::MeshPredictor(Runtime& runtime, const fs::path& checkpoint, Ranks* ranks)
    : loaded_(std::make_unique<Loaded>(runtime, ranks, checkpoint_config(checkpoint),
                                       described_data(checkpoint),
                                       [&](Loaded& to) {
                                         to.make_model_of_config();
                                         load_checkpoint(checkpoint, runtime.stream(), to.model.parameters,
                                                         nullptr, to.normalizers);
                                       })
                  .release()) {}

MeshPredictor::MeshPredictor(const OnlineTrainer& trainer) {
  OnlineTrainer::State& s = trainer.state();
  s.merge_learned();
  s.normalizers.each([](const std::string& name, const Normalizer& one) {
    check_statistics("normalizer." + name, one.count(), one.means(), one.squared_deviations(),
                     "look for bad values in the appended frames");
  });
  const auto copy = [&](Loaded& to) {
    const Stream& stream = s.runtime.stream();
    to.make_model_of_config();
    to.model.parameters.set(to.model.parameters.values(), to_host(s.model.parameters.values(), stream),
                            stream);
    to.normalizers = s.normalizers;
  };
  loaded_.reset(
      std::make_unique<Loaded>(s.runtime, s.given_ranks(), s.config, s.described_data(), copy).release());
}

ModelSizes mesh_model_sizes(const Config& config, const OnlineOptions& options) {
  return make_task(config, empty_dataset(with_used_fields(options, config), config)).sizes();
}

MeshPredictor::MeshPredictor(Runtime& runtime, const Config& config, const OnlineOptions& options,
                             Model model, const Normalizers& normalizers, Ranks* ranks) {
  const Config checked = check_config(config);
  check_on_meshes(checked.task.name, "a task on meshes", "run the model by forward");
  const Dataset data = empty_dataset(with_used_fields(options, checked), checked);
  const auto take = [&](Loaded& to) {
    check_model(model, normalizers, checked, to.normalizers);
    to.model = std::move(model);
    to.normalizers = normalizers;
  };
  loaded_.reset(
      std::make_unique<Loaded>(runtime, ranks, checked, training_data(data, checked.data), take).release());
}

}  // namespace meshgrad
