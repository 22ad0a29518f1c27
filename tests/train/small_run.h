// SPDX-License-Identifier: Apache-2.0
// A small data set and a small run on it, for tests that train.
#pragma once
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/metrics_log.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/learn/train.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "simulated_ranks.h"
#include "train/deepmind_folder.h"
#include "train/scratch_directory.h"

namespace meshgrad::test {

/// A wave through a channel of `side` x `side` nodes: inflow on the left, outflow on the right, walls.
inline SquareRecord wave_record(int side, int64_t frames, double phase) {
  SquareRecord record(0);
  record.cells.clear();
  record.mesh_pos.clear();
  record.node_type.clear();
  for (int y = 0; y < side; ++y) {
    for (int x = 0; x < side; ++x) {
      record.mesh_pos.push_back(0.1f * static_cast<float>(x));
      record.mesh_pos.push_back(0.1f * static_cast<float>(y));
      const bool wall = y == 0 || y == side - 1;
      record.node_type.push_back(wall ? 6 : x == 0 ? 4 : x == side - 1 ? 5 : 0);
      if (x + 1 == side || y + 1 == side) continue;
      const int32_t at = y * side + x;
      for (const int32_t node : {at, at + 1, at + side, at + 1, at + side + 1, at + side})
        record.cells.push_back(node);
    }
  }
  for (int64_t t = 0; t < frames; ++t) {
    for (size_t i = 0; i < record.node_type.size(); ++i) {
      const double x = static_cast<double>(record.mesh_pos[2 * i]);
      const double y = static_cast<double>(record.mesh_pos[2 * i + 1]);
      const double angle = 3.0 * x - 0.2 * static_cast<double>(t) + phase;
      record.velocity.push_back(static_cast<float>(1.0 + 0.3 * std::sin(angle) * y));
      record.velocity.push_back(static_cast<float>(0.2 * std::cos(angle)));
    }
  }
  return record;
}

/// Packs 2 train, 1 valid and 1 test trajectories of waves into FOLDER/waves.mgd; the second of the two on a
/// larger mesh, unless all have one size.
inline std::filesystem::path pack_waves(const std::filesystem::path& folder, int side = 7,
                                        int64_t frames = 14, bool one_size = false) {
  const std::filesystem::path input = folder / "waves";
  std::filesystem::create_directories(input);
  write_meta(input, square_meta(frames));
  write_bytes(input / "train.tfrecord", tfrecord_of({wave_record(side, frames, 0.0),
                                                     wave_record(one_size ? side : side + 1, frames, 1.0)}));
  write_bytes(input / "valid.tfrecord", tfrecord_of({wave_record(side, frames, 2.0)}));
  write_bytes(input / "test.tfrecord", tfrecord_of({wave_record(side, frames, 3.0)}));
  ConvertOptions options;
  options.input = input;
  options.output = folder / "waves.mgd";
  convert(options);
  return options.output;
}

/// What the task of a configuration finds doubtful under a key.
inline std::vector<std::string> task_warnings(const Dataset& data, const Config& config,
                                              std::string_view key) {
  std::vector<std::string> texts;
  for (const TaskWarning& warning : make_task(config, data).validate(config))
    if (warning.key == key) texts.push_back(warning.text);
  return texts;
}

/// 30 windows of 3 batches of 2 samples on `data`, in FOLDER/run.
inline Config small_config(const std::filesystem::path& folder, const std::filesystem::path& data) {
  Config config;
  config.run.dir = (folder / "run").string();
  config.run.seed = 3;
  config.data.path = data.string();
  config.model.width = 16;
  config.model.blocks = 2;
  config.train.steps = 30;
  config.train.batch = 2;
  config.train.accumulate = 3;
  config.train.noise = 0.01;
  config.train.validate_every = 10;
  config.train.validate_samples = 4;
  config.train.validate_rollouts = 0;
  config.train.validate_share = 1.0;  // how long it takes changes nothing
  config.train.checkpoint_every = 10;
  config.train.log_every = 4;
  config.optimizer.lr = 2e-3;
  config.schedule.final_lr = 1e-4;
  return config;
}

inline TrainResult train_here(const Config& config, bool resume = false, std::function<bool()> stop = nullptr,
                              int threads = 1) {
  Runtime runtime({.device = {}, .threads = threads, .allocator = config.memory, .log = {}, .memory = {}});
  TrainOptions options;
  options.resume = resume;
  options.long_batch = std::chrono::hours(1);  // `stop` is asked as often on any machine
  options.observer.stop = std::move(stop);
  return train(runtime, config, options);
}

/// The same on simulated ranks; returns what the first one does.
inline TrainResult train_on_ranks(int ranks, const Config& config, bool resume = false) {
  TrainResult first;
  on_ranks(ranks, [&](Ranks& own) {
    Runtime runtime({.device = {}, .threads = 1, .allocator = config.memory, .log = {}, .memory = {}});
    TrainOptions options;
    options.resume = resume;
    options.ranks = &own;
    const TrainResult result = train(runtime, config, options);
    if (own.first()) first = result;
  });
  return first;
}

/// Writes `config` as a file for the program.
inline std::string write_config(const std::filesystem::path& folder, const Config& config) {
  const std::filesystem::path path = folder / "config.toml";
  std::ofstream(path) << to_toml(config);
  return path.string();
}

inline std::string checkpoint_bytes(const std::filesystem::path& run, const std::string& name) {
  return read_text(run / "checkpoints" / (name + ".safetensors"));
}

/// The training loss of each logged step of a run.
inline std::vector<double> losses_of(const std::filesystem::path& run) {
  std::vector<double> losses;
  for (const auto& row : read_metrics(run / "metrics.jsonl"))
    if (row.count("loss") > 0) losses.push_back(row.at("loss"));
  return losses;
}

/// The validations in a run's metrics, by step.
inline std::map<double, std::map<std::string, double>> validations_of(const Config& config) {
  std::map<double, std::map<std::string, double>> found;
  for (const auto& row : read_metrics(std::filesystem::path(config.run.dir) / "metrics.jsonl"))
    if (row.contains("valid_error")) found[row.at("step")] = row;
  return found;
}

/// A run's metrics without what depends on the clock and the machine.
inline std::string lasting_metrics(const std::filesystem::path& run) {
  std::istringstream lines(read_text(run / "metrics.jsonl"));
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::ordered_json::parse(line);
    nlohmann::ordered_json kept;
    for (const auto& [key, value] : row.items())
      if (!key.ends_with("_second") && !key.ends_with("_seconds") && !key.starts_with("memory_"))
        kept[key] = value;
    result += kept.dump() + "\n";
  }
  return result;
}

/// Rewrites a safetensors file: `change(name, values)` sees every floating tensor as doubles.
inline void change_tensors(const std::filesystem::path& from, const std::filesystem::path& to,
                           const std::function<void(const std::string&, std::vector<double>&)>& change) {
  const SafetensorsFile file(from);
  std::vector<std::vector<double>> doubles;
  std::vector<std::vector<float>> floats;
  std::vector<SafetensorsTensor> tensors = file.view().tensors;
  doubles.reserve(tensors.size());
  floats.reserve(tensors.size());
  for (SafetensorsTensor& tensor : tensors) {
    if (tensor.dtype != SafetensorsDtype::f64 && tensor.dtype != SafetensorsDtype::f32) continue;
    std::vector<double>& values = doubles.emplace_back(to_f64(tensor));
    change(tensor.name, values);
    tensor.bytes = tensor.dtype == SafetensorsDtype::f64
                       ? std::as_bytes(std::span(values))
                       : std::as_bytes(std::span(floats.emplace_back(values.begin(), values.end())));
  }
  std::map<std::string, std::string> metadata = file.view().metadata;
  if (metadata.contains("checksum")) metadata["checksum"] = checkpoint_checksum(tensors, metadata);
  write_safetensors(to, tensors, metadata);
}

/// The bytes of every tensor in the last checkpoint of a run, by name.
inline std::map<std::string, std::string> tensors_of(const Config& config) {
  const SafetensorsFile file(std::filesystem::path(config.run.dir) / "checkpoints/last.safetensors");
  std::map<std::string, std::string> tensors;
  for (const SafetensorsTensor& tensor : file.view().tensors)
    tensors[tensor.name] = {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
  return tensors;
}

/// Trains plainly, on two ranks that add in order, and with `segments` recomputed: all have the same bits.
inline void check_same_bits(Config config, const std::vector<std::string>& segments = {"processor"}) {
  const std::string dir = config.run.dir;
  config.ranks.reduction = RankReduction::ordered;
  train_here(config);
  const auto plain = tensors_of(config);
  config.run.dir = dir + "_ranks";
  train_on_ranks(2, config);
  CHECK(tensors_of(config) == plain);
  config.recompute.check = true;
  for (const RecomputeMode mode : {RecomputeMode::block, RecomputeMode::sqrt}) {
    config.run.dir = dir + "_" + std::to_string(static_cast<int>(mode));
    config.recompute.mode = mode;
    config.recompute.include =
        mode == RecomputeMode::block ? std::vector<std::string>{"processor"} : segments;
    train_here(config);
    CHECK(tensors_of(config) == plain);
  }
}

/// Trains on the CPU, then plain and captured on a device: the validation losses agree, and on the simulated
/// device plain and captured weights have the same bits. `also`: what else is to hold of a device's run.
inline void check_trains_on_device(const Config& config,
                                   const std::function<void(Runtime&, const Config&)>& also = {}) {
  const TrainResult cpu = train_here(config);
  const auto on_device = [&](GraphsMode graphs) {
    Config here = config;
    here.run.dir += graphs == GraphsMode::off ? "plain" : "captured";
    here.run.device = "cuda";
    here.graphs = graphs;
    Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1, .allocator = here.memory});
    const TrainResult result = train(runtime, here, {});
    CHECK(result.state.last_valid_loss == doctest::Approx(cpu.state.last_valid_loss).epsilon(1e-4));
    if (also) also(runtime, here);
    return tensors_of(here);
  };
  // cuBLASLt may choose another algorithm for a batch's capacity than for its rows.
  const auto captured = on_device(GraphsMode::capture), plain = on_device(GraphsMode::off);
  if (cuda_devices().front().name == "simulated") CHECK(captured == plain);
}

}  // namespace meshgrad::test
