// SPDX-License-Identifier: Apache-2.0
// A model with unrolled batches of waves, for the tests of unrolled training.
#pragma once
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/learn/task/unrolled_loss.h>

#include <algorithm>

#include "support.h"
#include "train/small_run.h"

namespace meshgrad::test {

struct UnrollShape {
  Prediction predict = Prediction::change;
  DType precision = DType::f32;
  ComputePath path = ComputePath::fused;
  Activation activation = Activation::relu;
  int64_t width = 8, blocks = 2;
  int side = 4;
  int64_t frames = 14;
  Device device = {};
};

struct UnrollCase {
  ScratchDirectory scratch;
  Config config;
  Dataset dataset;
  MeshDynamics features;
  Normalizers normalizers;
  Runtime runtime;
  Model model;
  Tensor seed;  ///< of the backward pass

  explicit UnrollCase(const UnrollShape& shape)
      : config(config_of(scratch.path, shape)),
        dataset(Dataset::open(config.data.path)),
        features(dataset, config.data),
        normalizers(features.mesh().dataset_normalizers({})),
        runtime({.device = shape.device, .threads = 1}),
        model(make_model(config.model, features.mesh().sizes)) {
    model.parameters.allocate(runtime, shape.precision, 5);
    const double value = 1.0 / 64.0;
    seed = Tensor::from<double>(runtime, std::span<const double>(&value, 1), Shape{1}, Tag::data, "seed");
  }

  static Config config_of(const std::filesystem::path& folder, const UnrollShape& shape) {
    Config made = small_config(folder, pack_waves(folder, shape.side, shape.frames));
    made.data.predict = shape.predict;
    made.precision = shape.precision;
    made.model.width = shape.width;
    made.model.blocks = shape.blocks;
    made.model.path = shape.path;
    made.model.activation = shape.activation;
    return made;
  }

  /// The task, unrolled over `frames`.
  Task unrolled(int64_t frames) const { return Task(MeshDynamics(dataset, config.data, frames)); }
  static int64_t frames_of(const Batch& batch) {
    if (!batch.has("unroll.target")) return 1;
    return 1 + batch.tensor("unroll.target").rows() / unrolled_rows(batch.graph.nodes);
  }
  Batch batch(int64_t steps, const std::vector<Sample>& samples = {{0, 2, 0}, {1, 3, 0}}) {
    return training_batch(unrolled(steps), runtime, config.precision, config.data.train_split, samples, {},
                          normalizers);
  }
  UnrolledFrames frames(const Batch& batch) const {
    return {.count = frames_of(batch), .second_change = config.data.predict == Prediction::second_change};
  }
  double loss(const Batch& batch, std::vector<Tensor>* errors = nullptr) {
    Tape tape(runtime, Tape::Mode::evaluate);
    const Recomputation none;
    return read(unrolled_loss(tape, model, batch, frames(batch), none, errors).sum.value());
  }
  double read(const Tensor& scalar) const { return *to_host(scalar, runtime.stream()).data<double>(); }

  /// The gradients that a batch leaves, on the host, and what was counted.
  struct Gradients {
    Tensor values;
    OpCounts counts;
    int64_t peak = 0;  ///< bytes that forward and backward took
  };
  Gradients gradients(const Batch& batch, const Recomputation& recomputation) {
    const Tensor& arena = model.parameters.gradients();
    fill_zero(arena, runtime.stream());
    Gradients result;
    const int64_t before = runtime.allocator().stats().allocated.current;
    runtime.allocator().reset_peak();
    {
      Tape tape(runtime);
      if (recomputation.check) tape.check_recomputation();
      tape.backward(unrolled_loss(tape, model, batch, frames(batch), recomputation).sum, seed);
      result.counts = tape.counts();
    }
    result.peak = runtime.allocator().stats().allocated.peak - before;
    const Tensor host = to_host(arena, runtime.stream());
    result.values = host_tensor(arena.shape(), arena.dtype());
    copy(host, result.values, Stream(Device{}));
    return result;
  }
};

}  // namespace meshgrad::test
