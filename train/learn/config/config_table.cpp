// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/config/config_choices.h>
#include <meshgrad/train/learn/config/config_uses.h>

#include <algorithm>
#include <iterator>

namespace meshgrad {
namespace {

using namespace choices;
using namespace uses;

/// The sections; the type of a key's member says which one it is in.
constexpr std::tuple kMembers{&Config::run,        &Config::task,     &Config::data,       &Config::model,
                              &Config::train,      &Config::loss,     &Config::distill,    &Config::unroll,
                              &Config::optimizer,  &Config::schedule, &Config::loss_scale, &Config::normalize,
                              &Config::recompute,  &Config::memory,   &Config::plan,       &Config::evaluate,
                              &Config::curriculum, &Config::rollout,  &Config::ranks};

template <class Section>
constexpr Section& section_of(Config& config) {
  if constexpr (std::is_same_v<Section, Config>) {
    return config;
  } else if constexpr (std::is_same_v<Section, LossScaleRule>) {
    return config.loss_scale.rule;
  } else if constexpr (std::is_same_v<Section, GatConfig>) {
    return config.model.gat;
  } else if constexpr (std::is_same_v<Section, VgaeConfig>) {
    return config.model.vgae;
  } else {
    return config.*std::get<Section Config::*>(kMembers);
  }
}

template <class T, class Section>
constexpr T& member_of(Config& config, T Section::*member) {
  return section_of<Section>(config).*member;
}

template <auto Member>
constexpr auto& at(Config& config) {
  return member_of(config, Member);
}

template <auto Member>
constexpr ChoiceKey choice(std::span<const Choice> choices) {
  return {choices, [](Config& config) { return static_cast<int>(at<Member>(config)); },
          [](Config& config, int value) {
            auto& member = at<Member>(config);
            member = static_cast<std::remove_reference_t<decltype(member)>>(value);
          }};
}

constexpr double kLeastScale = 1e-12;
constexpr double kMostScale = 1e12;

constexpr int64_t kMany = 1'000'000'000'000;

constexpr ConfigKey kKeys[] = {
    {"", "precision", choice<&Config::precision>(kPrecisions), "", kFixed,
     "Storage type of activations and of the weights that kernels read; f64 is for checks on the CPU"},
    {"", "graphs", choice<&Config::graphs>(kGraphs), "", kFree,
     "Whether GPU kernels are launched one by one, or captured in a CUDA graph per size class of batches and "
     "replayed"},
    {"", "autotune", BoolKey{at<&Config::autotune>}, "", kFree,
     "Whether GEMMs outside the fused GPU kernels are timed once per shape, with the choices cached in the "
     "user's cache folder"},
    {"", "tf32", BoolKey{at<&Config::tf32>}, "", kFixed,
     "Whether GEMMs of precision = \"f32\" on a GPU round their operands to TF32, which is faster and less "
     "exact"},

    {"run", "dir", TextKey{at<&RunConfig::dir>, true, "a folder"}, "", kFree,
     "Run directory: resolved configuration, metrics, checkpoints"},
    {"run", "seed", IntegerKey{at<&RunConfig::seed>, 0, 1'000'000'000'000'000}, "", kFixed,
     "Seed of initial weights, sample order and noise"},
    {"run", "device", TextKey{at<&RunConfig::device>, true, "auto, cpu, cuda or cuda:N", is_device}, "",
     kFree, "Device to train on; auto takes the first usable GPU, else the CPU"},
    {"run", "threads", IntegerKey{at<&RunConfig::threads>, 0, 4096}, "threads", kFree,
     "CPU threads, 0 for all available; results do not depend on it"},

    {"task", "name", choice<&TaskConfig::name>(kTasks), "", kFixed,
     "What is learned: changes of fields over time, steady fields, classes of one graph's nodes, or numbers, "
     "classes or links of graphs"},

    {"data", "path", TextKey{at<&DataConfig::path>}, "", kFree,
     "Packed file written by `meshgrad convert`; required for training"},
    {"data", "verify", choice<&DataConfig::verify>(kVerify), "", kFree,
     "Whether a trajectory's checksum is verified when the run first reads it, or again in each epoch"},
    {"data", "train_split", TextKey{at<&DataConfig::train_split>, true, "a split"}, "", kFixed,
     "Split to train on"},
    {"data", "valid_split", TextKey{at<&DataConfig::valid_split>, true, "a split"}, "", kFree,
     "Split to validate on"},
    {"data", "inputs", TextListKey{at<&DataConfig::inputs>, 0}, "", kFixed,
     "Fields given to the model at each node, in addition to the node type"},
    {"data", "embed", TextListKey{at<&DataConfig::embed>, 0}, "", kFixedOfIdentifiers,
     "Integer fields on nodes, identifiers from 0, of which each has a row in a table that is trained"},
    {"data", "identifiers", IntegerKey{at<&DataConfig::identifiers>, 0, 1 << 24}, "rows", kFixedOfIdentifiers,
     "Rows of each table of data.embed; 0: one more than the largest identifier of the training split; "
     "all larger ones share one more row"},
    {"data", "edge_inputs", TextListKey{at<&DataConfig::edge_inputs>, 0}, "", kFixed,
     "Fields given to the model at each edge, in addition to relative positions; each direction has its own "
     "value"},
    {"data", "targets", TextListKey{at<&DataConfig::targets>, 0}, "", kFixed,
     "Fields that the model predicts"},
    {"data", "predict", choice<&DataConfig::predict>(kPredictions), "", kFixed,
     "Predicted quantity of a target: the change x[t+1] - x[t], or the second change x[t+1] - 2 x[t] + "
     "x[t-1]"},
    {"data", "value_targets", TextListKey{at<&DataConfig::value_targets>, 0}, "", kFixedOfChanges,
     "Targets predicted as their next value instead of its change, such as a stress that follows from "
     "positions"},
    {"data", "history", IntegerKey{at<&DataConfig::history>, 1, 64}, "frames", kFixedOverTime,
     "Latest frames given of inputs that are targets: the value at the latest (second_change: none) and the "
     "changes between them"},
    {"data", "node_split", TextKey{at<&DataConfig::node_split>}, "", kFixedOnNodes,
     "Node split that says which nodes are trained on, validated and tested; empty where the data have one"},
    {"data", "link_valid", FloatKey{at<&DataConfig::link_valid>, 0, 0.9}, "", kFixedOnLinks,
     "Share of the linked pairs of one graph that are validated on, and as many others; the model does not "
     "read "
     "them"},
    {"data", "link_test", FloatKey{at<&DataConfig::link_test>, 0, 0.9}, "", kFixedOnLinks,
     "Share of the linked pairs of one graph that are tested on, likewise"},
    {"data", "link_seed", IntegerKey{at<&DataConfig::link_seed>, 0, 1'000'000'000'000'000}, "", kFixedOnLinks,
     "Seed of that split, and of the pairs without a link that evaluations take"},
    {"data", "world_position", TextKey{at<&DataConfig::world_position>}, "", kFixedOnMeshes,
     "Field with the current positions of nodes, which edges then read beside the positions at rest; empty "
     "for meshes that do not move"},
    {"data", "world_radius", FloatKey{at<&DataConfig::world_radius>, 0, 1e30}, "unit of positions",
     kFixedOnMeshes,
     "World edges join nodes whose current positions are closer than this and that no edge joins; 0: none"},
    {"data", "world_pairs", choice<&DataConfig::world_pairs>(kWorldPairs), "", kFixedOnMeshes,
     "Nodes that world edges join: all, or only those of different types, such as an obstacle and a plate"},
    {"data", "world_edges_per_node", FloatKey{at<&DataConfig::world_edges_per_node>, 0.01, 1000}, "edges",
     kOnMeshes,
     "Most world edges of a mesh in training, for each of its nodes; a frame with more is an error that says "
     "how many"},
    {"data", "hops", IntegerKey{at<&DataConfig::hops>, 1, 16}, "edges", kFixedOnMeshes,
     "Edges join nodes that are at most so many edges of the mesh apart; relative positions tell how far"},
    {"data", "period", FloatListKey{at<&DataConfig::period>, 0, 1e30, 3}, "unit of positions", kFixedOnMeshes,
     "Length of a periodic domain along each axis, 0 where it is not; relative positions are to the nearest "
     "image"},
    {"data", "classes", IntegerKey{at<&DataConfig::classes>, 0, 65536}, "classes", kFixedOfClasses,
     "Number of classes of the target; 0: one more than the largest in the data, of which each is trained "
     "on"},
    {"data", "node_types", IntegerKey{at<&DataConfig::node_types>, 1, 65536}, "classes", kFixed,
     "Number of node types, the width of their one-hot input; graphs without types have none"},
    {"data", "predicted_types", IntegerListKey{at<&DataConfig::predicted_types>, 0, 65535, 1}, "",
     kFixedOnMeshes, "Node types in the loss, whose values a rollout predicts"},
    {"data", "noise_types", IntegerListKey{at<&DataConfig::noise_types>, 0, 65535}, "", kFixedOnMeshes,
     "Node types whose inputs get training noise"},
    {"data", "kinematic_types", IntegerListKey{at<&DataConfig::kinematic_types>, 0, 65535}, "",
     kFixedOverTime,
     "Node types that the data move: the model reads their next change of data.world_position, or without it "
     "of all targets"},

    {"model", "name", choice<&ModelConfig::name>(kModels), "", kFixed, "Architecture"},
    {"model", "width", IntegerKey{at<&ModelConfig::width>, 1, 16384}, "channels", kFixed,
     "Width of latent features and hidden layers; of an attention layer that of its output"},
    {"model", "blocks", IntegerKey{at<&ModelConfig::blocks>, 1, 1024}, "blocks", kFixed,
     "Message-passing blocks, or attention layers, in front of the decoder"},
    {"model", "hidden_layers", IntegerKey{at<&ModelConfig::hidden_layers>, 1, 7}, "layers", kFixed,
     "Hidden layers of each MLP"},
    {"model", "embedding", IntegerKey{at<&ModelConfig::embedding>, 1, 1024}, "channels", kFixedOfIdentifiers,
     "Width of the rows of data.embed"},
    {"model", "activation", choice<&ModelConfig::activation>(kActivations), "", kFixed,
     "Activation function after each hidden layer, and after each attention layer"},
    {"model", "norm", choice<&ModelConfig::norm>(kNorms), "", kFixedOfMeshGraphNet,
     "Normalisation of the output of each MLP except the decoder's"},
    {"model", "concat_order", choice<&ModelConfig::concat_order>(kConcatOrders), "", kFixedOfMeshGraphNet,
     "Order of an edge MLP's concatenated inputs; weights trained with one order are wrong with the other"},
    {"model", "aggregate", choice<&ModelConfig::aggregate>(kAggregates), "", kFixedOfMeshGraphNet,
     "Whether nodes sum edge features before or after the residual is added; weights trained with one are "
     "wrong with the other"},
    {"model", "reduce", choice<&ModelConfig::reduce>(kPools), "", kFixedOfMeshGraphNet,
     "How a node combines the values of its edges; mean and max compute edges without fused kernels"},
    {"model", "pool", choice<&ModelConfig::pool>(kPools), "", kFixedOnGraphs,
     "How the nodes of a graph become one row, from which targets on graphs are decoded: their mean, sum or "
     "maximum"},
    {"model", "slices", IntegerKey{at<&ModelConfig::slices>, 0, kMaxSlices}, "slices", kFixedOfMeshGraphNet,
     "Slices through which all nodes of a graph exchange what they know, between blocks; 0: along edges "
     "only"},
    {"model", "slices_every", IntegerKey{at<&ModelConfig::slices_every>, 1, 1024}, "blocks",
     kFixedOfMeshGraphNet, "Blocks from one exchange through slices to the next"},
    {"model", "slice_heads", IntegerKey{at<&ModelConfig::slice_heads>, 1, kMaxHeads}, "heads",
     kFixedOfMeshGraphNet, "Heads of an exchange through slices, which share model.width"},
    {"model", "path", choice<&ModelConfig::path>(kPaths), "", kFree,
     "Fused kernels, or one kernel per op as a check"},
    {"model", "keep_hidden", BoolKey{at<&ModelConfig::keep_hidden>}, "", kFree,
     "Whether the fused path on the CPU saves hidden activations for backward, or recomputes them in less "
     "memory and more time"},

    {"gat", "heads", IntegerKey{at<&GatConfig::heads>, 1, kMaxHeads}, "heads", kFixedOfGat,
     "Heads of an attention layer"},
    {"gat", "score", choice<&GatConfig::score>(kAttentionScores), "", kFixedOfGat,
     "How an edge is scored: from each of its ends (gat), or from both together (gatv2)"},
    {"gat", "self_edges", BoolKey{at<&GatConfig::self_edges>}, "", kFixedOfGat,
     "Whether each node attends to itself, too"},
    {"gat", "concatenate", BoolKey{at<&GatConfig::concatenate>}, "", kFixedOfGat,
     "Whether heads lie side by side and share model.width; otherwise each has all of it, and their mean is "
     "taken"},
    {"gat", "edge_features", BoolKey{at<&GatConfig::edge_features>}, "", kFixedOfGat,
     "Whether features of edges add to the scores, where edges have some; not with gat.score = \"gatv2\""},
    {"gat", "decoder", choice<&GatConfig::decoder>(kGatDecoders), "", kFixedOfGat,
     "What makes the prediction: an MLP, or one more attention layer without an activation"},
    {"gat", "output_heads", IntegerKey{at<&GatConfig::output_heads>, 1, kMaxHeads}, "heads", kFixedOfGat,
     "Heads of an attention decoder, whose mean is the prediction"},
    {"gat", "jumping", choice<&GatConfig::jumping>(kJumpings), "", kFixedOfGat,
     "What an MLP decoder reads: the last layer, or all layers side by side, or their maximum"},
    {"gat", "dropout", FloatKey{at<&GatConfig::dropout>, 0, 0.99}, "", kFixedOfGat,
     "Share of the inputs of attention layers that is dropped in training"},
    {"gat", "attention_dropout", FloatKey{at<&GatConfig::attention_dropout>, 0, 0.99}, "", kFixedOfGat,
     "Share of the attention weights that is dropped in training"},

    {"vgae", "encoder", choice<&VgaeConfig::encoder>(kVgaeEncoders), "", kFixedOfVgae,
     "Layers of the encoder: graph convolutions, or attention layers"},
    {"vgae", "heads", IntegerKey{at<&VgaeConfig::heads>, 1, kMaxHeads}, "heads", kFixedOfVgae,
     "Heads of the attention layers of vgae.encoder, which share model.width"},
    {"vgae", "latent", IntegerKey{at<&VgaeConfig::latent>, 1, 65536}, "values", kFixedOfVgae,
     "Latent values of a node"},
    {"vgae", "kl_weight", FloatKey{at<&VgaeConfig::kl_weight>, 0, 1e6}, "", kFixedOfVgae,
     "Weight in the loss of the latent distributions' divergence from the standard normal one, over the "
     "square "
     "of the number of nodes"},
    {"vgae", "feature_weight", FloatKey{at<&VgaeConfig::feature_weight>, 0, 1e6}, "", kFixedOfVgae,
     "Weight in the loss of the squared error of the nodes' inputs, decoded from latent values; 0: they are "
     "not "
     "decoded"},
    {"vgae", "pairs", IntegerKey{at<&VgaeConfig::pairs>, 0, 100'000'000}, "pairs", kFixedOfVgae,
     "Linked pairs of nodes, and as many others, that are drawn for each use of a graph; 0 takes all pairs"},

    {"train", "steps", IntegerKey{at<&TrainConfig::steps>, 1, kMany}, "steps", kFree, "Optimizer steps"},
    {"train", "epochs", IntegerKey{at<&TrainConfig::epochs>, 0, kMany}, "epochs", kFree,
     "Epochs, that is passes over the training split; 0 uses train.steps"},
    {"train", "batch", IntegerKey{at<&TrainConfig::batch>, 1, 1'000'000, "auto"}, "samples", kFixed,
     "Samples per micro-batch; auto: at most an eighth of the split, what fits, and what a step computes in "
     "2 s"},
    {"train", "batch_nodes", IntegerKey{at<&TrainConfig::batch_nodes>, 0, 1'000'000'000}, "nodes", kFixed,
     "Instead of train.batch: a micro-batch takes samples while they have at most so many nodes; 0 uses "
     "train.batch"},
    {"train", "accumulate", IntegerKey{at<&TrainConfig::accumulate>, 1, 1'000'000}, "micro-batches", kFixed,
     "Micro-batches per optimizer step; their accumulated gradient equals that of one large batch"},
    {"train", "noise", FieldNumbersKey{at<&TrainConfig::noise>, at<&TrainConfig::field_noise>, 0, 1e12},
     "unit of the field", kFixed,
     "Standard deviation of the training noise added to inputs: of all fields, or {velocity = 0.02} of those "
     "named"},
    {"train", "noise_warmup_steps", IntegerKey{at<&TrainConfig::noise_warmup_steps>, 0, kMany}, "steps",
     kFixed, "Steps over which the training noise rises linearly from 0"},
    {"train", "gamma", FloatKey{at<&TrainConfig::gamma>, 0, 1}, "", kFixedOnMeshes,
     "Fraction of the input noise that the target corrects"},
    {"train", "validate_every", IntegerKey{at<&TrainConfig::validate_every>, 0, kMany}, "steps", kFree,
     "Steps between validations, 0 for none"},
    {"train", "validate_samples", IntegerKey{at<&TrainConfig::validate_samples>, 0, kMany}, "samples", kFree,
     "Samples per validation, 0 for the whole split"},
    {"train", "validate_rollouts", IntegerKey{at<&TrainConfig::validate_rollouts>, 0, kMany}, "trajectories",
     kFree,
     "Trajectories of the validation split that each validation rolls out, 0 for none, as of tasks without "
     "time"},
    {"train", "validate_share", FloatKey{at<&TrainConfig::validate_share>, 0.001, 1}, "", kFree,
     "Largest fraction of a run's time for validation: rollouts are cut, then validations left out; 1, or "
     "train.patience, for no limit"},
    {"train", "best", TextKey{at<&TrainConfig::best>, true, "auto, loss, rollout or a metric"}, "", kFree,
     "What chooses the best checkpoint: error of one prediction (loss), of rollouts (auto: if any), or a "
     "metric: auc, rmse of FIELD"},
    {"train", "checkpoint_every", IntegerKey{at<&TrainConfig::checkpoint_every>, 0, kMany}, "steps", kFree,
     "Steps between checkpoints, 0 for a checkpoint at the end only"},
    {"train", "keep_checkpoints", IntegerKey{at<&TrainConfig::keep_checkpoints>, 1, 1'000'000}, "files",
     kFree, "Number of latest checkpoints kept, in addition to the best"},
    {"train", "stop_before_limit", IntegerKey{at<&TrainConfig::stop_before_limit>, 0, kMany}, "seconds",
     kFree,
     "In a SLURM job: time before its end at which the run stops with a checkpoint and exit code 75, 0 for "
     "never"},
    {"train", "log_every", IntegerKey{at<&TrainConfig::log_every>, 1, kMany}, "steps", kFree,
     "Steps between lines of metrics.jsonl"},
    {"train", "clip_norm", FloatKey{at<&TrainConfig::clip_norm>, 0, 1e12}, "", kFree,
     "Largest global gradient norm, 0 for no clipping"},
    {"train", "free_gradients", BoolKey{at<&TrainConfig::free_gradients>}, "", kFree,
     "Whether gradient memory is freed after each step, at the cost of an allocation per step"},
    {"train", "init", TextKey{at<&TrainConfig::init>, false, "a checkpoint or a run"}, "", kFixed,
     "Checkpoint whose weights a new run starts from, or a run's folder; empty for random weights"},
    {"train", "init_normalizers", choice<&TrainConfig::init_normalizers>(kInitNormalizers), "", kFixed,
     "With train.init: whether the checkpoint's normalisers are kept unchanged, or fitted again to this "
     "run's data"},
    {"train", "freeze", TextListKey{at<&TrainConfig::freeze>, 0}, "", kFixed,
     "Parameters that are not trained: names such as processor.0 or node_encoder; * matches any text"},
    {"train", "ema", FloatKey{at<&TrainConfig::ema>, 0, 0.9999999}, "", kFixed,
     "Decay of an exponential moving average of the weights, which validation and evaluate then use; 0 for "
     "none"},
    {"train", "patience", IntegerKey{at<&TrainConfig::patience>, 0, kMany}, "validations", kFree,
     "Validations without a new best after which the run ends early, 0 for never"},

    {"loss", "name", choice<&LossConfig::name>(kLosses), "", kFixedOnMeshes,
     "Cost of an error in standard deviations of its target: squared, Huber, absolute, or squared relative "
     "to the sample's target"},
    {"loss", "delta", FloatKey{at<&LossConfig::delta>, 1e-6, 1e6}, "standard deviations", kFixedOnMeshes,
     "Error above which the cost rises linearly (huber)"},
    {"loss", "field_weights",
     FieldNumbersKey{at<&LossConfig::weight>, at<&LossConfig::field_weights>, 0, 1e6, 1}, "", kFixedOnMeshes,
     "Factor of the cost of a field's errors: of all fields, or {pressure = 0.1}, where other fields have 1"},
    {"loss", "type_weights",
     FieldNumbersKey{at<&LossConfig::type_weight>, at<&LossConfig::type_weights>, 0, 1e6, 1, "node types"},
     "", kFixedOnMeshes,
     "Weight of a node by its type in the mean: of all types, or {5 = 10}, where other types have 1"},
    {"loss", "class_weights", FloatListKey{at<&LossConfig::class_weights>, 1e-6, 1e6, 65536, kBalancedWord},
     "", kFixedOfClasses,
     "Weight of each class, from class 0 on; \"balanced\" weighs each inversely to how often it is trained "
     "on"},
    {"loss", "sample", FloatKey{at<&LossConfig::sample>, 1e-6, 1}, "", kFixedOnMeshes,
     "Fraction of the predicted nodes whose errors count in training, drawn anew for each use of a sample"},
    {"loss", "change_penalty", FloatKey{at<&LossConfig::change_penalty>, 0, 1e6}, "", kFixedOfChanges,
     "Factor of a second term: the squared predicted change, in standard deviations about the mean change"},

    {"distill", "teacher", TextKey{at<&DistillConfig::teacher>, false, "a checkpoint or a run"}, "", kTaught,
     "Checkpoint of a trained model, or a run's folder, whose predictions the model learns from, too; empty "
     "for none"},
    {"distill", "alpha", FloatKey{at<&DistillConfig::alpha>, 0, 1}, "", kFixedTaught,
     "Share of the teacher in the loss; the data have the rest"},
    {"distill", "temperature", FloatKey{at<&DistillConfig::temperature>, 0.01, 1000}, "", kFixedOfClasses,
     "What logits of teacher and model are divided by before they are compared"},
    {"distill", "offload", choice<&DistillConfig::offload>(kTeacherOffloads), "", kTaught,
     "Where the teacher's parameters are while it does not predict: on the device (none), or in host memory "
     "(host)"},
    {"distill", "cache", TextKey{at<&DistillConfig::cache>, false, "a file"}, "", kTaught,
     "File of the teacher's predictions for all samples, which is written before training unless it is "
     "there; "
     "empty: the teacher predicts in each step"},

    {"curriculum", "score", choice<&CurriculumConfig::score>(kCurriculumScores), "", kFixed,
     "What says how difficult training samples are: nothing, the loss of the run's own model, or that of "
     "curriculum.model"},
    {"curriculum", "model", TextKey{at<&CurriculumConfig::model>, false, "a checkpoint or a run"}, "", kFixed,
     "With curriculum.score = \"model\": checkpoint of a trained model, or a run's folder"},
    {"curriculum", "chunk", IntegerKey{at<&CurriculumConfig::chunk>, 1, 1'000'000}, "samples", kFixed,
     "Samples scored at a time"},
    {"curriculum", "percentile", FloatListKey{at<&CurriculumConfig::percentile>, 0, 100, 2}, "", kFixed,
     "Percentile of difficulty above which a sample is hard, in the first epoch and in the last"},
    {"curriculum", "ratio", FloatListKey{at<&CurriculumConfig::ratio>, 0, 1e6, 2}, "", kFixed,
     "Samples drawn for each that an epoch always has, likewise: hard ones of the largest class; without "
     "classes, others for each hard one"},
    {"curriculum", "refresh_epochs", IntegerKey{at<&CurriculumConfig::refresh_epochs>, 1, kMany}, "epochs",
     kFixed, "Epochs after which the run's own model scores the samples again"},

    {"unroll", "steps", IntegerKey{at<&UnrollConfig::steps>, 1, 1000}, "frames", kFixedOverTime,
     "Frames predicted one after another per sample, each from the previous prediction; gradients flow "
     "through all of them"},

    {"optimizer", "name", choice<&OptimizerConfig::name>(kOptimizers), "", kFixed, "Algorithm"},
    {"optimizer", "lr", FloatKey{at<&OptimizerConfig::lr>, 0, 1000}, "", kFree,
     "Learning rate at the start of the schedule"},
    {"optimizer", "beta1", FloatKey{at<&OptimizerConfig::beta1>, 0, 0.9999999}, "", kFree,
     "Decay rate of the first moment (adam, adamw)"},
    {"optimizer", "beta2", FloatKey{at<&OptimizerConfig::beta2>, 0, 0.9999999}, "", kFree,
     "Decay rate of the second moment (adam, adamw)"},
    {"optimizer", "eps", FloatKey{at<&OptimizerConfig::eps>, 1e-30, 1}, "", kFree,
     "Added to the square root of the second moment (adam, adamw)"},
    {"optimizer", "weight_decay", FloatKey{at<&OptimizerConfig::weight_decay>, 0, 1000}, "", kFree,
     "L2 penalty on the weights (adam, sgd) or decoupled weight decay (adamw)"},
    {"optimizer", "momentum", FloatKey{at<&OptimizerConfig::momentum>, 0, 0.9999999}, "", kFree,
     "Momentum (sgd)"},

    {"schedule", "name", choice<&ScheduleConfig::name>(kSchedules), "", kFree,
     "Shape of the learning rate after warm-up"},
    {"schedule", "final_lr", FloatKey{at<&ScheduleConfig::final_lr>, 0, 1000}, "", kFree,
     "Learning rate at the end of the decay (exponential, cosine, step)"},
    {"schedule", "warmup_steps", IntegerKey{at<&ScheduleConfig::warmup_steps>, 0, kMany}, "steps", kFree,
     "Steps over which the learning rate rises linearly from 0"},
    {"schedule", "decay_steps", IntegerKey{at<&ScheduleConfig::decay_steps>, 0, kMany}, "steps", kFree,
     "Step at which final_lr is reached, 0 for the last step"},
    {"schedule", "step_every", IntegerKey{at<&ScheduleConfig::step_every>, 1, kMany}, "steps", kFree,
     "Steps after which the learning rate is multiplied by step_factor, again and again (step)"},
    {"schedule", "step_factor", FloatKey{at<&ScheduleConfig::step_factor>, 0, 1}, "", kFree,
     "Factor of each decrease, never below final_lr (step)"},
    {"schedule", "restart_every", IntegerKey{at<&ScheduleConfig::restart_every>, 0, kMany}, "steps", kFree,
     "Steps until the learning rate returns to optimizer.lr and decays again, 0 for never (exponential, "
     "cosine)"},
    {"schedule", "restart_growth", FloatKey{at<&ScheduleConfig::restart_growth>, 1, 1000}, "", kFree,
     "Factor by which each cycle between restarts is longer than the one before"},

    {"loss_scale", "initial", FloatKey{at<&LossScaleRule::initial>, kLeastScale, kMostScale}, "", kFree,
     "Loss scale of the first step"},
    {"loss_scale", "growth", FloatKey{at<&LossScaleRule::growth>, 1, 65536}, "", kFree,
     "Growth factor after `interval` steps without overflow, 1 for none"},
    {"loss_scale", "backoff", FloatKey{at<&LossScaleRule::backoff>, 1e-6, 1}, "", kFree,
     "Factor applied when a gradient or the loss is not finite, 1 for none"},
    {"loss_scale", "interval", IntegerKey{at<&LossScaleRule::interval>, 1, kMany}, "steps", kFree,
     "Steps without overflow before the scale grows"},
    {"loss_scale", "floor", FloatKey{at<&LossScaleRule::floor>, kLeastScale, kMostScale}, "", kFree,
     "Smallest loss scale"},
    {"loss_scale", "cap", FloatKey{at<&LossScaleRule::cap>, kLeastScale, kMostScale}, "", kFree,
     "Largest loss scale"},
    {"loss_scale", "hysteresis", IntegerKey{at<&LossScaleRule::hysteresis>, 1, kMany}, "steps", kFree,
     "Consecutive skipped steps before the scale is reduced"},
    {"loss_scale", "max_skips", IntegerKey{at<&LossScaleConfig::max_skips>, 1, kMany}, "steps", kFree,
     "Consecutive skipped steps after which the run stops and reports the first non-finite value, in every "
     "precision"},

    {"normalize", "mode", choice<&NormalizeConfig::mode>(kNormalizeModes), "", kFixed,
     "Statistics from the packed file, or accumulated during training; none: inputs and targets as they are"},
    {"normalize", "warmup_steps", IntegerKey{at<&NormalizeConfig::warmup_steps>, 0, kMany}, "steps", kFixed,
     "Steps that only accumulate statistics (online)"},
    {"normalize", "max_samples", IntegerKey{at<&NormalizeConfig::max_samples>, 1, kMany}, "samples", kFree,
     "Samples after which statistics no longer change (online)"},

    {"recompute", "mode", choice<&RecomputeConfig::mode>(kRecomputeModes), "", kFree,
     "Parts of the model whose activations are recomputed in the backward pass instead of saved; gradients "
     "are bit-identical"},
    {"recompute", "every", IntegerKey{at<&RecomputeConfig::every>, 1, 1024}, "blocks", kFree,
     "Blocks per recomputed segment (every)"},
    {"recompute", "budget", SizeKey{at<&RecomputeConfig::budget>}, "", kFree,
     "Memory for a micro-batch's forward and backward pass, without parameters, optimizer state and data "
     "(budget)"},
    {"recompute", "include", TextListKey{at<&RecomputeConfig::include>}, "", kFree,
     "Stages that may be recomputed: encoder, processor (all blocks), processor.0, decoder and so on; * "
     "matches any text"},
    {"recompute", "keep", TextListKey{at<&RecomputeConfig::keep>, 0, &SavePolicy::names, kKeepWords}, "",
     kFree,
     "Ops whose outputs a recomputed segment also saves; auto: none, unless recompute.mode = \"budget\" or "
     "\"auto\" chooses GEMMs and fused calls"},
    {"recompute", "offload", choice<&RecomputeConfig::offload>(kOffloads), "", kFree,
     "Where the tensors saved for recomputation are offloaded: nowhere, to host memory (GPU), or to a file "
     "(CPU)"},
    {"recompute", "offload_dir", TextKey{at<&RecomputeConfig::offload_dir>}, "", kFree,
     "Folder of the offload file, which is deleted when the process ends; empty for the run directory"},
    {"recompute", "segments", choice<&RecomputeConfig::segments>(kSegmentUnits), "", kFree,
     "Recomputed unit when unroll.steps is above 1: blocks within each frame, whole frames, or runs of "
     "sqrt(unroll.steps) frames"},
    {"recompute", "check", BoolKey{at<&RecomputeConfig::check>}, "", kFree,
     "Whether recomputed values are compared bit by bit with the first run; slow, for debugging"},

    {"memory", "limit", SizeKey{at<&AllocatorOptions::memory_limit>}, "", kFree,
     "Memory that a run may map, empty for no limit; can simulate a smaller GPU"},
    {"memory", "expandable_segments", BoolKey{at<&AllocatorOptions::expandable_segments>}, "", kFree,
     "Whether the heap is one growing range of virtual addresses; false for libraries that cannot register "
     "mapped memory"},
    {"memory", "garbage_collection_threshold",
     FloatKey{at<&AllocatorOptions::garbage_collection_threshold>, 0.0, 1.0}, "", kFree,
     "Fraction of the limit above which cached memory is released before more is mapped, 0 to release only "
     "when memory runs short"},
    {"memory", "release_cached_every", IntegerKey{at<&AllocatorOptions::release_cached_every>, 0, kMany},
     "steps", kFree,
     "Steps between releases of cached memory, 0 for never; for programs that share the device"},
    {"memory", "plan_steps", BoolKey{at<&AllocatorOptions::plan_steps>}, "", kFree,
     "Whether repeated batch sizes reuse precomputed offsets for their allocations, so that less memory is "
     "reserved"},
    {"memory", "history", IntegerKey{at<&AllocatorOptions::history>, 0, kMaxHistory}, "events", kFree,
     "Allocator events to record and write to memory/ in the run directory, 0 for none"},

    {"plan", "mode", choice<&PlanConfig::mode>(kPlanModes), "", kFree,
     "Where train.batch = \"auto\" and meshgrad plan know the memory of steps from: a dry run (static), or "
     "steps that are run"},
    {"plan", "target_utilization", FloatKey{at<&PlanConfig::target_utilization>, 0.01, 1.0}, "", kFree,
     "Fraction of the memory that a step may use; the rest is room for the allocator's cache"},
    {"plan", "min_batch", IntegerKey{at<&PlanConfig::min_batch>, 1, 1'000'000}, "samples", kFree,
     "Smallest batch; a run that cannot fit it does not start"},
    {"plan", "max_batch", IntegerKey{at<&PlanConfig::max_batch>, 1, 1'000'000}, "samples", kFree,
     "Largest batch to plan for, even if more would fit"},

    {"evaluate", "horizons", IntegerListKey{at<&EvaluateConfig::horizons>, 1, 1'000'000, 1}, "steps",
     kOnMeshes,
     "Lengths of rollouts over whose steps evaluate reports errors, in addition to whole trajectories"},

    {"rollout", "boundary", choice<&RolloutConfig::boundary>(kBoundaries), "", kOnMeshes,
     "Values at nodes that are not predicted: from the data at each frame, or held at the initial frame"},
    {"rollout", "steps", IntegerKey{at<&RolloutConfig::steps>, 0, kMany}, "frames", kOnMeshes,
     "Predicted frames, 0 for the length of the trajectory"},

    {"ranks", "timeout", IntegerKey{at<&RanksConfig::timeout>, 1, 1'000'000}, "seconds", kFree,
     "Time that a rank waits for a message of another before the run ends with an error"},
    {"ranks", "reduction", choice<&RanksConfig::reduction>(kReductions), "", kFree,
     "Order in which gradients are added: fast, or ordered sample by sample, for the same bits on any number "
     "of ranks"},
    {"ranks", "partition", choice<&RanksConfig::partition>(kPartitions), "", kOnMeshes,
     "Computes each mesh on all ranks, in parts cut by recursive coordinate bisection, METIS or a file; "
     "none: each rank takes whole samples"},
    {"ranks", "partition_file", TextKey{at<&RanksConfig::partition_file>}, "", kOnMeshes,
     "With ranks.partition = \"file\": a text file with the rank of each node, one a line, as METIS writes "
     "it"},
    {"ranks", "parts_in_turn", IntegerKey{at<&RanksConfig::parts_in_turn>, 1, 65536}, "", kOnMeshes,
     "Parts of each mesh that one process computes in turn, for meshes that do not fit; values wait in host "
     "memory"},
    {"ranks", "sum_alone", BoolKey{at<&RanksConfig::sum_alone>}, "", kFree,
     "One rank, too, sums gradients by the operation of several, such as NCCL's: tests it on one GPU"},
};

}  // namespace

std::span<const ConfigKey> config_keys() { return kKeys; }

}  // namespace meshgrad
