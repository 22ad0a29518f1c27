// SPDX-License-Identifier: Apache-2.0
// Starts of graphs in batches that are asked for them: written with the batch, on a device too, and read by a
// captured step of batches of any size.
#include <doctest/doctest.h>
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/kernels/segment_sum.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/learn/task/upload.h>

#include "support.h"
#include "train/small_run.h"

#include <algorithm>

namespace meshgrad {
namespace {

using test::ScratchDirectory;

/// Waves on 9 and on 16 nodes.
struct StartedWaves {
  ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 3, 6));
  Dataset dataset = Dataset::open(config.data.path);
  Task task = make_task(config, dataset);

  BatchLayout layout(const BatchShape& shape, BatchLayout::Sizes kind, bool starts = true) const {
    ModelSizes sizes = task.sizes();
    sizes.graph_starts = starts;
    BatchLayout layout(sizes, shape, DType::f32, kind);
    layout.add("target", {shape.nodes, sizes.outputs}, DType::f32, TensorRows::nodes);
    layout.add("mask", {shape.nodes}, DType::u8, TensorRows::nodes);
    return layout;
  }
  Batch written(const BatchLayout& layout, const std::vector<Sample>& samples) const {
    const Batch batch = layout.batch(host_tensor({layout.bytes()}, DType::u8).storage());
    Normalizers normalizers = task.dataset_normalizers({});
    SampleScratch scratch_rows;
    task.write(batch, "train", samples, {}, normalizers, false, scratch_rows);
    return batch;
  }
};

std::vector<int32_t> graph_starts_of(const Batch& batch) {
  const auto values = batch.graph.graph_starts.values<int32_t>();
  return {values.begin(), values.end()};
}

const std::vector<Sample> kThreeGraphs{{0, 0, 0}, {1, 1, 0}, {0, 2, 0}}, kOneGraph{{1, 2, 0}};

TEST_CASE("a batch has graph starts only where asked for") {
  const StartedWaves w;
  const BatchShape three = w.task.shape("train", kThreeGraphs);
  CHECK(three.graphs == 3);
  const BatchLayout without = w.layout(three, BatchLayout::Sizes::exact, false);
  const BatchLayout with = w.layout(three, BatchLayout::Sizes::exact);
  CHECK(with.bytes() == without.bytes() + BatchLayout::kAlignment);
  CHECK_FALSE(w.written(without, kThreeGraphs).graph.graph_starts.defined());
  CHECK(graph_starts_of(w.written(with, kThreeGraphs)) == std::vector<int32_t>{0, 9, 25, 34});
  CHECK_FALSE(w.written(with, kThreeGraphs).graph.node_count.defined());
}

TEST_CASE("places without a graph start at the real number of nodes") {
  const StartedWaves w;
  const BatchShape room{.nodes = 40, .edges = 200, .graphs = 5};
  const Batch batch = w.written(w.layout(room, BatchLayout::Sizes::capacity), kThreeGraphs);
  CHECK(graph_starts_of(batch) == std::vector<int32_t>{0, 9, 25, 34, 34, 34});
  CHECK(batch.graph.node_rows().value() == 34);
  batch.graph.check();
}

TEST_CASE("a captured step reads the starts of every batch" * doctest::skip(cuda_devices().empty())) {
  const StartedWaves w;
  Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1});
  const BatchShape room{.nodes = 40, .edges = 200, .graphs = 4};
  const BatchLayout layout = w.layout(room, BatchLayout::Sizes::capacity);
  const StoragePtr memory = device_batch_memory(runtime, layout.bytes());
  const Batch batch = layout.batch(memory);
  const int64_t width = batch.graph.node_features.width();
  const Tensor sums = Tensor::zeros(runtime, {room.graphs, width}, DType::f32, Tag::data);
  CapturedWork work(runtime, "pooling", [&](Runtime& own) {
    kernels::segment_sum({.segments = room.graphs,
                          .offsets = batch.graph.graph_starts,
                          .order = {},
                          .x = batch.graph.node_features,
                          .out = sums},
                         own.stream());
  });
  const std::vector<Sample> two{{1, 0, 0}, {0, 1, 0}};
  for (const std::vector<Sample>& samples : {kThreeGraphs, kOneGraph, two, kThreeGraphs, two}) {
    const Batch host = w.written(layout, samples);
    copy(Tensor::over(host.graph.node_features.storage(), 0, {layout.bytes()}, DType::u8),
         Tensor::over(memory, 0, {layout.bytes()}, DType::u8), runtime.stream());
    work.run();
    const Tensor ours = to_host(sums, runtime.stream());
    const std::vector<int32_t> starts = graph_starts_of(host);
    const float* const rows = host.graph.node_features.data<float>();
    double largest = 0.0;
    for (int64_t g = 0; g < room.graphs; ++g) {
      for (int64_t c = 0; c < width; ++c) {
        double sum = 0.0;
        for (int64_t i = starts[static_cast<size_t>(g)]; i < starts[static_cast<size_t>(g) + 1]; ++i)
          sum += static_cast<double>(rows[i * width + c]);
        largest = std::max(largest, std::abs(sum - static_cast<double>(ours.data<float>()[g * width + c])));
      }
    }
    CHECK(largest < 1e-4);
  }
  CHECK(work.recorded());
}

}  // namespace
}  // namespace meshgrad
