// SPDX-License-Identifier: Apache-2.0
// Keys whose values are in range but contradict each other, or mean nothing for the task.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/config/config_table.h>

#include <algorithm>
#include <utility>

namespace meshgrad {
namespace {

template <class T>
bool contains(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

class Checks {
 public:
  explicit Checks(const Config& config) : config_(config) {}

  std::vector<Contradiction> run() {
    check_types("data.predicted_types", config_.data.predicted_types);
    check_types("data.noise_types", config_.data.noise_types);
    check_types("data.kinematic_types", config_.data.kinematic_types);
    check_targets();
    check_noise();
    check_validation();
    if (config_.data.history > 1 && find_key("data.history")->applies_to(config_.task.name)) check_history();
    check_loss();
    check_distill();
    check_curriculum();
    check_steps();
    check_schedule();
    check_mesh();
    if (!config_.data.value_targets.empty()) check_value_targets();
    check_keys_of_task();
    check_keys_of_model();
    check_embed();
    if (config_.model.name == ModelName::gat) check_gat();
    if (config_.model.name == ModelName::vgae) check_vgae();
    if (config_.model.name == ModelName::mesh_graph_net) check_slices();
    check_recompute();
    check_optimizer();
    return std::move(found_);
  }

 private:
  using Keys = std::vector<std::string>;

  /// `got` is the value of the first key unless it is given.
  void refuse(bool wrong, Keys keys, std::string needed, std::string fix, std::string got = "") {
    if (!wrong) return;
    if (got.empty()) got = toml_literal(*find_key(keys.front()), config_);
    found_.push_back({std::move(keys), std::move(needed), std::move(got), std::move(fix)});
  }

  /// Keys that mean nothing for the task keep their defaults.
  void check_keys_of_task() {
    for (const ConfigKey& key : config_keys()) {
      if (key.applies_to(config_.task.name)) continue;
      const std::string name = full_name(key), unset = toml_literal(key, Config{});
      refuse(toml_literal(key, config_) != unset, {name, "task.name"},
             fmt::format("{} with task.name = \"{}\", which {}", unset, name_of(config_.task.name),
                         key.use.why_not),
             fmt::format("set {} = {}, or another task.name", name, unset));
    }
  }

  /// Keys that the model does not read keep their defaults.
  void check_keys_of_model() {
    for (const ConfigKey& key : config_keys()) {
      if (key.applies_to(config_.model.name)) continue;
      const std::string name = full_name(key), unset = toml_literal(key, Config{});
      const std::string_view reader = name_of(key.use.models.front());
      refuse(toml_literal(key, config_) != unset, {name, "model.name"},
             fmt::format("{} with model.name = \"{}\", as only \"{}\" reads {}", unset,
                         name_of(config_.model.name), reader, name),
             fmt::format("set {} = {}, or model.name = \"{}\"", name, unset, reader));
    }
  }

  /// Keys of tables mean nothing without one.
  void check_embed() {
    if (!config_.data.embed.empty()) return;
    refuse(config_.data.identifiers != 0, {"data.identifiers", "data.embed"}, "0 where data.embed is empty",
           "name identifiers in data.embed, or set data.identifiers = 0");
    refuse(config_.model.embedding != ModelConfig().embedding, {"model.embedding", "data.embed"},
           fmt::format("{} where data.embed is empty", ModelConfig().embedding),
           "name identifiers in data.embed, or leave it out");
  }

  void check_slices() {
    const ModelConfig& model = config_.model;
    if (model.slices == 0) {
      for (const char* name : {"model.slices_every", "model.slice_heads"}) {
        const ConfigKey& key = *find_key(name);
        const std::string unset = toml_literal(key, Config{});
        refuse(toml_literal(key, config_) != unset, {name, "model.slices"},
               fmt::format("{} with model.slices = 0", unset), "leave it out, or set model.slices");
      }
      return;
    }
    refuse(model.width % model.slice_heads != 0, {"model.slice_heads", "model.width"},
           fmt::format("a divisor of model.width = {}", model.width), "change one of the two");
    refuse(!slices_fit(model.slices, model.width / model.slice_heads), {"model.slices", "model.slice_heads"},
           fmt::format("{}; a head has {}", slices_that_fit(), model.width / model.slice_heads),
           model.width / model.slice_heads > kMaxSliceColumns
               ? "raise model.slice_heads, or lower model.width"
               : "lower model.slices, or raise model.slice_heads");
    refuse(model.slices_every >= model.blocks, {"model.slices_every", "model.blocks"},
           fmt::format("less than model.blocks = {}, as slices stand between blocks", model.blocks),
           "lower model.slices_every, or set model.slices = 0");
    refuse(config_.ranks.partition != MeshPartition::none || config_.ranks.parts_in_turn > 1,
           {config_.ranks.partition != MeshPartition::none ? "ranks.partition" : "ranks.parts_in_turn",
            "model.slices"},
           "whole meshes with model.slices above 0",
           "set ranks.partition = \"none\" and ranks.parts_in_turn = 1, or model.slices = 0");
  }

  void check_gat() {
    const ModelConfig& model = config_.model;
    const GatConfig& gat = model.gat;
    const bool attends = gat.decoder == GatDecoder::attention;
    refuse(gat.concatenate && model.width % gat.heads != 0, {"gat.heads", "model.width"},
           fmt::format("a divisor of model.width = {}, which heads side by side share", model.width),
           "change one of the two, or set gat.concatenate = false");
    refuse(attends && gat.jumping != Jumping::none, {"gat.jumping", "gat.decoder"},
           "\"none\" with gat.decoder = \"attention\"", "set gat.decoder = \"mlp\"");
    const bool on_mesh = find_key("data.world_radius")->applies_to(config_.task.name);
    const bool on_graphs = find_key("model.pool")->applies_to(config_.task.name) && !on_mesh;
    refuse(attends && on_graphs, {"gat.decoder", "task.name"}, "\"mlp\" where nodes are pooled",
           "set gat.decoder = \"mlp\"");
    refuse(gat.jumping == Jumping::concatenate && model.blocks > kMostGatBlocksSideBySide,
           {"gat.jumping", "model.blocks"},
           fmt::format("\"none\" or \"max\" with more than {} blocks", kMostGatBlocksSideBySide),
           "set gat.jumping = \"max\", or lower model.blocks");
    const bool on_edges = !config_.data.edge_inputs.empty();
    refuse(on_edges && !gat.edge_features, {"data.edge_inputs", "gat.edge_features"},
           "[] with gat.edge_features = false", "leave it out, or set gat.edge_features = true");
    refuse((on_mesh || on_edges) && gat.edge_features && gat.score == AttentionScore::gatv2,
           {"gat.edge_features", "gat.score"}, "false with gat.score = \"gatv2\"",
           "set gat.edge_features = false, or gat.score = \"gat\"");
    refuse(config_.data.world_radius > 0.0, {"data.world_radius", "model.name"},
           "0 with model.name = \"gat\", which takes one edge set",
           "set data.world_radius = 0, or model.name = \"mesh_graph_net\"");
    refuse(config_.ranks.partition != MeshPartition::none || config_.ranks.parts_in_turn > 1,
           {config_.ranks.partition != MeshPartition::none ? "ranks.partition" : "ranks.parts_in_turn",
            "model.name"},
           "whole meshes with model.name = \"gat\"",
           "set ranks.partition = \"none\" and ranks.parts_in_turn = 1, or model.name = "
           "\"mesh_graph_net\"");
  }

  void check_vgae() {
    const VgaeConfig& vgae = config_.model.vgae;
    const bool attends = vgae.encoder == VgaeEncoder::attention;
    refuse(!attends && vgae.heads != VgaeConfig().heads, {"vgae.heads", "vgae.encoder"},
           fmt::format("{} with vgae.encoder = \"convolution\", which has no heads", VgaeConfig().heads),
           "leave it out, or set vgae.encoder = \"attention\"");
    refuse(attends && config_.model.width % vgae.heads != 0, {"vgae.heads", "model.width"},
           fmt::format("a divisor of model.width = {}, which heads side by side share", config_.model.width),
           "change one of the two");
  }

  void check_types(const char* name, const std::vector<int64_t>& types) {
    if (!find_key(name)->applies_to(config_.task.name)) return;
    const int64_t classes = config_.data.node_types;
    const auto type = std::ranges::find_if(types, [&](int64_t one) { return one >= classes; });
    if (type == types.end()) return;
    refuse(true, {name, "data.node_types"}, fmt::format("node types below data.node_types = {}", classes),
           "raise data.node_types or remove that type", std::to_string(*type));
  }

  void check_targets() {
    const bool links = config_.task.name == TaskName::link_reconstruction;
    refuse(links && !config_.data.targets.empty(), {"data.targets", "task.name"},
           "[] with task.name = \"link_reconstruction\", which reconstructs links", "remove it");
    refuse(links && !config_.data.edge_inputs.empty(), {"data.edge_inputs", "task.name"},
           "[] with task.name = \"link_reconstruction\", which reads other edges than the data's",
           "remove it");
    refuse(!links && config_.model.name == ModelName::vgae, {"model.name", "task.name"},
           fmt::format("another model with task.name = \"{}\": vgae reconstructs links",
                       name_of(config_.task.name)),
           "set task.name = \"link_reconstruction\", or another model.name");
    refuse(!links && config_.data.targets.empty(), {"data.targets"}, "at least 1 field", "name one");
  }

  void check_noise() {
    const TrainConfig& train = config_.train;
    const std::vector<std::string>& inputs = config_.data.inputs;
    const std::vector<std::string>& targets = config_.data.targets;
    const bool in_time = find_key("unroll.steps")->applies_to(config_.task.name);
    refuse((train.noise > 0 || !train.field_noise.empty()) && config_.data.noise_types.empty(),
           {"train.noise", "data.noise_types"}, "0 where data.noise_types is empty",
           "set train.noise = 0 or name node types in data.noise_types");
    for (const FieldNumber& number : train.field_noise) {
      const bool read =
          contains(inputs, number.field) || (in_time && number.field == config_.data.world_position);
      refuse(read && in_time && !contains(targets, number.field), {"train.noise", "data.targets"},
             fmt::format("fields among data.targets = [{}], as other fields get no noise",
                         fmt::join(targets, ", ")),
             "remove it", toml_quoted(number.field));
      refuse(!read, {"train.noise", "data.inputs"},
             fmt::format("fields among data.inputs = [{}]", fmt::join(inputs, ", ")),
             "remove it, or add it to data.inputs", toml_quoted(number.field));
    }
  }

  void check_loss() {
    const LossConfig& loss = config_.loss;
    const std::vector<std::string>& targets = config_.data.targets;
    for (const FieldNumber& number : loss.field_weights)
      refuse_other_target("loss.field_weights", number.field);
    Keys types;
    for (const int64_t type : config_.data.predicted_types) types.push_back(std::to_string(type));
    for (const FieldNumber& number : loss.type_weights) {
      refuse(!contains(types, number.field), {"loss.type_weights", "data.predicted_types"},
             fmt::format("node types among data.predicted_types = [{}]", fmt::join(types, ", ")),
             "remove it, or add it to data.predicted_types", toml_quoted(number.field));
    }
    const auto all_zero = [](double all, const std::vector<FieldNumber>& numbers, size_t names) {
      if (numbers.empty()) return all == 0.0;
      return numbers.size() == names &&
             std::ranges::all_of(numbers, [](const FieldNumber& n) { return n.value == 0.0; });
    };
    const bool no_field = all_zero(loss.weight, loss.field_weights, targets.size());
    refuse(no_field || all_zero(loss.type_weight, loss.type_weights, types.size()),
           {no_field ? "loss.field_weights" : "loss.type_weights"}, "a weight above 0", "set it to 1",
           "0 of all");
  }

  void check_distill() {
    const DistillConfig& distill = config_.distill;
    const bool taught = !distill.teacher.empty();
    for (const char* name : {"distill.alpha", "distill.temperature", "distill.offload", "distill.cache"}) {
      const std::string unset = toml_literal(*find_key(name), Config{});
      refuse(!taught && toml_literal(*find_key(name), config_) != unset, {name, "distill.teacher"},
             unset + " where distill.teacher is empty", "name a teacher, or leave it out");
    }
    refuse(taught && config_.unroll.steps > 1, {"distill.teacher", "unroll.steps"},
           "\"\" with unroll.steps above 1", "set unroll.steps = 1, or leave out the teacher");
    refuse(taught && config_.ranks.parts_in_turn > 1, {"distill.teacher", "ranks.parts_in_turn"},
           "\"\" with ranks.parts_in_turn above 1", "set ranks.parts_in_turn = 1, or leave out the teacher");
    refuse(distill.offload != OffloadTo::none && !distill.cache.empty(), {"distill.offload", "distill.cache"},
           "\"none\" with distill.cache, which keeps no teacher in memory", "leave out one of the two");
    const bool noisy = config_.train.noise > 0 || !config_.train.field_noise.empty();
    refuse(taught && !distill.cache.empty() && noisy, {"distill.cache", "train.noise"},
           "\"\" with train.noise, which is drawn anew for each use of a sample",
           "set train.noise = 0, or leave out distill.cache");
  }

  void check_curriculum() {
    const CurriculumConfig& curriculum = config_.curriculum;
    if (curriculum.score == CurriculumScore::none) {
      for (const char* name : {"curriculum.model", "curriculum.chunk", "curriculum.percentile",
                               "curriculum.ratio", "curriculum.refresh_epochs"})
        refuse_set(name, "curriculum.score", "\"none\"");
      return;
    }
    if (curriculum.score == CurriculumScore::model) {
      refuse(curriculum.model.empty(), {"curriculum.model", "curriculum.score"},
             "a checkpoint, or the folder of a run, with curriculum.score = \"model\"",
             "name one, or set curriculum.score = \"loss\"");
      refuse_set("curriculum.refresh_epochs", "curriculum.score", "\"model\"");
    } else {
      refuse_set("curriculum.model", "curriculum.score", "\"loss\"");
    }
    refuse(curriculum.score == CurriculumScore::loss && learns_normalizers(config_),
           {"curriculum.score", "normalize.mode"},
           "\"model\" with normalize.mode = \"online\", whose normalisers have seen no sample when scores "
           "are made",
           "set normalize.mode = \"dataset\", or name a curriculum.model");
    constexpr const char* kPair = "2 numbers, of the first epoch and of the last";
    refuse(curriculum.percentile.size() != 2, {"curriculum.percentile"}, kPair, "name both");
    refuse(curriculum.ratio.size() != 2, {"curriculum.ratio"}, kPair, "name both");
    constexpr int64_t kMostEpochs = 1'000'000;
    refuse(config_.train.epochs < 1 || config_.train.epochs > kMostEpochs,
           {"train.epochs", "curriculum.score"},
           fmt::format("1 to {} with a curriculum, which changes over the epochs", kMostEpochs),
           "set it, or leave out curriculum.score");
    refuse(config_.train.batch_nodes > 0, {"train.batch_nodes", "curriculum.score"},
           "0 with a curriculum, whose epochs have numbers of batches that are known from the start",
           "set train.batch, or leave out curriculum.score");
  }

  /// Of a key that means nothing where another has a value.
  void refuse_set(const char* name, const char* other, std::string_view value) {
    const std::string unset = toml_literal(*find_key(name), Config{});
    refuse(toml_literal(*find_key(name), config_) != unset, {name, other},
           fmt::format("{} where {} = {}", unset, other, value),
           fmt::format("leave it out, or set another {}", other));
  }

  void refuse_other_target(const char* key, const std::string& field) {
    refuse(!contains(config_.data.targets, field), {key, "data.targets"},
           fmt::format("fields among data.targets = [{}]", fmt::join(config_.data.targets, ", ")),
           "remove it, or add it to data.targets", toml_quoted(field));
  }

  /// Of keys that only validations read.
  void check_validation() {
    const TrainConfig& train = config_.train;
    refuse(train.patience > 0 && train.validate_every == 0, {"train.patience", "train.validate_every"},
           "0 with train.validate_every = 0", "set train.validate_every, whose validations are counted");
    const bool over_time = find_key("unroll.steps")->applies_to(config_.task.name);
    refuse(!over_time && train.validate_rollouts != 0 &&
               train.validate_rollouts != TrainConfig().validate_rollouts,
           {"train.validate_rollouts", "task.name"},
           fmt::format("0 with task.name = \"{}\", which has no time", name_of(config_.task.name)),
           "set train.validate_rollouts = 0, or another task.name");
    const bool rolls = train.best == "rollout" || !best_metric(config_).empty();
    refuse(over_time && rolls && train.validate_rollouts == 0, {"train.best", "train.validate_rollouts"},
           "\"auto\" or \"loss\" with train.validate_rollouts = 0",
           "set train.validate_rollouts = 1 or more");
    refuse(!over_time && train.best == "rollout", {"train.best", "task.name"},
           fmt::format("\"auto\" or \"loss\" with task.name = \"{}\", which has no time",
                       name_of(config_.task.name)),
           "set train.best = \"auto\", or another task.name");
  }

  /// Of data.history, which is more than 1, over time.
  void check_history() {
    const DataConfig& data = config_.data;
    const bool given = std::ranges::any_of(
        data.inputs, [&](const std::string& input) { return contains(data.targets, input); });
    refuse(!given, {"data.history", "data.inputs"},
           "1 where no input is a target: such inputs are given at the latest frame only",
           "set data.history = 1, or name a target in data.inputs");
    refuse(given && config_.unroll.steps > 1, {"data.history", "unroll.steps"},
           "1 with unroll.steps above 1, where earlier frames are the data's",
           "set data.history = 1 or unroll.steps = 1");
  }

  void check_mesh() {
    const DataConfig& data = config_.data;
    refuse(data.inputs.empty() && data.world_position.empty() && data.embed.empty(),
           {"data.inputs", "data.world_position"}, "at least one field, unless data.world_position names one",
           "name what the model knows of a frame; see meshgrad info");
    for (const int64_t type : data.kinematic_types) {
      refuse(contains(data.predicted_types, type), {"data.kinematic_types", "data.predicted_types"},
             "types that are not predicted", "remove it from one of the two lists", std::to_string(type));
    }
    refuse(config_.unroll.steps > 1 && !data.world_position.empty(), {"unroll.steps", "data.world_position"},
           "1 with data.world_position: edges are computed once a sample", "set unroll.steps = 1");
    if (data.world_radius <= 0.0) return;
    const auto short_of = [&](double period) { return period > 0.0 && 2.0 * data.world_radius >= period; };
    refuse(std::ranges::any_of(data.period, short_of), {"data.world_radius", "data.period"},
           "less than half of each period", "lower it: about the length of an edge is usual");
  }

  void check_value_targets() {
    for (const std::string& name : config_.data.value_targets)
      refuse_other_target("data.value_targets", name);
    refuse(config_.unroll.steps > 1, {"data.value_targets", "unroll.steps"},
           "[] with unroll.steps above 1, which adds up changes",
           "set unroll.steps = 1 or leave out data.value_targets");
    refuse(config_.loss.change_penalty > 0, {"data.value_targets", "loss.change_penalty"},
           "[] with loss.change_penalty, which counts predictions as changes",
           "set loss.change_penalty = 0 or leave out data.value_targets");
  }

  /// Of recompute.*, with one another and with graphs.
  void check_recompute() {
    const RecomputeConfig& recompute = config_.recompute;
    const bool captured = config_.graphs == GraphsMode::capture;
    refuse(recompute.mode == RecomputeMode::budget && recompute.budget == 0,
           {"recompute.budget", "recompute.mode"}, "a size, as recompute.mode is \"budget\"",
           "set recompute.budget = \"2GiB\", or recompute.mode = \"auto\"", "none");
    refuse(recompute.offload != OffloadTo::none && recompute.mode == RecomputeMode::off,
           {"recompute.offload", "recompute.mode"},
           "\"none\", as recompute.mode is \"off\" and nothing is saved for recomputation",
           "set recompute.mode = \"block\", or recompute.offload = \"none\"");
    refuse(recompute.offload == OffloadTo::file && captured, {"recompute.offload", "graphs"},
           "\"none\" or \"host\" with graphs = \"capture\", whose captured steps cannot read files",
           "set recompute.offload = \"host\" or graphs = \"off\"");
    refuse(recompute.check && captured, {"recompute.check", "graphs"},
           "false with graphs = \"capture\", whose captured steps cannot wait for a comparison",
           "set recompute.check = false or graphs = \"off\"");
  }

  /// Of numbers of steps and batches.
  void check_steps() {
    const TrainConfig& train = config_.train;
    refuse(train.epochs == 0 && config_.schedule.warmup_steps > train.steps,
           {"schedule.warmup_steps", "train.steps"}, fmt::format("at most train.steps = {}", train.steps),
           "lower schedule.warmup_steps or raise train.steps");
    refuse(
        train.batch_nodes > 0 && train.batch != TrainConfig().batch, {"train.batch", "train.batch_nodes"},
        fmt::format("{}, its default, with train.batch_nodes = {}", TrainConfig().batch, train.batch_nodes),
        "leave out one of the two");
    refuse(config_.plan.min_batch > config_.plan.max_batch, {"plan.min_batch", "plan.max_batch"},
           fmt::format("at most plan.max_batch = {}", config_.plan.max_batch),
           "lower plan.min_batch or raise plan.max_batch");
    const NormalizeConfig& normalize = config_.normalize;
    refuse(
        train.epochs == 0 && normalize.mode == NormalizeMode::online && normalize.warmup_steps >= train.steps,
        {"normalize.warmup_steps", "train.steps", "normalize.mode"},
        fmt::format("fewer than train.steps = {}", train.steps),
        "lower normalize.warmup_steps or set normalize.mode = \"dataset\"");
  }

  void check_schedule() {
    const ScheduleConfig& schedule = config_.schedule;
    const bool constant = schedule.name == RateCurve::constant;
    refuse(schedule.name == RateCurve::exponential && schedule.final_lr <= 0,
           {"schedule.final_lr", "schedule.name"}, "more than 0, as exponential decay never arrives there",
           "set schedule.final_lr = 1e-6 or schedule.name = \"cosine\"");
    refuse(schedule.restart_every > 0 && (constant || schedule.name == RateCurve::step),
           {"schedule.restart_every", "schedule.name"},
           "0 unless schedule.name is \"exponential\" or \"cosine\"",
           "set schedule.restart_every = 0 or schedule.name = \"cosine\"");
    refuse(!constant && schedule.final_lr > config_.optimizer.lr,
           {"schedule.final_lr", "optimizer.lr", "schedule.name"},
           fmt::format("at most optimizer.lr = {}", toml_number(config_.optimizer.lr)),
           "lower schedule.final_lr or set schedule.name = \"constant\"");
  }

  void check_optimizer() {
    const LossScaleRule& scale = config_.loss_scale.rule;
    refuse(scale.initial < scale.floor || scale.initial > scale.cap,
           {"loss_scale.initial", "loss_scale.floor", "loss_scale.cap"},
           fmt::format("a number from loss_scale.floor = {} to loss_scale.cap = {}", toml_number(scale.floor),
                       toml_number(scale.cap)),
           "move loss_scale.initial between the two, or the bounds apart");
    refuse(config_.train.free_gradients && config_.graphs == GraphsMode::capture,
           {"train.free_gradients", "graphs"},
           "false with graphs = \"capture\", whose recorded steps write to fixed addresses",
           "set train.free_gradients = false or graphs = \"off\"");
    refuse(config_.optimizer.momentum != 0 && config_.optimizer.name != OptimizerKind::sgd,
           {"optimizer.momentum", "optimizer.name"}, "0 unless optimizer.name is \"sgd\"",
           "use optimizer.beta1 with adam and adamw");
  }

  const Config& config_;
  std::vector<Contradiction> found_;
};

}  // namespace

std::vector<Contradiction> contradictions(const Config& config) { return Checks(config).run(); }

const Config& check_config(const Config& config) {
  const std::vector<Contradiction> found = contradictions(config);
  if (found.empty()) return config;
  const Contradiction& first = found.front();
  throw config_error(first.keys.front(), first.needed, first.got, first.fix);
}

}  // namespace meshgrad
