// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/tools/program/foreign_options.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace meshgrad {
namespace {

enum class Origin : uint8_t { physicsnemo, deepmind, both, others };

/// The first row that an option fits counts.
struct OptionRow {
  Origin from;
  std::string_view name;
  std::string_view values;  ///< words that it is for, with | between them; "#": a whole number; empty: any
  std::string_view
      settings;  ///< with blanks between them; {} is the value, {edge} that times the shortest edge
  std::string_view answer = {};
};

constexpr std::string_view kOn = "true|yes|on|1", kOff = "false|no|off|0";
constexpr std::string_view kFollows = "not needed: it follows from data.inputs, data.targets and the mesh";
constexpr std::string_view kRange =
    "not needed: inputs are normalised by mean and deviation; meshgrad check shows the range";
constexpr std::string_view kRecomputeAnswer =
    "recompute.mode = \"block\" saves most; \"auto\" takes what the memory asks for";
constexpr std::string_view kProcesses =
    "one process for each GPU: mpirun -n N meshgrad train (docs/ranks.md)";
constexpr std::string_view kCompiled =
    "nothing to set: kernels are compiled and fused when meshgrad is built; graphs = \"capture\" launches a "
    "step at once, as the mode reduce-overhead does";
constexpr std::string_view kPrefetch = "not needed: batches are prepared while a step runs";
constexpr std::string_view kTeacher =
    "set distill.teacher to a checkpoint of meshgrad (docs/graphs.md#a-teacher)";
constexpr std::string_view kPack = "pack the data with meshgrad convert, and set data.path";

constexpr OptionRow kOptionRows[] = {
    // github.com/NVIDIA/physicsnemo, examples/cfd/vortex_shedding_mgn.
    {Origin::physicsnemo, "batch_size", "", "train.batch={}"},
    {Origin::physicsnemo, "training_batch_size", "", "train.batch={}"},
    {Origin::physicsnemo, "epochs", "", "train.epochs={}"},
    {Origin::physicsnemo, "num_epochs", "", "train.epochs={}"},
    {Origin::physicsnemo, "lr", "", "optimizer.lr={}"},
    {Origin::physicsnemo, "weight_decay", "", "optimizer.weight_decay={}"},
    {Origin::physicsnemo, "noise_std", "", "train.noise={}"},
    {Origin::physicsnemo, "training_noise_std", "", "train.noise={}"},
    {Origin::physicsnemo, "processor_size", "", "model.blocks={}"},
    {Origin::physicsnemo, "hidden_dim_processor", "", "model.width={}"},
    {Origin::physicsnemo, "num_layers_node_processor", "", "model.hidden_layers={}"},
    {Origin::physicsnemo, "mlp_activation_fn", "", "model.activation={}"},
    {Origin::physicsnemo, "amp", kOn, "precision=f16"},
    {Origin::physicsnemo, "amp", kOff, "precision=f32"},
    {Origin::physicsnemo, "ckpt_path", "", "run.dir={}"},
    {Origin::physicsnemo, "seed", "", "run.seed={}"},
    {Origin::physicsnemo, "lr_decay_rate", "", "",
     "decay of each step; set schedule.final_lr to the learning rate of the last step"},
    {Origin::both, "data_dir", "", "", kPack},
    {Origin::both, "dataset_dir", "", "", kPack},
    {Origin::physicsnemo, "num_input_features", "", "", "follows from data.inputs"},
    {Origin::physicsnemo, "num_output_features", "", "", "follows from data.targets"},
    {Origin::physicsnemo, "num_edge_features", "", "", "follows from the mesh"},
    {Origin::physicsnemo, "recompute_activation", "", "", "see recompute.mode"},
    {Origin::physicsnemo, "num_processor_checkpoint_segments", "", "",
     "see recompute.mode and recompute.every"},
    {Origin::physicsnemo, "do_concat_trick", "", "",
     "not needed: concatenations are never written to memory"},
    {Origin::physicsnemo, "jit", "", "",
     "not needed: all is compiled; graphs = \"capture\" launches a step at once"},
    // github.com/google-deepmind/deepmind-research, meshgraphnets: run_model.py and core_model.py.
    {Origin::deepmind, "num_training_steps", "", "train.steps={}"},
    {Origin::deepmind, "batch", "", "train.batch={}"},
    {Origin::deepmind, "noise", "", "train.noise={}"},
    {Origin::deepmind, "gamma", "", "train.gamma={}"},
    {Origin::deepmind, "field", "world_pos",
     "data.targets=world_pos data.inputs=world_pos data.world_position=world_pos"},
    {Origin::deepmind, "field", "", "data.targets={} data.inputs={}"},
    {Origin::deepmind, "model", "cloth",
     "data.targets=world_pos data.inputs=world_pos data.world_position=world_pos data.predict=second_change "
     "data.predicted_types=0 train.batch=1 train.noise=0.003 train.gamma=0.1"},
    {Origin::deepmind, "model", "cfd", "data.targets=velocity"},
    {Origin::others, "history", "#", "data.history={}"},
    {Origin::deepmind, "history", kOn, "data.predict=second_change"},
    {Origin::deepmind, "history", kOff, "data.predict=change"},
    {Origin::deepmind, "latent_size", "", "model.width={}"},
    {Origin::deepmind, "message_passing_steps", "", "model.blocks={}"},
    {Origin::deepmind, "learning_rate", "", "optimizer.lr={}"},
    {Origin::deepmind, "checkpoint_dir", "", "run.dir={}"},
    // Of other programs "num_layers" may also be blocks.
    {Origin::others, "num_layers", "", "",
     "two readings: rounds of message passing are model.blocks, layers of an MLP model.hidden_layers; set "
     "the "
     "one that is meant"},
    {Origin::deepmind, "num_layers", "", "model.hidden_layers={}"},
    // MeshGraphNets in PyTorch.
    {Origin::others, "model", "", "",
     "the one model is MeshGraphNet; model.width and model.blocks are its sizes"},
    {Origin::others, "mode", "train|training", "", "the command says it: meshgrad train CONFIG"},
    {Origin::others, "mode", "", "",
     "the command says it: meshgrad rollout or predict RUN, and evaluate RUN"},
    {Origin::others, "gpu_ids", "-1", "run.device=cpu"},
    {Origin::others, "gpu_ids", "#", "run.device=cuda:{}"},
    {Origin::others, "gpu_ids", "", "", kProcesses},
    {Origin::others, "log_file_dir", "", "run.dir={}", "the run directory also has checkpoints and metrics"},
    {Origin::others, "verbose", "", "", "-q leaves out progress and notes"},
    {Origin::others, "dim1", "", "", kFollows},
    {Origin::others, "dim2", "", "", kFollows},
    {Origin::others, "input_var", "", "", kFollows},
    {Origin::others, "output_var", "", "", kFollows},
    {Origin::others, "edge_var", "", "", kFollows},
    {Origin::others, "norm_min", "", "", kRange},
    {Origin::others, "norm_max", "", "", kRange},
    {Origin::others, "message_passing_num", "", "model.blocks={}"},
    {Origin::others, "training_epochs", "", "train.epochs={}"},
    {Origin::others, "learningr", "", "optimizer.lr={}"},
    {Origin::others, "latent_dim", "", "model.width={}"},
    {Origin::others, "num_workers", "", "", kPrefetch},
    {Origin::others, "std_noise", "", "",
     "theirs is of normalised values, train.noise in the unit of the field: multiply it by the field's "
     "deviation, which meshgrad info of the data shows"},
    {Origin::others, "use_checkpointing", kOn, "recompute.mode=block", kRecomputeAnswer},
    {Origin::others, "use_checkpointing", kOff, "recompute.mode=off"},
    {Origin::others, "use_amp", kOn, "precision=f16"},
    {Origin::others, "use_amp", kOff, "precision=f32"},
    {Origin::others, "use_world_edges", kOff, "data.world_radius=0"},
    {Origin::others, "use_world_edges", "", "",
     "set data.world_position to the field of current positions, and data.world_radius"},
    {Origin::others, "world_radius_multiplier", "", "",
     "set data.world_position, and data.world_radius = {edge}, which is that many times the shortest edge"},
    // A frame model in YAML.
    {Origin::others, "gradient_checkpointing", kOn, "recompute.mode=block", kRecomputeAnswer},
    {Origin::others, "gradient_checkpointing", kOff, "recompute.mode=off"},
    {Origin::others, "torch_compile", kOn, "", kCompiled},
    {Origin::others, "torch_compile", kOff, "graphs=off"},
    {Origin::others, "torch_compile_mode", "max-autotune", "graphs=capture autotune=true"},
    {Origin::others, "torch_compile_mode", "max-autotune-no-cudagraphs", "graphs=off autotune=true"},
    {Origin::others, "torch_compile_mode", "reduce-overhead", "graphs=capture"},
    {Origin::others, "torch_compile_mode", "default", "", kCompiled},
    {Origin::others, "temporal_frames", "", "",
     "frames that the model reads are data.history, frames that training predicts in a row unroll.steps; set "
     "the one that is meant"},
    {Origin::others, "memory_optimized", kOn,
     "recompute.mode=block model.keep_hidden=false memory.plan_steps=true",
     "as --preset low-memory, which also sets train.batch = 1"},
    {Origin::others, "memory_optimized", kOff, "recompute.mode=off"},
    {Origin::others, "config", "", "",
     "a file of ours: meshgrad train CONFIG; presets: meshgrad config preset"},
    // A trainer of force fields.
    {Origin::others, "use_multi_hop", kOff, "data.hops=1"},
    {Origin::others, "use_multi_hop", "", "", "set data.hops to how many edges of the mesh an edge spans"},
    {Origin::others, "use_nonbonded", "", "",
     "edges between near nodes are world edges: data.world_position and data.world_radius"},
    {Origin::others, "use_gate", "", "", "not here: messages are summed without gates"},
    {Origin::others, "use_layer_norm", kOn, "model.norm=layer"},
    {Origin::others, "use_layer_norm", kOff, "model.norm=none"},
    {Origin::others, "output_dim", "", "", "not needed: outputs follow from data.targets"},
    {Origin::others, "hidden_irreps", "", "",
     "not here: latents are plain numbers, not representations of rotations; model.width is how many"},
    // A pipeline of graphs in JSON.
    {Origin::others, "use_kd", kOff, "", "nothing to set: distill.teacher is empty"},
    {Origin::others, "use_kd", "", "", kTeacher},
    {Origin::others, "teacher_path", "", "", kTeacher},
    {Origin::others, "offload_teacher_to_cpu", kOff, "", "nothing to set: distill.offload is \"none\""},
    {Origin::others, "offload_teacher_to_cpu", "", "",
     "set distill.offload = \"host\" beside distill.teacher"},
    {Origin::others, "use_teacher_cache", kOff, "", "nothing to set: distill.cache is empty"},
    {Origin::others, "use_teacher_cache", "", "",
     "set distill.cache to a file for the teacher's predictions (docs/graphs.md#a-teacher)"},
    {Origin::others, "clear_cache_every_n", "", "memory.release_cached_every={}"},
    {Origin::others, "optimize_batch_size", kOn, "train.batch=auto"},
    {Origin::others, "optimize_batch_size", "", "", "nothing to set: train.batch is a number"},
    {Origin::others, "memory_estimation", "static|measured", "", "meshgrad plan CONFIG --mode {}"},
    {Origin::others, "safety_factor", "", "plan.target_utilization={}"},
    {Origin::others, "precision", "16-mixed|16|fp16|16-true|f16", "precision=f16"},
    {Origin::others, "precision", "bf16-mixed|bf16-true|bf16", "precision=bf16"},
    {Origin::others, "precision", "32|32-true|fp32|f32", "precision=f32"},
    {Origin::others, "precision", "64|64-true|fp64|f64", "precision=f64"},
    // A latent ODE in JSON.
    {Origin::others, "accumulation_steps", "", "train.accumulate={}"},
    {Origin::others, "ode_integration_steps", "", "unroll.steps={}",
     "frames that training predicts in a row"},
    {Origin::others, "use_compile", kOn, "", kCompiled},
    {Origin::others, "use_compile", kOff, "graphs=off"},
    {Origin::others, "use_gradient_checkpointing", kOn, "recompute.mode=block", kRecomputeAnswer},
    {Origin::others, "use_gradient_checkpointing", kOff, "recompute.mode=off"},
    {Origin::others, "use_velocity_reg", kOff, "loss.change_penalty=0"},
    {Origin::others, "use_velocity_reg", "", "", "set loss.change_penalty to its weight"},
    {Origin::others, "epsilon_warmup_epochs", "", "",
     "set train.noise_warmup_steps: in steps, an epoch has samples / train.batch of them"},
    {Origin::others, "max_grad_norm", "", "train.clip_norm={}"},
    // Flags that many have.
    {Origin::others, "preset", "", "",
     "theirs are others: meshgrad config preset lists those of train --preset NAME,NAME"},
    {Origin::others, "gpus", "1", "run.device=cuda"},
    {Origin::others, "gpus", "", "", kProcesses},
    {Origin::others, "resume", "", "",
     "meshgrad train CONFIG --resume goes on in run.dir; other weights: train.init"},
    // The environment.
    {Origin::others, "pytorch_cuda_alloc_conf", "", "",
     "not read: segments expand always, and blocks are split at any size and joined again, so that "
     "max_split_size_mb has no counterpart; MESHGRAD_ALLOC_CONF has what can be set (docs/allocator.md)"},
};

std::string plain_name(std::string_view name) {
  std::string text(name);
  for (char& c : text) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool takes_value(std::string_view values, std::string_view value) {
  if (values.empty()) return true;
  if (values == "#") return !value.empty() && value.find_first_not_of("0123456789") == value.npos;
  std::string lower(value);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  while (true) {
    const size_t end = std::min(values.find('|'), values.size());
    if (values.substr(0, end) == lower) return true;
    if (end == values.size()) return false;
    values.remove_prefix(end + 1);
  }
}

bool is_among(Origin from, OptionNames names) {
  switch (names) {
    case OptionNames::physicsnemo:
      return from == Origin::physicsnemo || from == Origin::both;
    case OptionNames::deepmind:
      return from == Origin::deepmind || from == Origin::both;
    case OptionNames::keyvalue:
      return true;
  }
  return false;
}

std::string with_value(std::string_view text, std::string_view mark, std::string_view value) {
  std::string result(text);
  if (const size_t at = result.find(mark); at != result.npos) result.replace(at, mark.size(), value);
  return result;
}

}  // namespace

std::optional<OptionMeaning> meaning_of(const ForeignOption& option, OptionNames names,
                                        std::optional<double> shortest_edge) {
  const std::string name = plain_name(option.name);
  std::string known;  // values of rows of this name
  const auto row = std::ranges::find_if(kOptionRows, [&](const OptionRow& one) {
    if (!is_among(one.from, names) || one.name != name) return false;
    known += (known.empty() ? "" : "|") + std::string(one.values);
    return takes_value(one.values, option.value);
  });
  if (row == std::end(kOptionRows) && known.empty()) return std::nullopt;
  if (row == std::end(kOptionRows))
    return OptionMeaning{{}, fmt::format("needed {}, got {}", known, option.value)};
  const std::optional<double> factor = parse_number(option.value);
  const std::string radius = factor && shortest_edge ? fmt::format("{:.6g}", *factor * *shortest_edge)
                                                     : "(--data FILE.mgd computes it)";
  OptionMeaning meaning{{}, with_value(with_value(row->answer, "{}", option.value), "{edge}", radius)};
  for (std::string_view rest = row->settings; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    meaning.settings.push_back(with_value(rest.substr(0, end), "{}", option.value));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return meaning;
}

std::string foreign_environment_note() {
  for (const char* const name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || std::getenv("MESHGRAD_ALLOC_CONF") != nullptr) continue;
    return fmt::format("{}: {}", name,
                       meaning_of({"pytorch_cuda_alloc_conf", value}, OptionNames::keyvalue)->answer);
  }
  return "";
}

}  // namespace meshgrad
