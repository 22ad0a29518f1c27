// SPDX-License-Identifier: Apache-2.0
// Batches by a budget of nodes (train.batch_nodes): which samples they have, their bounds, and runs: resumed,
// on ranks, accumulated, on the CPU and, captured or not, on a GPU or the simulated device.
#include <doctest/doctest.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/batch_order.h>
#include <meshgrad/train/learn/task/largest_batch.h>

#include <algorithm>
#include <set>

#include "support.h"
#include "train/graph_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::ScratchDirectory;

constexpr int64_t kBudget = 20;

/// Rings of 3 to 8 nodes.
struct BudgetCase {
  ScratchDirectory scratch;
  Config config;
  Task task;
  explicit BudgetCase(int graphs)
      : config(test::graph_config(scratch.path, test::pack_graphs(scratch.path, test::small_graphs(graphs)),
                                  TaskName::graph_regression)),
        task(make_task(config, Dataset::open(config.data.path))) {
    config.train.batch = TrainConfig().batch;
    config.train.batch_nodes = kBudget;
  }
  BatchShape shape(const Sampler& sampler, int64_t begin, int64_t end) const {
    std::vector<Sample> samples;
    for (int64_t position = begin; position < end; ++position) samples.push_back(sampler.at(position));
    return task.shape("train", samples);
  }
};

TEST_CASE("batches fill their budget of nodes") {
  const BudgetCase c(60);
  BatchOrder order(c.config, c.task);
  const Sampler& sampler = order.sampler();
  const int64_t samples = sampler.samples();
  const BatchShape most = largest_batch(c.config, c.task), least = smallest_batch(c.config, c.task);
  CHECK(most.nodes == kBudget);
  CHECK(most.edges == 2 * kBudget);
  int64_t begin = 0;
  std::set<int64_t> batches_of_passes;
  for (int64_t batch = 0, pass_begin = 0; batch < 300; ++batch) {
    const int64_t end = order.begin_of(batch + 1);
    REQUIRE(end > begin);
    REQUIRE(BatchOrder(c.config, c.task).begin_of(batch) == begin);  // asked there first
    const BatchShape shape = c.shape(sampler, begin, end);
    CHECK(most.holds(shape));
    CHECK(shape.nodes >= least.nodes);
    CHECK(shape.edges >= least.edges);
    if (end % samples != 0) {
      CHECK(c.shape(sampler, begin, end + 1).nodes > kBudget);
    } else {  // a batch does not cross the end of a pass
      CHECK(order.batches_of(end / samples) == batch + 1);
      batches_of_passes.insert(batch + 1 - pass_begin);
      pass_begin = batch + 1;
    }
    CHECK(begin / samples == (end - 1) / samples);
    begin = end;
  }
  CHECK(batches_of_passes.size() > 1);  // their number differs
}

TEST_CASE("a rank's samples are cut by the budget, too") {
  const BudgetCase c(60);
  const BatchOrder order(c.config, c.task);
  const std::vector<int64_t> places{1, 2, 5, 6, 9, 11};
  const size_t count = order.first_batch(100, places);
  const auto nodes = [&](size_t end) {
    std::vector<Sample> samples;
    for (size_t i = 0; i < end; ++i) samples.push_back(order.sampler().at(100 + places[i]));
    return c.task.shape("train", samples).nodes;
  };
  REQUIRE(count < places.size());
  CHECK(nodes(count) <= kBudget);
  CHECK(nodes(count + 1) > kBudget);
}

TEST_CASE("a planned batch of a budget has the most edges a node") {
  BudgetCase c(60);
  for (const int64_t budget : {8, 20, 33, 10000}) {
    c.config.train.batch_nodes = budget;
    const BatchShape most = largest_batch(c.config, c.task);
    const std::vector<Sample> samples = largest_samples(c.config, c.task);
    CHECK(most.holds(c.task.shape("train", samples)));
    CHECK(c.task.shape("train", samples).nodes > std::min(budget, most.nodes) - 8);
  }
  CHECK(largest_samples(c.config, c.task).size() == 36);  // all of the split
}

TEST_CASE("a budget below a graph, or beside train.batch, is refused") {
  BudgetCase c(60);
  c.config.train.batch_nodes = 7;
  const std::string message = message_of([&] { test::train_here(c.config); });
  CHECK(contains(message, "[train.batch_nodes] needed at least 8, the nodes of graph "));
  CHECK(contains(message, " of split train, got 7; fix: raise it to 8 or more, or set train.batch instead"));
  c.config.train.batch_nodes = 20;
  c.config.train.batch = 5;
  CHECK(contains(
      message_of([&] { check_config(c.config); }),
      "[train.batch] needed 2, its default, with train.batch_nodes = 20, got 5; fix: leave out one"));
  c.config.train.batch = kAutoBatch;
  CHECK(contains(message_of([&] { check_config(c.config); }), "got \"auto\""));
}

TEST_CASE("a window of a budget's batches equals one large batch") {
  BudgetCase c(60);
  Config config = c.config;
  config.train.steps = 1;
  config.train.log_every = 1;
  config.train.batch_nodes = 10000;  // the whole split
  test::train_here(config);
  const double whole = test::losses_of(config.run.dir).front();
  config.train.batch_nodes = kBudget;
  config.train.accumulate = BatchOrder(config, c.task).batches_of(1);
  CHECK(config.train.accumulate > 5);
  config.run.dir += "parts";
  test::train_here(config);
  CHECK(test::losses_of(config.run.dir).front() == doctest::Approx(whole).epsilon(1e-6));
}

TEST_CASE("runs of a budget resume, with the bits of any ranks") {
  BudgetCase c(40);
  c.config.train.batch_nodes = 30;
  c.config.train.validate_every = 4;
  c.config.ranks.reduction = RankReduction::ordered;
  for (const int64_t accumulate : {1, 3}) {
    Config config = c.config;
    config.train.accumulate = accumulate;
    config.train.epochs = 5;
    const std::string folder = c.scratch.path / std::to_string(accumulate);
    config.run.dir = folder + "straight";
    test::train_here(config);
    const auto whole = test::tensors_of(config);
    const std::string metrics = test::lasting_metrics(config.run.dir);
    config.run.dir = folder + "pieces";
    for (const int64_t stop : {3, 4}) {
      int64_t calls = 0;
      test::train_here(config, stop != 3, [&] { return ++calls == stop; });
    }
    test::train_here(config, true, nullptr, 3);
    CHECK(test::tensors_of(config) == whole);
    CHECK(test::lasting_metrics(config.run.dir) == metrics);
    for (const int ranks : {2, 4}) {
      config.run.dir = folder + "ranks" + std::to_string(ranks);
      test::train_on_ranks(ranks, config);
      CHECK(test::tensors_of(config) == whole);
    }
    config.run.dir = folder + "fast";
    config.ranks.reduction = RankReduction::fast;
    const double ordered = test::losses_of(folder + "straight").back();
    test::train_on_ranks(3, config);
    CHECK(test::losses_of(config.run.dir).back() == doctest::Approx(ordered).epsilon(1e-4));
  }
}

TEST_CASE("a device trains on batches of a budget as the CPU does" * doctest::skip(cuda_devices().empty())) {
  BudgetCase c(20);
  c.config.train.steps = 6;
  c.config.train.validate_every = 2;
  test::check_trains_on_device(c.config);
}

}  // namespace
}  // namespace meshgrad
