// SPDX-License-Identifier: Apache-2.0
// The configuration of a run: plain structs that mirror the sections of a TOML file. Every key, with its
// range, unit and meaning, is listed once, in config_table.cpp; docs/config.md is generated from it.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/kernels/activation.h>
#include <meshgrad/kernels/loss_form.h>
#include <meshgrad/kernels/step_state.h>
#include <meshgrad/nn/gat.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/nn/vgae.h>

#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

enum class Prediction : uint8_t {
  change,        ///< x[t+1] - x[t]
  second_change  ///< x[t+1] - 2 x[t] + x[t-1]
};
enum class ModelName : uint8_t { mesh_graph_net, gat, vgae };
enum class NormalizeMode : uint8_t { dataset, online, none };
/// Normalisers of a run with train.init: those of the checkpoint, unchanged, or statistics of the run's own
/// data.
enum class InitNormalizers : uint8_t { keep, refit };
enum class RecomputeMode : uint8_t { off, block, every, sqrt, budget, automatic };
enum class OffloadTo : uint8_t { none, host, file };
/// The unit that unrolled training recomputes as a whole.
enum class SegmentUnit : uint8_t { block, frame, sequence };
enum class GraphsMode : uint8_t { off, capture };
enum class RolloutBoundary : uint8_t { data, initial };
/// How the gradients of several ranks are added: as is quickest, or sample by sample in the window's order,
/// so that the sum does not depend on the number of ranks.
enum class RankReduction : uint8_t { fast, ordered };
/// Whether the ranks compute each mesh together, and how it is then cut into parts.
enum class MeshPartition : uint8_t { none, rcb, metis, file };

struct RunConfig {
  std::string dir = "runs/default";
  int64_t seed = 0;
  std::string device = "auto";  ///< for `resolve_device`
  int64_t threads = 0;          ///< 0: all that are available
};

/// When the checksum of a trajectory is verified: at its first use, or at the first of each epoch.
enum class DataVerify : uint8_t { once, epoch };

/// Which nodes world edges join.
enum class WorldPairs : uint8_t { all, other_type };

struct DataConfig {
  std::string path;
  DataVerify verify = DataVerify::once;
  std::string train_split = "train";
  std::string valid_split = "valid";
  std::vector<std::string> inputs = {"velocity"};
  std::vector<std::string> embed;        ///< identifiers of nodes, each with a row of a trained table
  int64_t identifiers = 0;               ///< rows of each table; 0: as many as the training split has
  std::vector<std::string> edge_inputs;  ///< fields on edges, read after relative positions
  std::vector<std::string> targets = {"velocity"};
  Prediction predict = Prediction::change;
  std::vector<std::string> value_targets;  ///< predicted as they are, instead of `predict`
  int64_t history = 1;
  int64_t classes = 0;         ///< of a label; 0: as many as the data have
  double link_valid = 0.05;    ///< share of one graph's links that are validated on
  double link_test = 0.1;      ///< likewise, tested on
  int64_t link_seed = 0;       ///< of that split, and of pairs without a link
  std::string node_split;      ///< which one divides the nodes of a graph; empty: the only one
  std::string world_position;  ///< the field that is the current position; empty: meshes do not move
  double world_radius = 0.0;   ///< of world edges, in the positions' unit; 0: there are none
  WorldPairs world_pairs = WorldPairs::all;
  double world_edges_per_node = 4.0;  ///< most of a mesh, in training
  int64_t hops = 1;
  std::vector<double> period;  ///< by axis, 0: not periodic; empty: none is
  int64_t node_types = 9;
  std::vector<int64_t> predicted_types = {0, 5};  ///< NORMAL and OUTFLOW
  std::vector<int64_t> noise_types = {0};
  std::vector<int64_t> kinematic_types;  ///< their next values are known from the data
};

enum class TaskName : uint8_t {
  mesh_dynamics,
  steady_field,
  node_classification,
  graph_regression,
  graph_classification,
  link_reconstruction
};

struct TaskConfig {
  TaskName name = TaskName::mesh_dynamics;
};

/// Of model.name = "gat" alone.
struct GatConfig {
  int64_t heads = 4;
  AttentionScore score = AttentionScore::gat;
  bool self_edges = true;
  bool concatenate = true;
  bool edge_features = true;
  GatDecoder decoder = GatDecoder::mlp;
  int64_t output_heads = 1;
  Jumping jumping = Jumping::none;
  double dropout = 0.0;
  double attention_dropout = 0.0;
};

/// Of model.name = "vgae" alone.
struct VgaeConfig {
  VgaeEncoder encoder = VgaeEncoder::convolution;
  int64_t heads = 4;  ///< of the attention encoder's layers
  int64_t latent = 16;
  double kl_weight = 1.0;
  double feature_weight = 0.0;  ///< 0: features are not decoded
  int64_t pairs = 0;            ///< of each kind, drawn for each use of a graph; 0: all pairs
};

/// What models share, and what one of them alone reads. The options of the one that `name` names are made
/// from it.
struct ModelConfig {
  ModelName name = ModelName::mesh_graph_net;
  int64_t width = 128;
  int64_t blocks = 15;
  int64_t hidden_layers = 2;
  int64_t embedding = 16;  ///< columns of a row of data.embed
  Activation activation = Activation::relu;
  Norm norm = Norm::layer;
  ConcatOrder concat_order = ConcatOrder::sender_receiver_edge;
  AggregateOrder aggregate = AggregateOrder::before_residual;
  EdgeReduce reduce = EdgeReduce::sum;
  GraphPool pool = GraphPool::mean;  ///< of targets on graphs
  int64_t slices = 0;                ///< 0: no slice layers
  int64_t slices_every = 5;          ///< blocks
  int64_t slice_heads = 8;
  ComputePath path = ComputePath::fused;
  bool keep_hidden = true;
  GatConfig gat = {};
  VgaeConfig vgae = {};
};

/// For model.name = "mesh_graph_net".
MeshGraphNetOptions mesh_graph_net_options(const ModelConfig& config);
/// For model.name = "gat": a head has model.width columns, or its share of them where heads lie side by side.
GatOptions gat_options(const ModelConfig& config);
/// ParameterSet::conventions of the model that `name` names.
std::string parameter_conventions(const ModelConfig& config);
/// For model.name = "vgae".
VgaeOptions vgae_options(const ModelConfig& config);
/// Whether the model draws random numbers in training, and so needs batches with node_keys.
bool draws_by_node(const ModelConfig& config);
/// Whether nodes of a graph exchange what they know other than along edges, so that the model needs batches
/// with graph_starts.
bool reads_graph_starts(const ModelConfig& config);

/// train.batch = "auto": as many as fit (see plan.h); a run's resolved configuration has the number.
inline constexpr int64_t kAutoBatch = 0;

/// A number for one of the data's fields.
struct FieldNumber {
  std::string field;
  double value = 0;
  bool operator==(const FieldNumber&) const = default;
};

/// How the error of a prediction counts. relative_l2: the squared error of a sample over the square of its
/// target.
enum class LossName : uint8_t { mse, huber, l1, relative_l2 };

/// loss.class_weights = "balanced".
inline const std::vector<double> kBalancedWeights{0.0};

struct LossConfig {
  LossName name = LossName::mse;
  double delta = 1.0;                      ///< of huber, in standard deviations of the target
  double weight = 1.0;                     ///< of all fields
  std::vector<FieldNumber> field_weights;  ///< of these fields, of others 1
  double type_weight = 1.0;                ///< of all node types
  std::vector<FieldNumber> type_weights;   ///< of these node types, of others 1
  std::vector<double> class_weights;       ///< of each class; empty: 1
  double sample = 1.0;                     ///< fraction of the predicted nodes; 1: all
  double change_penalty = 0.0;             ///< 0: none
};

/// What a student learns from a teacher.
struct DistillConfig {
  std::string teacher;                  ///< a checkpoint, or a run's folder; empty: none
  double alpha = 0.7;                   ///< share of the teacher in the loss
  double temperature = 4.0;             ///< of classes
  OffloadTo offload = OffloadTo::none;  ///< where its weights are between two uses; no file
  std::string cache;  ///< a file with the teacher's predictions; empty: it predicts in each step
};

/// By what training samples are scored: not at all, by the run's own model, or by another.
enum class CurriculumScore : uint8_t { none, loss, model };

/// Which samples an epoch draws. Pairs are of the first epoch and of the last; between them they change
/// linearly.
struct CurriculumConfig {
  CurriculumScore score = CurriculumScore::none;
  std::string model;    ///< a checkpoint, or a run's folder, of CurriculumScore::model
  int64_t chunk = 500;  ///< samples
  std::vector<double> percentile = {75, 95};
  std::vector<double> ratio = {1, 10};
  int64_t refresh_epochs = 10;
};

struct TrainConfig {
  int64_t steps = 100000;
  int64_t epochs = 0;       ///< 0: `steps` decides
  int64_t batch = 2;        ///< of samples, unless batch_nodes says how many nodes
  int64_t batch_nodes = 0;  ///< 0: `batch` decides
  int64_t accumulate = 1;
  double noise = 0.02;                   ///< of all fields, or 0 with field_noise
  std::vector<FieldNumber> field_noise;  ///< of these fields, of others none
  int64_t noise_warmup_steps = 0;
  double gamma = 1.0;
  int64_t validate_every = 1000;  ///< 0: never
  int64_t validate_samples = 50;  ///< 0: the whole split
  int64_t validate_rollouts = 2;  ///< 0: none; of tasks without time none
  double validate_share = 0.1;    ///< of a run's time; 1: no limit
  /// What the best checkpoint has the lowest of, in validation: "loss", the error of one prediction;
  /// "rollout", that of rollouts; "auto", of rollouts where there are any. Else a metric, of which it has the
  /// best.
  std::string best = "auto";
  int64_t checkpoint_every = 1000;  ///< 0: only at the end
  int64_t keep_checkpoints = 2;
  int64_t stop_before_limit = 120;  ///< seconds; 0: off
  int64_t log_every = 10;
  double clip_norm = 1.0;  ///< 0: off
  std::string init;        ///< a checkpoint, or a run's folder; empty: random weights
  InitNormalizers init_normalizers = InitNormalizers::keep;
  std::vector<std::string> freeze;  ///< patterns of parameter names
  double ema = 0;                   ///< 0: off
  int64_t patience = 0;             ///< validations; 0: off
  bool free_gradients = false;
};

struct OptimizerConfig {
  OptimizerKind name = OptimizerKind::adam;
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
};

struct UnrollConfig {
  int64_t steps = 1;
};

/// The rule applies to f16; `max_skips` to every precision.
struct LossScaleConfig {
  LossScaleRule rule;
  int64_t max_skips = 50;
};

struct ScheduleConfig {
  RateCurve name = RateCurve::exponential;
  double final_lr = 1e-6;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  ///< 0: train.steps
  int64_t step_every = 10000;
  double step_factor = 0.1;
  int64_t restart_every = 0;  ///< 0: no restarts
  double restart_growth = 1;
};

struct NormalizeConfig {
  NormalizeMode mode = NormalizeMode::dataset;
  int64_t warmup_steps = 1000;
  int64_t max_samples = 1000000;
};

struct RecomputeConfig {
  RecomputeMode mode = RecomputeMode::off;
  int64_t every = 4;
  int64_t budget = 0;  ///< bytes
  std::vector<std::string> include = {"processor"};
  std::vector<std::string> keep = {"auto"};  ///< or "none", or ops, of SavePolicy::names()
  OffloadTo offload = OffloadTo::none;
  std::string offload_dir;  ///< empty: the run directory
  SegmentUnit segments = SegmentUnit::block;
  bool check = false;
};

/// Where the memory of a step is known from.
enum class PlanMode : uint8_t {
  predicted,  ///< "static": nothing is computed, and the device need not be there
  measured    ///< steps are run on the device
};

struct PlanConfig {
  PlanMode mode = PlanMode::predicted;
  double target_utilization = 0.9;
  int64_t min_batch = 1;
  int64_t max_batch = 4096;
};

struct EvaluateConfig {
  std::vector<int64_t> horizons = {1, 10, 50};
};

struct RolloutConfig {
  RolloutBoundary boundary = RolloutBoundary::data;
  int64_t steps = 0;  ///< 0: to the end of the trajectory
};

struct RanksConfig {
  int64_t timeout = 300;  ///< seconds
  RankReduction reduction = RankReduction::fast;
  MeshPartition partition = MeshPartition::none;
  std::string partition_file;  ///< of MeshPartition::file
  int64_t parts_in_turn = 1;
  bool sum_alone = false;  ///< also one rank sums gradients by the collective of several
};

struct Config {
  DType precision = DType::f32;  ///< a top-level key, as is graphs
  GraphsMode graphs = GraphsMode::off;
  bool autotune = false;
  bool tf32 = false;
  RunConfig run;
  TaskConfig task;
  DataConfig data;
  ModelConfig model;
  TrainConfig train;
  LossConfig loss;
  DistillConfig distill;
  CurriculumConfig curriculum;
  UnrollConfig unroll;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  LossScaleConfig loss_scale;
  NormalizeConfig normalize;
  RecomputeConfig recompute;
  AllocatorOptions memory;  ///< keys memory.*; memory_limit is memory.limit
  PlanConfig plan;
  EvaluateConfig evaluate;
  RolloutConfig rollout;
  RanksConfig ranks;
};

/// Reads TOML from `text`; `name` stands for the file in errors. Absent keys keep their defaults. `overrides`
/// are "section.key=value" and take precedence; a text value needs no quotes, a list may be "a,b". Throws
/// ConfigError, which lists every fault as `name:line: [key] needed X, got Y; fix: Z`: unknown keys (with the
/// nearest known one), wrong types (an integer is converted to a float, nothing else is converted), ranges,
/// choices, and contradictory keys. Any bytes give a Config or a ConfigError.
Config parse_config(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides = {});

/// `parse_config` of a configuration saved in a checkpoint, perhaps by an earlier version: keys that were
/// removed since are ignored.
Config parse_saved_config(const std::string& text, const std::string& name);

/// `parse_config` of a file. Throws ConfigError when it cannot be read.
Config load_config(const std::string& path, const std::vector<std::string>& overrides = {});

/// The resolved configuration as TOML, every key in the order of the table; `parse_config` of it gives
/// `config` back exactly.
std::string to_toml(const Config& config);

/// Whether the run keeps the normalisers of its train.init.
bool keeps_normalizers(const Config& config);
/// Whether normalisers are accumulated during training.
bool learns_normalizers(const Config& config);
/// The fix where a value is out of the precision's range: a precision with more; empty unless it is f16.
std::string_view wider_range_fix(DType precision);
/// Trajectories that a validation rolls out; 0 for tasks without time.
int64_t validated_rollouts(const Config& config);
/// Whether rollouts' errors choose the best checkpoint.
bool best_by_rollout(const Config& config);
/// The metric that chooses it (best_metric.h); empty: errors do.
std::string best_metric(const Config& config);

/// Throws ConfigError unless `config` names a data file, which only training needs.
void require_data_path(const Config& config);

}  // namespace meshgrad
#pragma GCC visibility pop
