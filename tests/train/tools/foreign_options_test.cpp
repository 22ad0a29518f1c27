// SPDX-License-Identifier: Apache-2.0
// What people type on their first day, coming from other programs: each option is mapped or answered.
#include <doctest/doctest.h>
#include <meshgrad/train/tools/program/import_config.h>

#include "support.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

using test::contains;

/// An option as it stands in a file, what it becomes ("train.batch=4"; empty: nothing is set), and words of
/// the answer.
struct FirstDayRow {
  const char *line, *settings, *answer = "";
};

constexpr FirstDayRow kFirstDayRows[] = {
    // MeshGraphNets in PyTorch.
    {"model MeshGraphNets", "", "model.width and model.blocks"},
    {"mode Train", "", "meshgrad train CONFIG"},
    {"mode   Inference", "", "meshgrad rollout or predict RUN"},
    {"gpu_ids 0", "run.device=cuda:0"},
    {"gpu_ids -1  % the CPU", "run.device=cpu"},
    {"gpu_ids 0 1", "", "mpirun -n N meshgrad train"},
    {"log_file_dir ./log", "run.dir=./log"},
    {"log_file_dir /tmp/100%done#2  # a path", "run.dir=/tmp/100%done#2"},
    {"verbose True", "", "-q"},
    {"Dim1 2", "", "not needed"},
    {"Dim2 1", "", "not needed"},
    {"input_var 3", "", "data.inputs"},
    {"output_var 3", "", "data.targets"},
    {"edge_var 4", "", "not needed"},
    {"norm_min -1", "", "meshgrad check"},
    {"norm_max 1", "", "not needed"},
    {"dataset_dir ./data/flag.h5", "", "meshgrad convert, and set data.path"},
    {"message_passing_num 15", "model.blocks=15"},
    {"Training_epochs 200", "train.epochs=200"},
    {"Batch_size 4", "train.batch=4"},
    {"LearningR 0.0001", "optimizer.lr=0.0001"},
    {"Latent_dim 128", "model.width=128"},
    {"num_workers 8", "", "batches are prepared while a step runs"},
    {"std_noise 0.01", "", "multiply it by the field's deviation"},
    {"use_checkpointing True", "recompute.mode=block", "auto"},
    {"use_checkpointing False", "recompute.mode=off"},
    {"use_amp True", "precision=f16"},
    {"use_world_edges True", "", "data.world_position"},
    {"world_radius_multiplier 1.5", "", "--data FILE.mgd"},
    // A frame model in YAML.
    {"gradient_checkpointing: true", "recompute.mode=block"},
    {"torch_compile: true", "", "graphs = \"capture\""},
    {"torch_compile: false", "graphs=off"},
    {"torch_compile_mode: default", "", "fused when meshgrad is built"},
    {"torch_compile_mode: \"reduce-overhead\"", "graphs=capture"},
    {"torch_compile_mode: max-autotune", "graphs=capture, autotune=true"},
    {"batch_size: 4", "train.batch=4"},
    {"temporal_frames: 5", "", "data.history"},
    {"temporal_frames: 5", "", "unroll.steps"},
    {"memory_optimized: true", "recompute.mode=block, model.keep_hidden=false, memory.plan_steps=true",
     "--preset"},
    {"python train.py --config small.yaml", "", "meshgrad config preset"},
    // The environment.
    {"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128", "",
     "segments expand always"},
    {"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128", "", "max_split_size_mb has no counterpart"},
    // A trainer of force fields.
    {"--batch_size 4", "train.batch=4"},
    {"--use_multi_hop", "", "data.hops"},
    {"--use_nonbonded", "", "data.world_radius"},
    {"--use_gate", "", "not here"},
    {"--use_layer_norm", "model.norm=layer"},
    {"--num_layers 4", "", "model.blocks"},
    {"--num_layers 4", "", "model.hidden_layers"},
    {"--output_dim 1", "", "data.targets"},
    {"--hidden_irreps 128x0e", "", "not here"},
    // A pipeline of graphs in JSON.
    {R"({"offload_teacher_to_cpu": true})", "", "set distill.offload"},
    {R"({"use_teacher_cache": true})", "", "set distill.cache"},
    {R"({"use_teacher_cache": false})", "", "nothing to set"},
    {R"({"use_kd": true})", "", "distill.teacher"},
    {R"({"teacher_path": "vgae.pth"})", "", "distill.teacher"},
    {R"({"memory": {"clear_cache_every_n": 100}})", "memory.release_cached_every=100"},
    {R"({"optimize_batch_size": true})", "train.batch=auto"},
    {R"({"memory_estimation": "measured"})", "", "meshgrad plan CONFIG --mode measured"},
    {R"({"safety_factor": 0.8})", "plan.target_utilization=0.8"},
    {R"({"precision": "16-mixed"})", "precision=f16"},
    {R"({"preset": "vgae,student"})", "", "meshgrad config preset"},
    {R"({"gradient_checkpointing": true})", "recompute.mode=block"},
    // A latent ODE in JSON.
    {R"({"train": {"accumulation_steps": 4}})", "train.accumulate=4"},
    {R"({"ode_integration_steps": 8})", "unroll.steps=8"},
    {R"({"use_compile": true})", "", "graphs = \"capture\""},
    {R"({"use_gradient_checkpointing": false})", "recompute.mode=off"},
    {R"({"use_velocity_reg": true})", "", "loss.change_penalty"},
    {R"({"epsilon_warmup_epochs": 10})", "", "train.noise_warmup_steps"},
    {R"({"max_grad_norm": 1.0})", "train.clip_norm=1.0"},
    // Flags.
    {"python train.py --epochs 10", "train.epochs=10"},
    {"--lr=1e-3", "optimizer.lr=1e-3"},
    {"--batch-size 8", "train.batch=8"},
    {"--gpus 4", "", "mpirun -n N"},
    {"--resume runs/last.pt", "", "--resume goes on in run.dir"},
    {"--amp", "precision=f16"},
    // PhysicsNeMo.
    {"processor_size: 15", "model.blocks=15"},
    {"hidden_dim_processor: 128", "model.width=128"},
    {"num_processor_checkpoint_segments: 3", "", "recompute.every"},
    {"do_concat_trick: True", "", "not needed"},
    {"jit: True", "", "graphs"},
    {"num_epochs: 25", "train.epochs=25"},
    {"lr_decay_rate: 0.99", "", "schedule.final_lr"},
    {"noise_std: 0.02", "train.noise=0.02"},
    {"ckpt_path: ./ckpt", "run.dir=./ckpt"},
};

TEST_CASE("options of a first day are mapped or answered") {
  for (const FirstDayRow& row : kFirstDayRows) {
    CAPTURE(row.line);
    const ImportedConfig imported = import_config(row.line, "options", OptionNames::keyvalue);
    const std::vector<std::string>& lines = *row.settings != 0 ? imported.mapped : imported.unmapped;
    REQUIRE(imported.mapped.size() + imported.unmapped.size() == 1);
    REQUIRE(lines.size() == 1);
    CHECK(contains(lines.front(), row.answer));
    if (*row.settings == 0) continue;
    const std::string set = lines.front().substr(lines.front().find(" -> ") + 4);
    CHECK(set.substr(0, set.find(" (")) == row.settings);
  }
}

TEST_CASE("files of options may be command lines or JSON") {
  const auto mapped = [](const char* text) {
    return import_config(text, "options", OptionNames::keyvalue).mapped;
  };
  CHECK(mapped("python train.py --epochs 10 --lr 1e-3 \\\n  --use_layer_norm --gpu_ids -1\n'\n") ==
        std::vector<std::string>{"epochs = 10 -> train.epochs=10", "lr = 1e-3 -> optimizer.lr=1e-3",
                                 "use_layer_norm = true -> model.norm=layer",
                                 "gpu_ids = -1 -> run.device=cpu"});
  CHECK(mapped(R"({"optimizer": {"lr": 1e-3, "name": "adam"}, "gpu_ids": [-1], "batch_size": 2})") ==
        std::vector<std::string>{"lr = 0.001 -> optimizer.lr=0.001", "gpu_ids = -1 -> run.device=cpu",
                                 "batch_size = 2 -> train.batch=2"});
  const ImportedConfig several =
      import_config(R"({"gpu_ids": [0, 1], "teacher_path": "a\nb"})", "options", OptionNames::keyvalue);
  CHECK(contains(several.unmapped.front(), "gpu_ids = 0 1: one process for each GPU"));
  CHECK(contains(several.toml, "# not mapped: teacher_path = a b: "));
  CHECK_THROWS_WITH_AS(mapped(R"({"lr": )"), doctest::Contains("needed JSON"), ConfigError);
}

TEST_CASE("two values of one key are both listed") {
  const auto read = [](const char* text, OptionNames names = OptionNames::keyvalue) {
    return import_config(text, "options", names);
  };
  const ImportedConfig json =
      read(R"({"teacher": {"lr": 0.01, "epochs": 5}, "eval": [{"lr": 0.001, "epochs": 5}], "batch": 2})");
  CHECK(json.unmapped == std::vector<std::string>{"two values of optimizer.lr: lr = 0.01 (teacher.lr) and lr "
                                                  "= 0.001 (eval.lr); write the one that is meant"});
  CHECK_FALSE(contains(json.toml, "\nlr"));
  CHECK(contains(json.toml, "# not mapped: two values of optimizer.lr"));
  CHECK(contains(json.toml, "epochs = 5"));
  CHECK(json.mapped.size() == 3);
  const ImportedConfig yaml = read("teacher:\n  batch_size: 8\neval:\n  batch_size: 1\n");
  CHECK(yaml.mapped.empty());
  CHECK(yaml.unmapped == std::vector<std::string>{"two values of train.batch: batch_size = 8 (line 2) and "
                                                  "batch_size = 1 (line 4); write the one that is meant"});
  const ImportedConfig names = read("amp: true\nprecision: 32\n");
  CHECK(names.unmapped.front().starts_with("two values of precision"));
  CHECK(read("model.width 32\nmodel.width 64\n").unmapped.size() == 1);
  CHECK(read("lr 1e-3\nlearningr 0.001\n").mapped.size() == 2);
  // What a recipe sets may be set again.
  CHECK(read("--model=cloth --noise=0.001", OptionNames::deepmind).unmapped.empty());
  CHECK(contains(read("--model=cloth --model=cfd --batch=2", OptionNames::deepmind).unmapped.front(),
                 "model = cloth (line 1) and model = cfd (line 1)"));
}

TEST_CASE("torch.compile without a mode captures nothing") {
  const ImportedConfig imported =
      import_config("torch_compile: true\ntorch_compile_mode: default\n", "options", OptionNames::keyvalue);
  CHECK(imported.mapped.empty());
  CHECK(imported.unmapped.size() == 2);
}

TEST_CASE("names that several sections have are not guessed") {
  const ImportedConfig imported = import_config("steps 10\nbeta1 0.8", "options", OptionNames::keyvalue);
  CHECK(imported.mapped == std::vector<std::string>{"beta1 = 0.8 -> optimizer.beta1=0.8"});
  CHECK(contains(imported.unmapped.back(), "train.steps, unroll.steps and rollout.steps"));
  CHECK(contains(import_config("amp: maybe\n", "x", OptionNames::physicsnemo).unmapped.front(),
                 "needed true|yes|on|1|false|no|off|0, got maybe"));
}

TEST_CASE("options with control characters make a file that opens") {
  const ImportedConfig imported =
      import_config("beta1 0.8\nverb\x7fose 3\n", "opt\x1bions", OptionNames::keyvalue);
  CHECK(contains(imported.toml, "# From opt\\x1bions.\n# not mapped: verb\\x7fose"));
  CHECK_NOTHROW(parse_config(imported.toml, "imported.toml"));
}

TEST_CASE("a world radius is a multiple of the data's shortest edge") {
  const test::ScratchDirectory scratch;
  const std::string data = test::pack_waves(scratch.path).string();
  const std::string options = (scratch.path / "options.txt").string();
  std::ofstream(options) << "world_radius_multiplier 1.5\n";
  const test::Outcome without = test::run_meshgrad({"config", "import", options, "--from", "keyvalue"});
  CHECK(contains(without.err, "--data FILE.mgd"));
  const test::Outcome with =
      test::run_meshgrad({"config", "import", options, "--from", "keyvalue", "--data", data});
  CHECK(contains(with.err, "data.world_radius = 0.15, which is that many times the shortest edge"));
}

TEST_CASE("flags of train answer with what they are here") {
  const auto error_of = [](std::vector<std::string> words) {
    words.insert(words.begin(), "train");
    const test::Outcome outcome = test::run_meshgrad(words);
    CHECK(outcome.code == 2);
    return outcome.err;
  };
  CHECK(contains(error_of({"c.toml", "--batch_size", "4"}), "fix: --set train.batch=4"));
  CHECK(contains(error_of({"c.toml", "--amp"}), "fix: --set precision=f16"));
  CHECK(contains(error_of({"c.toml", "--gpus", "4"}), "mpirun -n N meshgrad train"));
  CHECK(contains(error_of({"c.toml", "--epochs=10"}), "fix: --set train.epochs=10"));
  const std::string resume = error_of({"c.toml", "--resume", "runs/a"});
  CHECK(contains(resume,
                 "--resume] needed no value, got \"runs/a\"; fix: leave it out: Resume from the "
                 "last checkpoint of the run (run.dir, --run)"));
}

TEST_CASE("train takes presets between the file and --set") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 1;
  config.train.validate_every = 0;
  const std::string file = test::write_config(scratch.path, config);
  const test::Outcome made = test::run_meshgrad({"train", file, "--preset", "small,low-memory", "--set",
                                                 "model.width=8", "--set", "train.accumulate=1"});
  CHECK(made.code == 0);
  const Config used =
      load_config((std::filesystem::path(config.run.dir) / "config.resolved.toml").string(), {});
  CHECK(used.model.width == 8);
  CHECK(used.model.blocks == 6);
  CHECK(used.train.batch == 1);
  CHECK(used.recompute.mode == RecomputeMode::block);
  CHECK(contains(test::run_meshgrad({"train", file, "--preset", "smal"}).err, "did you mean \"small\"?"));
}

TEST_CASE("PyTorch's allocator settings in the environment are answered") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 1;
  config.train.validate_every = 0;
  const std::string file = test::write_config(scratch.path, config);
  setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128", 1);
  const test::Outcome made = test::run_meshgrad({"train", file});
  unsetenv("PYTORCH_CUDA_ALLOC_CONF");
  CHECK(made.code == 0);
  CHECK(contains(made.err, "PYTORCH_CUDA_ALLOC_CONF: not read: segments expand always"));
}

}  // namespace
}  // namespace meshgrad
