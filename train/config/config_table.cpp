// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/config/config_table.h>

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

template <class Enum>
constexpr Choice is(std::string_view name, Enum value) {
  return {name, static_cast<int>(value)};
}

constexpr Choice kPrecisions[] = {is("f32", DType::f32), is("f64", DType::f64), is("f16", DType::f16),
                                  is("bf16", DType::bf16)};
constexpr Choice kGraphs[] = {is("off", GraphsMode::off), is("capture", GraphsMode::capture)};
constexpr Choice kPredictions[] = {is("change", Prediction::change),
                                   is("second_change", Prediction::second_change)};
constexpr Choice kModels[] = {is("mesh_graph_net", ModelName::mesh_graph_net)};
constexpr Choice kActivations[] = {is("relu", Activation::relu), is("silu", Activation::silu),
                                   is("gelu", Activation::gelu), is("tanh", Activation::tanh)};
constexpr Choice kNorms[] = {is("none", Norm::none), is("layer", Norm::layer), is("rms", Norm::rms)};
constexpr Choice kConcatOrders[] = {is("sender_receiver_edge", ConcatOrder::sender_receiver_edge),
                                    is("edge_sender_receiver", ConcatOrder::edge_sender_receiver)};
constexpr Choice kAggregates[] = {is("before_residual", AggregateOrder::before_residual),
                                  is("after_residual", AggregateOrder::after_residual)};
constexpr Choice kPaths[] = {is("fused", ComputePath::fused), is("op_by_op", ComputePath::op_by_op)};
constexpr Choice kOptimizers[] = {is("adam", OptimizerKind::adam), is("adamw", OptimizerKind::adamw),
                                  is("sgd", OptimizerKind::sgd)};
constexpr Choice kSchedules[] = {is("constant", ScheduleName::constant),
                                 is("exponential", ScheduleName::exponential),
                                 is("cosine", ScheduleName::cosine)};
constexpr Choice kNormalizeModes[] = {is("dataset", NormalizeMode::dataset),
                                      is("online", NormalizeMode::online)};
constexpr Choice kRecomputeModes[] = {
    is("off", RecomputeMode::off),       is("block", RecomputeMode::block),
    is("every", RecomputeMode::every),   is("sqrt", RecomputeMode::sqrt),
    is("budget", RecomputeMode::budget), is("auto", RecomputeMode::automatic)};
constexpr Choice kPolicies[] = {is("inputs", RecomputePolicy::inputs),
                                is("products", RecomputePolicy::products)};
constexpr Choice kOffloads[] = {is("none", OffloadTo::none), is("host", OffloadTo::host),
                                is("file", OffloadTo::file)};
constexpr Choice kSegmentUnits[] = {is("block", SegmentUnit::block), is("frame", SegmentUnit::frame),
                                    is("sequence", SegmentUnit::sequence)};
constexpr Choice kBoundaries[] = {is("data", RolloutBoundary::data), is("initial", RolloutBoundary::initial)};
constexpr Choice kFormats[] = {is("vtu", RolloutFormat::vtu)};

template <auto Member>
constexpr auto loss_scale() {
  return member<&Config::loss_scale, &LossScaleConfig::rule, Member>();
}
constexpr double kLeastScale = 1e-12;
constexpr double kMostScale = 1e12;

constexpr int64_t kMany = 1'000'000'000'000;

constexpr ConfigSection kSections[] = {
    {"run", "Where a run lives and what it runs on"},
    {"data", "What is read, and what is predicted from what"},
    {"model", "The network"},
    {"train", "The training loop"},
    {"unroll", "Predictions fed back as inputs while training"},
    {"optimizer", "How parameters follow gradients"},
    {"schedule", "The learning rate over the steps"},
    {"loss_scale", "What gradients are multiplied by on their way, with precision = \"f16\""},
    {"normalize", "Means and standard deviations of inputs and targets"},
    {"recompute", "Activations computed again instead of kept"},
    {"memory", "Bounds on memory, and how it is cached"},
    {"plan", "Bounds of train.batch = \"auto\" and of meshgrad plan"},
    {"rollout", "Predictions fed back as inputs"},
};

constexpr ConfigKey kKeys[] = {
    {"", "precision", choice<&Config::precision>(kPrecisions), "",
     "Type that activations and the weights they meet are stored in; masters and sums are f32 beside f16 and "
     "bf16; f64 is for checks on the CPU"},
    {"", "graphs", choice<&Config::graphs>(kGraphs), "",
     "Whether a GPU's kernels are launched one by one, or recorded once for each of a few batch sizes and "
     "replayed as a whole; pays most for small meshes, and keeps memory for each size"},
    {"", "autotune", BoolKey{member<&Config::autotune>()}, "",
     "Whether a GPU's matrix products that are not fused are measured once for each shape, and the choices "
     "kept "
     "in the user's cache folder; makes first steps slower, and later runs may sum in another order than the "
     "first"},

    {"run", "dir", TextKey{member<&Config::run, &RunConfig::dir>(), true, "a folder"}, "",
     "Folder of the run: resolved configuration, metrics and checkpoints"},
    {"run", "seed", IntegerKey{member<&Config::run, &RunConfig::seed>(), 0, 1'000'000'000'000'000}, "",
     "Seed of the initial weights, the order of samples and the noise"},
    {"run", "device",
     TextKey{member<&Config::run, &RunConfig::device>(), true, "auto, cpu, cuda or cuda:N", is_device}, "",
     "Device to train on; auto takes a GPU that is there and this build can use, else the CPU"},
    {"run", "threads", IntegerKey{member<&Config::run, &RunConfig::threads>(), 0, 4096}, "threads",
     "CPU threads, 0 for all that are available; results do not depend on it"},
    {"run", "pin", BoolKey{member<&Config::run, &RunConfig::pin>()}, "",
     "Whether each thread stays on a CPU of its own, of those that the process may use"},

    {"data", "path", TextKey{member<&Config::data, &DataConfig::path>()}, "",
     "Packed file written by `meshgrad convert`; needed to train"},
    {"data", "train_split", TextKey{member<&Config::data, &DataConfig::train_split>(), true, "a split"}, "",
     "Split to train on"},
    {"data", "valid_split", TextKey{member<&Config::data, &DataConfig::valid_split>(), true, "a split"}, "",
     "Split to validate on"},
    {"data", "inputs", TextListKey{member<&Config::data, &DataConfig::inputs>()}, "",
     "Fields that the model sees at each node, beside the node type"},
    {"data", "targets", TextListKey{member<&Config::data, &DataConfig::targets>()}, "",
     "Fields that the model predicts"},
    {"data", "predict", choice<&Config::data, &DataConfig::predict>(kPredictions), "",
     "What is learned of a target: x[t+1] - x[t], or x[t+1] - 2 x[t] + x[t-1]"},
    {"data", "node_types", IntegerKey{member<&Config::data, &DataConfig::node_types>(), 1, 65536}, "classes",
     "Number of node types, the width of their one-hot input"},
    {"data", "predicted_types",
     IntegerListKey{member<&Config::data, &DataConfig::predicted_types>(), 0, 65535, 1}, "",
     "Node types that enter the loss and that a rollout advances"},
    {"data", "noise_types", IntegerListKey{member<&Config::data, &DataConfig::noise_types>(), 0, 65535}, "",
     "Node types whose inputs get training noise"},

    {"model", "name", choice<&Config::model, &ModelConfig::name>(kModels), "", "Architecture"},
    {"model", "width", IntegerKey{member<&Config::model, &ModelConfig::width>(), 1, 16384}, "channels",
     "Width of the latent features and of the hidden layers"},
    {"model", "blocks", IntegerKey{member<&Config::model, &ModelConfig::blocks>(), 1, 1024}, "blocks",
     "Message-passing blocks between encoder and decoder"},
    {"model", "hidden_layers", IntegerKey{member<&Config::model, &ModelConfig::hidden_layers>(), 1, 7},
     "layers", "Hidden layers of each MLP"},
    {"model", "activation", choice<&Config::model, &ModelConfig::activation>(kActivations), "",
     "Function after each hidden layer"},
    {"model", "norm", choice<&Config::model, &ModelConfig::norm>(kNorms), "",
     "Normalisation at the end of each MLP but the decoder"},
    {"model", "concat_order", choice<&Config::model, &ModelConfig::concat_order>(kConcatOrders), "",
     "Order of an edge MLP's inputs; weights trained under one are wrong under the other"},
    {"model", "aggregate", choice<&Config::model, &ModelConfig::aggregate>(kAggregates), "",
     "Whether nodes sum the new edge features before or after the residual is added to them; weights trained "
     "under one are wrong under the other"},
    {"model", "path", choice<&Config::model, &ModelConfig::path>(kPaths), "",
     "Fused kernels, or one kernel an operation as a check"},
    {"model", "keep_hidden", BoolKey{member<&Config::model, &ModelConfig::keep_hidden>()}, "",
     "Whether the fused path keeps hidden activations for the backward pass; false computes them again and "
     "needs less memory. The fused kernels of a GPU never keep them"},

    {"train", "steps", IntegerKey{member<&Config::train, &TrainConfig::steps>(), 1, kMany}, "steps",
     "Optimizer steps"},
    {"train", "epochs", IntegerKey{member<&Config::train, &TrainConfig::epochs>(), 0, kMany}, "passes",
     "Passes over the training split, 0 for train.steps to decide; the last step takes the samples left"},
    {"train", "batch", IntegerKey{member<&Config::train, &TrainConfig::batch>(), 1, 1'000'000, "auto"},
     "samples",
     "Samples in a forward and backward pass; auto: as many as the plan says fit when the run starts"},
    {"train", "accumulate", IntegerKey{member<&Config::train, &TrainConfig::accumulate>(), 1, 1'000'000},
     "batches", "Batches whose gradients make one optimizer step, as if they were one large batch"},
    {"train", "noise", FloatKey{member<&Config::train, &TrainConfig::noise>(), 0, 1e12}, "unit of the field",
     "Standard deviation of the noise added to the inputs"},
    {"train", "gamma", FloatKey{member<&Config::train, &TrainConfig::gamma>(), 0, 1}, "",
     "Share of the noise that the target takes back"},
    {"train", "validate_every", IntegerKey{member<&Config::train, &TrainConfig::validate_every>(), 0, kMany},
     "steps", "Steps between validations, 0 for none"},
    {"train", "validate_samples",
     IntegerKey{member<&Config::train, &TrainConfig::validate_samples>(), 0, kMany}, "samples",
     "Samples of a validation, 0 for the whole split"},
    {"train", "checkpoint_every",
     IntegerKey{member<&Config::train, &TrainConfig::checkpoint_every>(), 0, kMany}, "steps",
     "Steps between checkpoints, 0 for one at the end"},
    {"train", "keep_checkpoints",
     IntegerKey{member<&Config::train, &TrainConfig::keep_checkpoints>(), 1, 1'000'000}, "files",
     "Latest checkpoints that are kept, beside the best"},
    {"train", "log_every", IntegerKey{member<&Config::train, &TrainConfig::log_every>(), 1, kMany}, "steps",
     "Steps between lines of metrics.jsonl"},
    {"train", "clip_norm", FloatKey{member<&Config::train, &TrainConfig::clip_norm>(), 0, 1e12}, "",
     "Global norm to which gradients are clipped, 0 for off"},
    {"train", "free_gradients", BoolKey{member<&Config::train, &TrainConfig::free_gradients>()}, "",
     "Whether the memory of gradients is given back after each step instead of kept; costs an allocation a "
     "step"},

    {"unroll", "steps", IntegerKey{member<&Config::unroll, &UnrollConfig::steps>(), 1, 1000}, "steps",
     "Predictions in a row that a sample is trained on, each made from what the one before it led to; the "
     "loss is that of all of them, and its gradients flow back through the state between them"},

    {"optimizer", "name", choice<&Config::optimizer, &OptimizerConfig::name>(kOptimizers), "", "Method"},
    {"optimizer", "lr", FloatKey{member<&Config::optimizer, &OptimizerConfig::lr>(), 0, 1000}, "",
     "Learning rate at the start of the schedule"},
    {"optimizer", "beta1", FloatKey{member<&Config::optimizer, &OptimizerConfig::beta1>(), 0, 0.9999999}, "",
     "Decay of the first moment (adam, adamw)"},
    {"optimizer", "beta2", FloatKey{member<&Config::optimizer, &OptimizerConfig::beta2>(), 0, 0.9999999}, "",
     "Decay of the second moment (adam, adamw)"},
    {"optimizer", "eps", FloatKey{member<&Config::optimizer, &OptimizerConfig::eps>(), 1e-30, 1}, "",
     "Added to the root of the second moment (adam, adamw)"},
    {"optimizer", "weight_decay",
     FloatKey{member<&Config::optimizer, &OptimizerConfig::weight_decay>(), 0, 1000}, "",
     "Added to the gradient times the weight (adam, sgd), or applied apart from it (adamw)"},
    {"optimizer", "momentum",
     FloatKey{member<&Config::optimizer, &OptimizerConfig::momentum>(), 0, 0.9999999}, "", "Momentum (sgd)"},

    {"schedule", "name", choice<&Config::schedule, &ScheduleConfig::name>(kSchedules), "",
     "Shape of the learning rate after the warm-up"},
    {"schedule", "final_lr", FloatKey{member<&Config::schedule, &ScheduleConfig::final_lr>(), 0, 1000}, "",
     "Learning rate at the end (exponential, cosine)"},
    {"schedule", "warmup_steps",
     IntegerKey{member<&Config::schedule, &ScheduleConfig::warmup_steps>(), 0, kMany}, "steps",
     "Steps over which the learning rate rises from 0"},
    {"schedule", "decay_steps",
     IntegerKey{member<&Config::schedule, &ScheduleConfig::decay_steps>(), 0, kMany}, "steps",
     "Step at which final_lr is reached, 0 for the last"},

    {"loss_scale", "initial", FloatKey{loss_scale<&LossScaleRule::initial>(), kLeastScale, kMostScale}, "",
     "Scale of the first step"},
    {"loss_scale", "growth", FloatKey{loss_scale<&LossScaleRule::growth>(), 1, 65536}, "",
     "Factor by which the scale rises after `interval` steps without an overflow, 1 for never"},
    {"loss_scale", "backoff", FloatKey{loss_scale<&LossScaleRule::backoff>(), 1e-6, 1}, "",
     "Factor by which it falls when a gradient or the loss is not finite, 1 for never"},
    {"loss_scale", "interval", IntegerKey{loss_scale<&LossScaleRule::interval>(), 1, kMany}, "steps",
     "Steps without an overflow after which it rises"},
    {"loss_scale", "floor", FloatKey{loss_scale<&LossScaleRule::floor>(), kLeastScale, kMostScale}, "",
     "It falls no further"},
    {"loss_scale", "cap", FloatKey{loss_scale<&LossScaleRule::cap>(), kLeastScale, kMostScale}, "",
     "It rises no further"},
    {"loss_scale", "hysteresis", IntegerKey{loss_scale<&LossScaleRule::hysteresis>(), 1, kMany}, "steps",
     "Skipped steps in a row at which it begins to fall; a step without an overflow starts the count anew"},
    {"loss_scale", "max_skips",
     IntegerKey{member<&Config::loss_scale, &LossScaleConfig::max_skips>(), 1, kMany}, "steps",
     "Skipped steps in a row that end the run with a report of the first value that is not finite; in every "
     "precision"},

    {"normalize", "mode", choice<&Config::normalize, &NormalizeConfig::mode>(kNormalizeModes), "",
     "Statistics of the packed file, or gathered while training"},
    {"normalize", "warmup_steps",
     IntegerKey{member<&Config::normalize, &NormalizeConfig::warmup_steps>(), 0, kMany}, "steps",
     "Steps that only gather statistics (online)"},
    {"normalize", "max_samples",
     IntegerKey{member<&Config::normalize, &NormalizeConfig::max_samples>(), 1, kMany}, "samples",
     "Samples after which statistics stand still (online)"},

    {"recompute", "mode", choice<&Config::recompute, &RecomputeConfig::mode>(kRecomputeModes), "",
     "Which parts of the model keep their inputs alone and are computed again in the backward pass, with the "
     "same gradients to the last bit: none, each block, every few blocks as one, as many as the root of "
     "their "
     "number, what is fastest within recompute.budget, or what is fastest within the memory there is; the "
     "last part is kept, as its backward pass comes at once"},
    {"recompute", "every", IntegerKey{member<&Config::recompute, &RecomputeConfig::every>(), 1, 1024},
     "blocks", "Blocks that are computed again together (every)"},
    {"recompute", "budget", SizeKey{member<&Config::recompute, &RecomputeConfig::budget>()}, "",
     "What a batch's forward and backward pass may take beside parameters, optimizer and data (budget)"},
    {"recompute", "include", TextListKey{member<&Config::recompute, &RecomputeConfig::include>()}, "",
     "What may be computed again: encoder, processor, processor.0, decoder and so on, * for any text"},
    {"recompute", "policy", choice<&Config::recompute, &RecomputeConfig::policy>(kPolicies), "",
     "What a part keeps: its inputs, or also its matrix products, so that gathers, norms and activations are "
     "redone and no product is; a fused call counts as one product"},
    {"recompute", "keep", TextListKey{member<&Config::recompute, &RecomputeConfig::keep>(), 0, &Keep::names},
     "",
     "Ops whose outputs a part keeps, too, so that they are not redone; what nothing would read is not kept"},
    {"recompute", "offload", choice<&Config::recompute, &RecomputeConfig::offload>(kOffloads), "",
     "Where what a part keeps waits until it is computed again: in the device's memory, in the host's (of a "
     "GPU), or in a file (on the CPU); copied meanwhile, and back before it is used"},
    {"recompute", "offload_dir", TextKey{member<&Config::recompute, &RecomputeConfig::offload_dir>()}, "",
     "Folder of that file, which has no name and is gone with the process; empty for the run's folder"},
    {"recompute", "segments", choice<&Config::recompute, &RecomputeConfig::segments>(kSegmentUnits), "",
     "With unroll.steps above 1, what is computed again as a whole: nothing but what recompute.mode says, "
     "within "
     "each frame that is predicted; also each frame; or also runs of as many frames as the root of their "
     "number"},
    {"recompute", "check", BoolKey{member<&Config::recompute, &RecomputeConfig::check>()}, "",
     "Whether what is computed again is compared to the first time, bit for bit; slow, for looking for "
     "faults"},

    {"memory", "limit", SizeKey{member<&Config::memory, &AllocatorOptions::memory_limit>()}, "",
     "Memory that a run may take, empty for no bound of its own; simulates a smaller card"},
    {"memory", "expandable_segments",
     BoolKey{member<&Config::memory, &AllocatorOptions::expandable_segments>()}, "",
     "Whether the heap is one range of addresses that grows; false takes separate segments, for libraries "
     "that "
     "cannot register mapped memory"},
    {"memory", "garbage_collection_threshold",
     FloatKey{member<&Config::memory, &AllocatorOptions::garbage_collection_threshold>(), 0.0, 1.0}, "",
     "Fraction of the limit above which unused memory is given back before more is taken, 0 for only when "
     "memory "
     "runs short"},
    {"memory", "release_cached_every",
     IntegerKey{member<&Config::memory, &AllocatorOptions::release_cached_every>(), 0, kMany}, "steps",
     "Unused memory is given back this often, 0 for never; for programs that share the device"},
    {"memory", "plan_steps", BoolKey{member<&Config::memory, &AllocatorOptions::plan_steps>()}, "",
     "Whether steps on batches whose sizes come again take their memory at places computed once, so that "
     "little more is mapped than lives at once"},
    {"memory", "history", IntegerKey{member<&Config::memory, &AllocatorOptions::history>(), 0, kMostHistory},
     "events", "Allocator events to keep and write to memory/ in the run's folder, 0 for none"},

    {"plan", "target_utilization",
     FloatKey{member<&Config::plan, &PlanConfig::target_utilization>(), 0.01, 1.0}, "",
     "Share of the memory that a step may take; the rest is for what the allocator keeps for reuse"},
    {"plan", "min_batch", IntegerKey{member<&Config::plan, &PlanConfig::min_batch>(), 1, 1'000'000},
     "samples", "A run whose batch would be smaller does not start"},
    {"plan", "max_batch", IntegerKey{member<&Config::plan, &PlanConfig::max_batch>(), 1, 1'000'000},
     "samples", "The most samples that are planned for, also where more fit"},

    {"rollout", "boundary", choice<&Config::rollout, &RolloutConfig::boundary>(kBoundaries), "",
     "Values at nodes that are not predicted: from the data at each step, or held at the initial state"},
    {"rollout", "steps", IntegerKey{member<&Config::rollout, &RolloutConfig::steps>(), 0, kMany}, "steps",
     "Steps of a rollout, 0 for the length of the trajectory"},
    {"rollout", "format", choice<&Config::rollout, &RolloutConfig::format>(kFormats), "",
     "Files that a rollout writes"},
};

}  // namespace

std::span<const ConfigKey> config_keys() { return kKeys; }

std::span<const ConfigSection> config_sections() { return kSections; }

std::string full_name(const ConfigKey& key) {
  std::string name(key.section);
  if (!name.empty()) name += '.';
  return name += key.name;
}

const ConfigKey* find_key(std::string_view name) {
  for (const ConfigKey& key : kKeys) {
    if (full_name(key) == name) return &key;
  }
  return nullptr;
}

}  // namespace meshgrad
