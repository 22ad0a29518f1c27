// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/config/config_choices.h>
#include <meshgrad/train/learn/config/config_table.h>

#include <algorithm>
#include <iterator>

namespace meshgrad {
namespace {

/// config.section.key for the member pointers Path.
template <auto... Path, class AnyConfig>
constexpr auto& at(AnyConfig& config) {
  return (config.*....*Path);
}

template <auto... Path>
constexpr auto member() {
  using Member = std::remove_reference_t<decltype(at<Path...>(std::declval<Config&>()))>;
  return MemberOf<Member>([](Config& config) -> Member& { return at<Path...>(config); });
}

template <auto... Path>
constexpr ChoiceKey choice(std::span<const Choice> choices) {
  using Enum = std::remove_reference_t<decltype(at<Path...>(std::declval<Config&>()))>;
  return {choices, [](const Config& config) { return static_cast<int>(at<Path...>(config)); },
          [](Config& config, int value) { at<Path...>(config) = static_cast<Enum>(value); }};
}

constexpr bool is_device(std::string_view text) {
  if (text == "auto" || text == "cpu" || text == "cuda") return true;
  constexpr std::string_view kIndexed = "cuda:";
  if (!text.starts_with(kIndexed)) return false;
  const std::string_view index = text.substr(kIndexed.size());
  return !index.empty() && index.size() <= 4 && index.find_first_not_of("0123456789") == text.npos;
}

template <auto Member>
constexpr auto loss_scale() {
  return member<&Config::loss_scale, &LossScaleConfig::rule, Member>();
}
constexpr double kLeastScale = 1e-12;
constexpr double kMostScale = 1e12;

constexpr int64_t kMany = 1'000'000'000'000;

constexpr ConfigSection kSections[] = {
    {"run", "Where a run lives and what it runs on"},
    {"task", "What a sample is, and what is learned from it"},
    {"data", "What is read, and what is predicted from what"},
    {"model", "The network"},
    {"train", "The training loop"},
    {"loss", "How errors of predictions count in training"},
    {"unroll", "Training through several predicted frames"},
    {"optimizer", "Optimizer"},
    {"schedule", "Learning-rate schedule"},
    {"loss_scale", "Dynamic loss scaling for precision = \"f16\""},
    {"normalize", "Means and standard deviations of inputs and targets"},
    {"recompute", "Activation recomputation and offloading"},
    {"memory", "Memory limit and caching allocator"},
    {"plan", "Bounds of train.batch = \"auto\" and of meshgrad plan"},
    {"evaluate", "Errors of a trained model"},
    {"rollout", "Rollouts: predictions fed back as inputs"},
    {"ranks", "Several processes that train one model"},
};

constexpr bool kFixed = true;

constexpr TaskName kTasksOverTime[] = {TaskName::mesh_dynamics};
constexpr TaskName kTasksOnMeshes[] = {TaskName::mesh_dynamics, TaskName::steady_field};
constexpr TaskName kTasksOnNodes[] = {TaskName::node_classification};
constexpr OnlyTasks kOnMeshes{kTasksOnMeshes, "has no mesh"};
constexpr OnlyTasks kOnNodes{kTasksOnNodes, "has no splits of nodes"};
constexpr OnlyTasks kOverTime{kTasksOverTime, "has no time"};
constexpr OnlyTasks kOfChanges{kTasksOverTime, "predicts values only"};

constexpr ConfigKey kKeys[] = {
    {"", "precision", choice<&Config::precision>(kPrecisions), "",
     "Storage type of activations and of the weights that kernels read; f64 is for checks on the CPU",
     kFixed},
    {"", "graphs", choice<&Config::graphs>(kGraphs), "",
     "Whether GPU kernels are launched one by one, or captured in a CUDA graph per size class of "
     "batches and replayed"},
    {"", "autotune", BoolKey{member<&Config::autotune>()}, "",
     "Whether GEMMs outside the fused GPU kernels are timed once per shape, with the choices "
     "cached in the user's cache folder"},
    {"", "tf32", BoolKey{member<&Config::tf32>()}, "",
     "Whether GEMMs of precision = \"f32\" on a GPU round their operands to TF32, which is faster and less "
     "exact",
     kFixed},
    {"", "wgmma", BoolKey{member<&Config::wgmma>()}, "",
     "Whether a GPU of compute capability 9.0 sums 16-bit weight gradients by products of warpgroups, "
     "which have not run on a GPU yet",
     kFixed},

    {"run", "dir", TextKey{member<&Config::run, &RunConfig::dir>(), true, "a folder"}, "",
     "Run directory: resolved configuration, metrics, checkpoints"},
    {"run", "seed", IntegerKey{member<&Config::run, &RunConfig::seed>(), 0, 1'000'000'000'000'000}, "",
     "Seed of initial weights, sample order and noise", kFixed},
    {"run", "device",
     TextKey{member<&Config::run, &RunConfig::device>(), true, "auto, cpu, cuda or cuda:N", is_device}, "",
     "Device to train on; auto takes the first usable GPU, else the CPU"},
    {"run", "threads", IntegerKey{member<&Config::run, &RunConfig::threads>(), 0, 4096}, "threads",
     "CPU threads, 0 for all available; results do not depend on it"},

    {"task", "name", choice<&Config::task, &TaskConfig::name>(kTasks), "",
     "mesh_dynamics predicts how fields change from frame to frame, steady_field fields of a mesh without "
     "time, node_classification the class of each node of one graph",
     kFixed},

    {"data", "path", TextKey{member<&Config::data, &DataConfig::path>()}, "",
     "Packed file written by `meshgrad convert`; required for training"},
    {"data", "verify", choice<&Config::data, &DataConfig::verify>(kVerify), "",
     "Whether a trajectory's checksum is verified when the run first reads it, or again in each epoch"},
    {"data", "train_split", TextKey{member<&Config::data, &DataConfig::train_split>(), true, "a split"}, "",
     "Split to train on", kFixed},
    {"data", "valid_split", TextKey{member<&Config::data, &DataConfig::valid_split>(), true, "a split"}, "",
     "Split to validate on"},
    {"data", "inputs", TextListKey{member<&Config::data, &DataConfig::inputs>(), 0}, "",
     "Fields given to the model at each node, in addition to the node type", kFixed},
    {"data", "targets", TextListKey{member<&Config::data, &DataConfig::targets>()}, "",
     "Fields that the model predicts", kFixed},
    {"data", "predict", choice<&Config::data, &DataConfig::predict>(kPredictions), "",
     "Predicted quantity of a target: the change x[t+1] - x[t], or the second change x[t+1] - 2 "
     "x[t] + x[t-1]",
     kFixed},
    {"data", "value_targets", TextListKey{member<&Config::data, &DataConfig::value_targets>(), 0}, "",
     "Targets predicted as their next value instead of its change, such as a stress that follows from "
     "positions",
     kFixed, &kOfChanges},
    {"data", "history", IntegerKey{member<&Config::data, &DataConfig::history>(), 1, 64}, "frames",
     "Latest frames given of inputs that are targets: the value at the latest (second_change: none) and the "
     "changes between them",
     kFixed, &kOverTime},
    {"data", "node_split", TextKey{member<&Config::data, &DataConfig::node_split>()}, "",
     "Node split that says which nodes are trained on, validated and tested; empty where the data have one",
     kFixed, &kOnNodes},
    {"data", "world_position", TextKey{member<&Config::data, &DataConfig::world_position>()}, "",
     "Field with the current positions of nodes, which edges then read beside the positions at rest; empty "
     "for meshes that do not move",
     kFixed, &kOnMeshes},
    {"data", "world_radius", FloatKey{member<&Config::data, &DataConfig::world_radius>(), 0, 1e30},
     "unit of positions",
     "World edges join nodes whose current positions are closer than this and that no edge joins; 0: none",
     kFixed, &kOnMeshes},
    {"data", "world_pairs", choice<&Config::data, &DataConfig::world_pairs>(kWorldPairs), "",
     "Nodes that world edges join: all, or only those of different types, such as an obstacle and a plate",
     kFixed, &kOnMeshes},
    {"data", "world_edges_per_node",
     FloatKey{member<&Config::data, &DataConfig::world_edges_per_node>(), 0.01, 1000}, "edges",
     "Most world edges of a mesh in training, for each of its nodes; a frame with more is an error that says "
     "how many",
     false, &kOnMeshes},
    {"data", "hops", IntegerKey{member<&Config::data, &DataConfig::hops>(), 1, 16}, "edges",
     "Edges join nodes that are at most so many edges of the mesh apart; relative positions tell how far",
     kFixed, &kOnMeshes},
    {"data", "period", FloatListKey{member<&Config::data, &DataConfig::period>(), 0, 1e30, 3},
     "unit of positions",
     "Length of a periodic domain along each axis, 0 where it is not; relative positions are to the nearest "
     "image",
     kFixed, &kOnMeshes},
    {"data", "node_types", IntegerKey{member<&Config::data, &DataConfig::node_types>(), 1, 65536}, "classes",
     "Number of node types, the width of their one-hot input", kFixed, &kOnMeshes},
    {"data", "predicted_types",
     IntegerListKey{member<&Config::data, &DataConfig::predicted_types>(), 0, 65535, 1}, "",
     "Node types in the loss, whose values a rollout predicts", kFixed, &kOnMeshes},
    {"data", "noise_types", IntegerListKey{member<&Config::data, &DataConfig::noise_types>(), 0, 65535}, "",
     "Node types whose inputs get training noise", kFixed, &kOnMeshes},
    {"data", "kinematic_types",
     IntegerListKey{member<&Config::data, &DataConfig::kinematic_types>(), 0, 65535}, "",
     "Node types that the data move: the model reads their next change of data.world_position, or without it "
     "of "
     "all targets",
     kFixed, &kOverTime},

    {"model", "name", choice<&Config::model, &ModelConfig::name>(kModels), "", "Architecture", kFixed},
    {"model", "width", IntegerKey{member<&Config::model, &ModelConfig::width>(), 1, 16384}, "channels",
     "Width of latent features and hidden layers", kFixed},
    {"model", "blocks", IntegerKey{member<&Config::model, &ModelConfig::blocks>(), 1, 1024}, "blocks",
     "Message-passing blocks between encoder and decoder", kFixed},
    {"model", "hidden_layers", IntegerKey{member<&Config::model, &ModelConfig::hidden_layers>(), 1, 7},
     "layers", "Hidden layers of each MLP", kFixed},
    {"model", "activation", choice<&Config::model, &ModelConfig::activation>(kActivations), "",
     "Activation function after each hidden layer", kFixed},
    {"model", "norm", choice<&Config::model, &ModelConfig::norm>(kNorms), "",
     "Normalisation of the output of each MLP except the decoder's", kFixed},
    {"model", "concat_order", choice<&Config::model, &ModelConfig::concat_order>(kConcatOrders), "",
     "Order of an edge MLP's concatenated inputs; weights trained with one order are wrong with "
     "the other",
     kFixed},
    {"model", "aggregate", choice<&Config::model, &ModelConfig::aggregate>(kAggregates), "",
     "Whether nodes sum edge features before or after the residual is added; weights trained with "
     "one are wrong with the other",
     kFixed},
    {"model", "path", choice<&Config::model, &ModelConfig::path>(kPaths), "",
     "Fused kernels, or one kernel per op as a check"},
    {"model", "keep_hidden", BoolKey{member<&Config::model, &ModelConfig::keep_hidden>()}, "",
     "Whether the fused path on the CPU saves hidden activations for backward, or recomputes them "
     "in less memory and more time"},

    {"train", "steps", IntegerKey{member<&Config::train, &TrainConfig::steps>(), 1, kMany}, "steps",
     "Optimizer steps"},
    {"train", "epochs", IntegerKey{member<&Config::train, &TrainConfig::epochs>(), 0, kMany}, "epochs",
     "Epochs, that is passes over the training split; 0 uses train.steps"},
    {"train", "batch", IntegerKey{member<&Config::train, &TrainConfig::batch>(), 1, 1'000'000, "auto"},
     "samples", "Samples per micro-batch; auto takes the largest that fits by the memory plan", kFixed},
    {"train", "accumulate", IntegerKey{member<&Config::train, &TrainConfig::accumulate>(), 1, 1'000'000},
     "micro-batches",
     "Micro-batches per optimizer step; their accumulated gradient equals that of one large batch", kFixed},
    {"train", "noise",
     FieldNumbersKey{member<&Config::train, &TrainConfig::noise>(),
                     member<&Config::train, &TrainConfig::field_noise>(), 0, 1e12},
     "unit of the field",
     "Standard deviation of the training noise added to inputs: of all fields, or {velocity = 0.02} of those "
     "named",
     kFixed},
    {"train", "noise_warmup_steps",
     IntegerKey{member<&Config::train, &TrainConfig::noise_warmup_steps>(), 0, kMany}, "steps",
     "Steps over which the training noise rises linearly from 0", kFixed},
    {"train", "gamma", FloatKey{member<&Config::train, &TrainConfig::gamma>(), 0, 1}, "",
     "Fraction of the input noise that the target corrects", kFixed, &kOnMeshes},
    {"train", "validate_every", IntegerKey{member<&Config::train, &TrainConfig::validate_every>(), 0, kMany},
     "steps", "Steps between validations, 0 for none"},
    {"train", "validate_samples",
     IntegerKey{member<&Config::train, &TrainConfig::validate_samples>(), 0, kMany}, "samples",
     "Samples per validation, 0 for the whole split"},
    {"train", "validate_rollouts",
     IntegerKey{member<&Config::train, &TrainConfig::validate_rollouts>(), 0, kMany}, "trajectories",
     "Trajectories of the validation split that each validation rolls out whole, 0 for none", !kFixed,
     &kOverTime},
    {"train", "best", choice<&Config::train, &TrainConfig::best>(kBests), "",
     "What the best checkpoint has the lowest of: the validation loss, or the relative error of the "
     "validation's rollouts",
     kFixed},
    {"train", "checkpoint_every",
     IntegerKey{member<&Config::train, &TrainConfig::checkpoint_every>(), 0, kMany}, "steps",
     "Steps between checkpoints, 0 for a checkpoint at the end only"},
    {"train", "keep_checkpoints",
     IntegerKey{member<&Config::train, &TrainConfig::keep_checkpoints>(), 1, 1'000'000}, "files",
     "Number of latest checkpoints kept, in addition to the best"},
    {"train", "stop_before_limit",
     IntegerKey{member<&Config::train, &TrainConfig::stop_before_limit>(), 0, kMany}, "seconds",
     "In a SLURM job: time before its end at which the run stops with a checkpoint and exit code 75, 0 for "
     "never"},
    {"train", "log_every", IntegerKey{member<&Config::train, &TrainConfig::log_every>(), 1, kMany}, "steps",
     "Steps between lines of metrics.jsonl"},
    {"train", "clip_norm", FloatKey{member<&Config::train, &TrainConfig::clip_norm>(), 0, 1e12}, "",
     "Largest global gradient norm, 0 for no clipping"},
    {"train", "free_gradients", BoolKey{member<&Config::train, &TrainConfig::free_gradients>()}, "",
     "Whether gradient memory is freed after each step, at the cost of an allocation per step"},
    {"train", "init", TextKey{member<&Config::train, &TrainConfig::init>(), false, "a checkpoint or a run"},
     "", "Checkpoint whose weights a new run starts from, or a run's folder; empty for random weights",
     kFixed},
    {"train", "init_normalizers", choice<&Config::train, &TrainConfig::init_normalizers>(kInitNormalizers),
     "",
     "With train.init: whether the checkpoint's normalisers are kept unchanged, or fitted again to this "
     "run's "
     "data",
     kFixed},
    {"train", "freeze", TextListKey{member<&Config::train, &TrainConfig::freeze>(), 0}, "",
     "Parameters that are not trained: names such as processor.0 or node_encoder; * matches any text",
     kFixed},
    {"train", "ema", FloatKey{member<&Config::train, &TrainConfig::ema>(), 0, 0.9999999}, "",
     "Decay of an exponential moving average of the weights, which validation and evaluate then use; 0 for "
     "none",
     kFixed},
    {"train", "patience", IntegerKey{member<&Config::train, &TrainConfig::patience>(), 0, kMany},
     "validations", "Validations without a new best after which the run ends early, 0 for never"},

    {"loss", "name", choice<&Config::loss, &LossConfig::name>(kLosses), "",
     "Cost of an error in standard deviations of its target: squared, Huber, absolute, or squared relative "
     "to "
     "the sample's target",
     kFixed, &kOnMeshes},
    {"loss", "delta", FloatKey{member<&Config::loss, &LossConfig::delta>(), 1e-6, 1e6}, "standard deviations",
     "Error above which the cost rises linearly (huber)", kFixed, &kOnMeshes},
    {"loss", "field_weights",
     FieldNumbersKey{member<&Config::loss, &LossConfig::weight>(),
                     member<&Config::loss, &LossConfig::field_weights>(), 0, 1e6, 1},
     "",
     "Factor of the cost of a field's errors: of all fields, or {pressure = 0.1}, where other fields have 1",
     kFixed, &kOnMeshes},
    {"loss", "type_weights",
     FieldNumbersKey{member<&Config::loss, &LossConfig::type_weight>(),
                     member<&Config::loss, &LossConfig::type_weights>(), 0, 1e6, 1, "node types"},
     "", "Weight of a node by its type in the mean: of all types, or {5 = 10}, where other types have 1",
     kFixed, &kOnMeshes},
    {"loss", "sample", FloatKey{member<&Config::loss, &LossConfig::sample>(), 1e-6, 1}, "",
     "Fraction of the predicted nodes whose errors count in training, drawn anew for each use of a sample",
     kFixed, &kOnMeshes},
    {"loss", "change_penalty", FloatKey{member<&Config::loss, &LossConfig::change_penalty>(), 0, 1e6}, "",
     "Factor of a second term: the squared predicted change, in standard deviations about the mean change",
     kFixed, &kOfChanges},

    {"unroll", "steps", IntegerKey{member<&Config::unroll, &UnrollConfig::steps>(), 1, 1000}, "frames",
     "Frames predicted one after another per sample, each from the previous prediction; gradients "
     "flow through all of them",
     kFixed, &kOverTime},

    {"optimizer", "name", choice<&Config::optimizer, &OptimizerConfig::name>(kOptimizers), "", "Algorithm",
     kFixed},
    {"optimizer", "lr", FloatKey{member<&Config::optimizer, &OptimizerConfig::lr>(), 0, 1000}, "",
     "Learning rate at the start of the schedule"},
    {"optimizer", "beta1", FloatKey{member<&Config::optimizer, &OptimizerConfig::beta1>(), 0, 0.9999999}, "",
     "Decay rate of the first moment (adam, adamw)"},
    {"optimizer", "beta2", FloatKey{member<&Config::optimizer, &OptimizerConfig::beta2>(), 0, 0.9999999}, "",
     "Decay rate of the second moment (adam, adamw)"},
    {"optimizer", "eps", FloatKey{member<&Config::optimizer, &OptimizerConfig::eps>(), 1e-30, 1}, "",
     "Added to the square root of the second moment (adam, adamw)"},
    {"optimizer", "weight_decay",
     FloatKey{member<&Config::optimizer, &OptimizerConfig::weight_decay>(), 0, 1000}, "",
     "L2 penalty on the weights (adam, sgd) or decoupled weight decay (adamw)"},
    {"optimizer", "momentum",
     FloatKey{member<&Config::optimizer, &OptimizerConfig::momentum>(), 0, 0.9999999}, "", "Momentum (sgd)"},

    {"schedule", "name", choice<&Config::schedule, &ScheduleConfig::name>(kSchedules), "",
     "Shape of the learning rate after warm-up"},
    {"schedule", "final_lr", FloatKey{member<&Config::schedule, &ScheduleConfig::final_lr>(), 0, 1000}, "",
     "Learning rate at the end of the decay (exponential, cosine, step)"},
    {"schedule", "warmup_steps",
     IntegerKey{member<&Config::schedule, &ScheduleConfig::warmup_steps>(), 0, kMany}, "steps",
     "Steps over which the learning rate rises linearly from 0"},
    {"schedule", "decay_steps",
     IntegerKey{member<&Config::schedule, &ScheduleConfig::decay_steps>(), 0, kMany}, "steps",
     "Step at which final_lr is reached, 0 for the last step"},
    {"schedule", "step_every", IntegerKey{member<&Config::schedule, &ScheduleConfig::step_every>(), 1, kMany},
     "steps", "Steps after which the learning rate is multiplied by step_factor, again and again (step)"},
    {"schedule", "step_factor", FloatKey{member<&Config::schedule, &ScheduleConfig::step_factor>(), 0, 1}, "",
     "Factor of each decrease, never below final_lr (step)"},
    {"schedule", "restart_every",
     IntegerKey{member<&Config::schedule, &ScheduleConfig::restart_every>(), 0, kMany}, "steps",
     "Steps until the learning rate returns to optimizer.lr and decays again, 0 for never (exponential, "
     "cosine)"},
    {"schedule", "restart_growth",
     FloatKey{member<&Config::schedule, &ScheduleConfig::restart_growth>(), 1, 1000}, "",
     "Factor by which each cycle between restarts is longer than the one before"},

    {"loss_scale", "initial", FloatKey{loss_scale<&LossScaleRule::initial>(), kLeastScale, kMostScale}, "",
     "Loss scale of the first step"},
    {"loss_scale", "growth", FloatKey{loss_scale<&LossScaleRule::growth>(), 1, 65536}, "",
     "Growth factor after `interval` steps without overflow, 1 for none"},
    {"loss_scale", "backoff", FloatKey{loss_scale<&LossScaleRule::backoff>(), 1e-6, 1}, "",
     "Factor applied when a gradient or the loss is not finite, 1 for none"},
    {"loss_scale", "interval", IntegerKey{loss_scale<&LossScaleRule::interval>(), 1, kMany}, "steps",
     "Steps without overflow before the scale grows"},
    {"loss_scale", "floor", FloatKey{loss_scale<&LossScaleRule::floor>(), kLeastScale, kMostScale}, "",
     "Smallest loss scale"},
    {"loss_scale", "cap", FloatKey{loss_scale<&LossScaleRule::cap>(), kLeastScale, kMostScale}, "",
     "Largest loss scale"},
    {"loss_scale", "hysteresis", IntegerKey{loss_scale<&LossScaleRule::hysteresis>(), 1, kMany}, "steps",
     "Consecutive skipped steps before the scale is reduced"},
    {"loss_scale", "max_skips",
     IntegerKey{member<&Config::loss_scale, &LossScaleConfig::max_skips>(), 1, kMany}, "steps",
     "Consecutive skipped steps after which the run stops and reports the first non-finite value, "
     "in every precision"},

    {"normalize", "mode", choice<&Config::normalize, &NormalizeConfig::mode>(kNormalizeModes), "",
     "Statistics from the packed file, or accumulated during training", kFixed},
    {"normalize", "warmup_steps",
     IntegerKey{member<&Config::normalize, &NormalizeConfig::warmup_steps>(), 0, kMany}, "steps",
     "Steps that only accumulate statistics (online)", kFixed},
    {"normalize", "max_samples",
     IntegerKey{member<&Config::normalize, &NormalizeConfig::max_samples>(), 1, kMany}, "samples",
     "Samples after which statistics no longer change (online)"},

    {"recompute", "mode", choice<&Config::recompute, &RecomputeConfig::mode>(kRecomputeModes), "",
     "Parts of the model whose activations are recomputed in the backward pass instead of saved; "
     "gradients are bit-identical"},
    {"recompute", "every", IntegerKey{member<&Config::recompute, &RecomputeConfig::every>(), 1, 1024},
     "blocks", "Blocks per recomputed segment (every)"},
    {"recompute", "budget", SizeKey{member<&Config::recompute, &RecomputeConfig::budget>()}, "",
     "Memory for a micro-batch's forward and backward pass, without parameters, optimizer state "
     "and data (budget)"},
    {"recompute", "include", TextListKey{member<&Config::recompute, &RecomputeConfig::include>()}, "",
     "Stages that may be recomputed: encoder, processor, processor.0, decoder and so on; * matches"
     " any text"},
    {"recompute", "policy", choice<&Config::recompute, &RecomputeConfig::policy>(kKeepPolicies), "",
     "Whether a recomputed segment saves its inputs only, or also the outputs of GEMMs and fused "
     "calls"},
    {"recompute", "keep",
     TextListKey{member<&Config::recompute, &RecomputeConfig::keep>(), 0, &SavePolicy::names}, "",
     "Ops whose outputs a recomputed segment also saves"},
    {"recompute", "offload", choice<&Config::recompute, &RecomputeConfig::offload>(kOffloads), "",
     "Where the tensors saved for recomputation are offloaded: nowhere, to host memory (GPU), or "
     "to a file (CPU)"},
    {"recompute", "offload_dir", TextKey{member<&Config::recompute, &RecomputeConfig::offload_dir>()}, "",
     "Folder of the offload file, which is deleted when the process ends; empty for the run "
     "directory"},
    {"recompute", "segments", choice<&Config::recompute, &RecomputeConfig::segments>(kSegmentUnits), "",
     "Recomputed unit when unroll.steps is above 1: blocks within each frame, whole frames, or "
     "runs of sqrt(unroll.steps) frames"},
    {"recompute", "check", BoolKey{member<&Config::recompute, &RecomputeConfig::check>()}, "",
     "Whether recomputed values are compared bit by bit with the first run; slow, for debugging"},

    {"memory", "limit", SizeKey{member<&Config::memory, &AllocatorOptions::memory_limit>()}, "",
     "Memory that a run may map, empty for no limit; can simulate a smaller GPU"},
    {"memory", "expandable_segments",
     BoolKey{member<&Config::memory, &AllocatorOptions::expandable_segments>()}, "",
     "Whether the heap is one growing range of virtual addresses; false for libraries that cannot "
     "register mapped memory"},
    {"memory", "garbage_collection_threshold",
     FloatKey{member<&Config::memory, &AllocatorOptions::garbage_collection_threshold>(), 0.0, 1.0}, "",
     "Fraction of the limit above which cached memory is released before more is mapped, 0 to "
     "release only when memory runs short"},
    {"memory", "release_cached_every",
     IntegerKey{member<&Config::memory, &AllocatorOptions::release_cached_every>(), 0, kMany}, "steps",
     "Steps between releases of cached memory, 0 for never; for programs that share the device"},
    {"memory", "plan_steps", BoolKey{member<&Config::memory, &AllocatorOptions::plan_steps>()}, "",
     "Whether repeated batch sizes reuse precomputed offsets for their allocations, so that less "
     "memory is reserved"},
    {"memory", "history", IntegerKey{member<&Config::memory, &AllocatorOptions::history>(), 0, kMaxHistory},
     "events", "Allocator events to record and write to memory/ in the run directory, 0 for none"},

    {"plan", "target_utilization",
     FloatKey{member<&Config::plan, &PlanConfig::target_utilization>(), 0.01, 1.0}, "",
     "Fraction of the memory that a step may use; the rest is room for the allocator's cache"},
    {"plan", "min_batch", IntegerKey{member<&Config::plan, &PlanConfig::min_batch>(), 1, 1'000'000},
     "samples", "Smallest batch; a run that cannot fit it does not start"},
    {"plan", "max_batch", IntegerKey{member<&Config::plan, &PlanConfig::max_batch>(), 1, 1'000'000},
     "samples", "Largest batch to plan for, even if more would fit"},

    {"evaluate", "horizons",
     IntegerListKey{member<&Config::evaluate, &EvaluateConfig::horizons>(), 1, 1'000'000, 1}, "steps",
     "Lengths of rollouts over whose steps evaluate reports errors, in addition to whole trajectories", false,
     &kOnMeshes},

    {"rollout", "boundary", choice<&Config::rollout, &RolloutConfig::boundary>(kBoundaries), "",
     "Values at nodes that are not predicted: from the data at each frame, or held at the initial "
     "frame",
     false, &kOnMeshes},
    {"rollout", "steps", IntegerKey{member<&Config::rollout, &RolloutConfig::steps>(), 0, kMany}, "frames",
     "Predicted frames, 0 for the length of the trajectory", false, &kOnMeshes},
    {"rollout", "format", choice<&Config::rollout, &RolloutConfig::format>(kFormats), "",
     "File format of a rollout", false, &kOnMeshes},

    {"ranks", "timeout", IntegerKey{member<&Config::ranks, &RanksConfig::timeout>(), 1, 1'000'000}, "seconds",
     "Time that a rank waits for a message of another before the run ends with an error"},
    {"ranks", "reduction", choice<&Config::ranks, &RanksConfig::reduction>(kReductions), "",
     "Order in which gradients are added: fast, or ordered sample by sample, for the same bits on any number "
     "of ranks"},
    {"ranks", "partition", choice<&Config::ranks, &RanksConfig::partition>(kPartitions), "",
     "Computes each mesh on all ranks, in parts cut by recursive coordinate bisection, METIS or a file; "
     "none: "
     "each rank takes whole samples",
     false, &kOnMeshes},
    {"ranks", "partition_file", TextKey{member<&Config::ranks, &RanksConfig::partition_file>()}, "",
     "With ranks.partition = \"file\": a text file with the rank of each node, one a line, as METIS writes "
     "it",
     false, &kOnMeshes},
    {"ranks", "parts_in_turn", IntegerKey{member<&Config::ranks, &RanksConfig::parts_in_turn>(), 1, 65536},
     "",
     "Parts of each mesh that one process computes in turn, for meshes that do not fit; values wait in host "
     "memory",
     false, &kOnMeshes},
    {"ranks", "sum_alone", BoolKey{member<&Config::ranks, &RanksConfig::sum_alone>()}, "",
     "One rank, too, sums gradients by the operation of several, such as NCCL's: tests it on one GPU"},
};

}  // namespace

std::span<const ConfigKey> config_keys() { return kKeys; }

std::span<const ConfigSection> config_sections() { return kSections; }

bool ConfigKey::applies_to(TaskName task) const {
  return only == nullptr || std::ranges::find(only->tasks, task) != only->tasks.end();
}

std::string_view name_of(TaskName task) {
  return std::ranges::find(kTasks, static_cast<int>(task), &Choice::value)->name;
}

std::string full_name(const ConfigKey& key) {
  std::string name(key.section);
  if (!name.empty()) name += '.';
  return name += key.name;
}

std::string changed_fixed_key(const Config& saved, const Config& config) {
  for (const ConfigKey& key : kKeys) {
    if (!key.fixed || toml_literal(key, saved) == toml_literal(key, config)) continue;
    const std::string name = full_name(key);
    const bool unused = name == "normalize.warmup_steps" && config.normalize.mode == NormalizeMode::dataset;
    if (!unused) return name;
  }
  return "";
}

const ConfigKey* find_key(std::string_view name) {
  for (const ConfigKey& key : kKeys) {
    if (full_name(key) == name) return &key;
  }
  return nullptr;
}

}  // namespace meshgrad
