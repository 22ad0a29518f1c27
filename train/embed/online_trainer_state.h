// SPDX-License-Identifier: Apache-2.0
// The inside of an OnlineTrainer.
#pragma once
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/ghost_rows.h>
#include <meshgrad/train/embed/host_copies.h>
#include <meshgrad/train/embed/merge_normalizers.h>
#include <meshgrad/train/embed/online_config.h>
#include <meshgrad/train/embed/online_trainer.h>
#include <meshgrad/train/embed/own_process.h>
#include <meshgrad/train/embed/replay_buffer.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/learn/run/window_sum.h>

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshgrad {

struct OnlineTrainer::State {
  Runtime& runtime;
  Config config;
  OnlineOptions options;
  Task task;
  Model model;
  Normalizers normalizers;
  Optimizer optimizer;
  ReplayBuffer buffer;
  int64_t steps = 0;
  SampleScratch scratch;
  Ranks alone;
  Ranks& ranks;
  OwnProcess process;
  WindowSum window_sum;
  Normalizers learned;                  // of several ranks: by this one, and not yet merged
  std::vector<GivenPart> solver_parts;  // by mesh, where the solver has partitioned them
  std::optional<MeshParts> parts;       // where the solver has partitioned the meshes
  std::optional<GhostRows> ghost_rows;  // then: of the current mesh
  TrainingRanges seen;                  // of the frames that this process appended

  State(Runtime& own, Ranks* with, const Config& given, const OnlineOptions& given_options)
      : runtime(own),
        config(online_config(check_config(given))),
        options(with_used_fields(given_options, config)),
        task(make_task(config, empty_dataset(options, config))),
        model(make_model(runtime, config, task.sizes())),
        normalizers(task.online_normalizers()),
        optimizer(runtime, model.parameters, config, config.train.steps),
        buffer(options, task.mesh().least_frames(), config.data.node_types, seed(), config.data.train_split,
               config.data.valid_split),
        ranks(with == nullptr ? alone : *with),
        process(runtime, ranks),
        window_sum(runtime, ranks, config.ranks, model),
        learned(task.online_normalizers()) {
    check_precision(runtime.device(), config.precision);
    ranks.set_timeout(std::chrono::seconds(config.ranks.timeout));
  }
  /// Null: the trainer was made without.
  Ranks* given_ranks() { return &ranks == &alone ? nullptr : &ranks; }
  uint64_t seed() const { return static_cast<uint64_t>(config.run.seed); }
  int64_t first_frame() const { return task.mesh().sample_frames(0).first; }
  void read_buffer() { task = make_task(config, Dataset::over(buffer.data())); }
  void choose_path() {
    const std::string path = or_leave(ranks, [&] { return window_sum.choose_path(); });
    if (!path.empty() && ranks.first()) runtime.log_once(LogLevel::info, path);
    if (parts) parts->use(window_sum.between_gpus());
  }
  void set_mesh(const MeshArrays& mesh, std::vector<int32_t> numbers = {}) {
    if (mesh.in_parts) check_whole_needed();
    buffer.set_mesh(mesh, std::move(numbers));
    warn(no_lengths_warning(buffer.mesh()));
    read_buffer();
    read_parts();
  }
  void read_parts() {
    parts.reset();
    solver_parts = buffer.parts();
    if (!solver_parts.empty())
      parts.emplace(runtime, given_parts(solver_parts, ranks), ranks).use(window_sum.between_gpus());
  }
  void set_mesh_in_parts(const MeshArrays& given) {
    HostCopies copies(runtime);
    MeshArrays mesh;
    GivenPart part;
    on_all_ranks(ranks, [&] {
      mesh = copies.read(given);
      part = given_part(mesh, options.dim);
    });
    const size_t nodes = mesh.positions.size() / static_cast<size_t>(options.dim);
    const auto owned = static_cast<int64_t>(nodes - part.ghost_owner.size());
    ghost_rows.emplace(ranks, owned, part);
    std::vector<int32_t> numbers = node_numbers(ranks, owned, part);
    on_all_ranks(ranks, [&] { set_mesh(mesh, std::move(numbers)); });
    warn(ghost_place_warning(ranks, *ghost_rows, part, mesh.positions, options.dim));
    check_borders(buffer.mesh(), *buffer.part(), ranks);
  }
  void forget_mesh() {
    ghost_rows.reset();
    buffer.forget_mesh();
    read_buffer();
    read_parts();
  }
  /// Edges of a mesh that moves read where ghosts are.
  void fill_ghosts() {
    const auto& position = task.mesh().fields.world_position;
    if (!ghost_rows || !position) return;
    const FieldInfo& field = position->field;
    or_leave(ranks, [&] {
      ghost_rows->fill(ranks, buffer.current(field.name), static_cast<size_t>(field.components));
    });
  }
  void check_world_edges();
  void warn_of_data();
  /// Unless empty, and once.
  void warn(const std::string& text) {
    if (!text.empty()) runtime.log_once(LogLevel::warning, text);
  }
  void check_whole_needed() const {
    if (task.mesh().world.any()) {
      throw invalid_argument("OnlineTrainer: set_mesh", "whole meshes, with data.world_radius",
                             "a mesh in parts", "set the whole mesh, on one process");
    }
    if (const TargetFields& graphs = task.mesh().fields.graph_targets; !graphs.empty()) {
      throw invalid_argument("OnlineTrainer: set_mesh",
                             "whole meshes, with targets on graphs: " + graphs.names(), "a mesh in parts",
                             "set the whole mesh, on one process");
    }
    if (reads_graph_starts(config.model)) {
      throw invalid_argument("OnlineTrainer: set_mesh", "whole meshes, with model.slices", "a mesh in parts",
                             "set the whole mesh, on one process");
    }
    const LossConfig& loss = config.loss;
    std::string got;
    if (loss.name == LossName::relative_l2) got = "name = \"relative_l2\"";
    if (loss.sample < 1.0) got = fmt::format("sample = {}", loss.sample);
    if (!loss.type_weights.empty()) got = fmt::format("{} type_weights", loss.type_weights.size());
    if (got.empty()) return;
    throw config_error("loss", "no relative_l2, sample and type_weights on a mesh that the solver has cut",
                       got, "leave it out: a rank knows only its own part of a sample");
  }
  void learn_from(const StoredSample& stored);
  void see_frame();
  /// What a checkpoint says of the data; with several ranks all call it.
  TrainingData described_data() const;
  void merge_learned() {
    if (!ranks.single()) merge_normalizers(ranks, learned, normalizers);
  }
  std::vector<Sample> draw() const;
  double loss_weight(const Task& of, std::string_view split, const std::vector<Sample>& samples) const;
  Batch batch_of(const Task& of, std::string_view split, const std::vector<Sample>& samples,
                 const NoiseOptions& noise, double weight);
  double held_out_loss();
  double held_out_loss_in_parts();
  /// Loss terms of this step on all ranks; 0 when one of them stops, or none has a sample.
  double window_weight(const std::vector<Sample>& samples, bool stop);
  /// False without a step: when a rank stops, or none has a sample.
  bool train_step(bool stop);
  void check_finite() const;
};

}  // namespace meshgrad
