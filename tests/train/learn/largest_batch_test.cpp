// SPDX-License-Identifier: Apache-2.0
// The bounds of training batches, against every batch that a sampler can give.
#include <doctest/doctest.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/task/largest_batch.h>

#include <algorithm>

#include "support.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

using test::ScratchDirectory;

/// Waves on 3 x 3 and on 4 x 4 nodes, with a sample a frame but the last.
struct PlannedWaves {
  ScratchDirectory scratch;
  Config config;
  Dataset dataset;
  Task task;
  explicit PlannedWaves(int64_t frames)
      : config(test::small_config(scratch.path, test::pack_waves(scratch.path, 3, frames))),
        dataset(Dataset::open(config.data.path)),
        task(make_task(config, dataset)) {}
  void set(int64_t batch, int64_t accumulate) {
    config.train.batch = batch;
    config.train.accumulate = accumulate;
  }
};

constexpr int64_t kSmallNodes = 9, kLargeNodes = 16, kSmallEdges = 32, kLargeEdges = 66;

TEST_CASE("a batch is planned by the sum of its largest samples") {
  PlannedWaves w(2);  // a sample each
  const auto check = [&](int64_t batch, int64_t accumulate, int64_t large, int64_t small) {
    w.set(batch, accumulate);
    const BatchShape most = largest_batch(w.config, w.task);
    CAPTURE(batch);
    CAPTURE(accumulate);
    CHECK(most.nodes == large * kLargeNodes + small * kSmallNodes);
    CHECK(most.edges == large * kLargeEdges + small * kSmallEdges);
    CHECK(most.graphs == batch);
  };
  check(1, 1, 1, 0);
  check(2, 1, 1, 1);  // windows are passes
  check(3, 1, 2, 1);  // windows may begin within a pass
  check(4, 1, 2, 2);
  check(1, 4, 1, 0);
  check(2, 2, 2, 0);  // ranks may take the same sample of both passes
  w.set(2, 1);
  CHECK(smallest_batch(w.config, w.task).nodes == kLargeNodes + kSmallNodes);
  w.set(1, 1);
  CHECK(smallest_batch(w.config, w.task).edges == kSmallEdges);
}

TEST_CASE("the largest samples have as many edges as the largest batch") {
  for (const int64_t frames : {2, 4}) {
    PlannedWaves w(frames);
    for (const int64_t batch : {1, 2, 3, 4, 7, 20}) {
      w.set(batch, 1);
      const std::vector<Sample> samples = largest_samples(w.config, w.task);
      CHECK(std::ssize(samples) == batch);
      const BatchShape shape = w.task.shape("train", samples), most = largest_batch(w.config, w.task);
      CHECK(shape.edges == most.edges);
      CHECK(most.holds(shape));
    }
  }
}

TEST_CASE("the largest batch bounds every batch of a window") {
  for (const int64_t frames : {2, 3, 6}) {
    PlannedWaves w(frames);
    const Sampler sampler(w.task, "train", 5);
    for (int64_t batch = 1; batch <= 7; ++batch) {
      for (int64_t accumulate = 1; accumulate <= 3; ++accumulate) {
        w.set(batch, accumulate);
        const int64_t most = largest_batch(w.config, w.task).nodes;
        const int64_t least = smallest_batch(w.config, w.task).nodes;
        int64_t largest = 0, smallest = most;
        for (int64_t window = 0; window < 200; ++window) {
          // Ranks may take any `batch` of a window's samples.
          std::vector<int64_t> nodes;
          for (int64_t i = 0; i < batch * accumulate; ++i)
            nodes.push_back(w.task.shape("train", {sampler.at(window * batch * accumulate + i)}).nodes);
          std::ranges::sort(nodes);
          int64_t low = 0, high = 0;
          for (int64_t i = 0; i < batch; ++i) {
            low += nodes[static_cast<size_t>(i)];
            high += nodes[nodes.size() - 1 - static_cast<size_t>(i)];
          }
          largest = std::max(largest, high);
          smallest = std::min(smallest, low);
        }
        CAPTURE(frames);
        CAPTURE(batch);
        CAPTURE(accumulate);
        CHECK(largest <= most);
        CHECK(smallest >= least);
        const int64_t samples = sampler.samples();
        if ((batch * accumulate) % samples == 0) CHECK(largest == most);  // the bound is reached
      }
    }
  }
}

}  // namespace
}  // namespace meshgrad
