// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/task/curriculum.h>
#include <meshgrad/train/learn/task/largest_batch.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

namespace meshgrad {
namespace {

/// Passes over `samples` samples that a window of so many can touch. Windows start at multiples of their
/// length.
int64_t passes_of_window(int64_t window, int64_t samples) {
  if (window % samples == 0) return window / samples;
  if (samples % window == 0) return 1;
  return (window - 2) / samples + 2;
}

/// How often a window can have the same sample.
int64_t most_uses(const Config& config, const Task& task, int64_t samples) {
  const int64_t window = config.train.batch * config.train.accumulate;
  const std::optional<Curriculum> curriculum = Curriculum::of(config, task);
  return curriculum ? curriculum->most_uses(window) : passes_of_window(window, samples);
}

/// Of a trajectory: its size and how often its samples can occur in a window.
struct Occurrences {
  std::pair<int64_t, int64_t> size;
  int64_t trajectory = 0, count = 0;
};

/// Trajectories of the training split, ordered by `size_of` their mesh, until their samples fill a batch.
template <class SizeOf, class Order>
std::vector<Occurrences> first_of_split(const Config& config, const Task& task, SizeOf&& size_of,
                                        Order&& order) {
  const Dataset& dataset = task.dataset();
  const std::string& split = config.data.train_split;
  const SplitSamples split_samples = task.samples(split);
  std::vector<Occurrences> all;
  for (int64_t i = 0; i < dataset.size(split); ++i) {
    const int64_t count = split_samples.in_trajectory(i);
    all.push_back({size_of(dataset.mesh_sizes(split, i)), i, std::max<int64_t>(1, count)});
  }
  const int64_t uses = most_uses(config, task, std::max<int64_t>(1, split_samples.size()));
  // Each has a sample at least. Of equal ones the first: results do not depend on how they were sorted.
  const auto before = [&](const Occurrences& a, const Occurrences& b) {
    return a.size == b.size ? a.trajectory < b.trajectory : order(a.size, b.size);
  };
  const auto most = all.begin() + std::min<int64_t>(config.train.batch, std::ssize(all));
  std::partial_sort(all.begin(), most, all.end(), before);
  all.erase(most, all.end());
  int64_t left = config.train.batch;
  for (Occurrences& one : all) {
    one.count = std::min(left, uses * one.count);
    left -= one.count;
  }
  return all;
}

/// Of equal numbers of edges, the one with more nodes is the larger.
std::pair<int64_t, int64_t> by_edges(const Dataset::MeshSizes& mesh) { return {mesh.edges, mesh.nodes}; }

template <class Order>
BatchShape batch_of(const Config& config, const Task& task, const Order& order) {
  const auto sum = [&](int64_t Dataset::MeshSizes::*which) {
    int64_t total = 0;
    const auto size_of = [&](const Dataset::MeshSizes& mesh) {
      return std::pair<int64_t, int64_t>(mesh.*which, 0);
    };
    for (const Occurrences& one : first_of_split(config, task, size_of, order))
      total += one.count * one.size.first;
    return std::max<int64_t>(1, total);
  };
  BatchShape batch{.nodes = sum(&Dataset::MeshSizes::nodes), .edges = sum(&Dataset::MeshSizes::edges)};
  batch.world_edges = world_room(config.data, batch.nodes);
  batch.graphs = config.train.batch;
  return batch;
}

/// Of a trajectory of the training split: the sizes of its mesh, and in how many batches of a window its
/// samples can occur.
struct SizedSamples {
  Dataset::MeshSizes mesh;
  int64_t trajectory = 0, count = 0;
};

/// Those of the split, with train.batch_nodes. Batches do not cross the ends of passes; a rank's share of a
/// window may.
std::vector<SizedSamples> sized_samples(const Config& config, const Task& task) {
  const Dataset& dataset = task.dataset();
  const std::string& split = config.data.train_split;
  const SplitSamples samples = task.samples(split);
  std::vector<SizedSamples> all;
  for (int64_t i = 0; i < dataset.size(split); ++i) {
    const Dataset::MeshSizes mesh = dataset.mesh_sizes(split, i);
    all.push_back({mesh, i, config.train.accumulate * std::max<int64_t>(1, samples.in_trajectory(i))});
    if (mesh.nodes <= config.train.batch_nodes) continue;
    const bool meshes = find_key("data.hops")->applies_to(config.task.name);
    throw config_error(
        "train.batch_nodes",
        fmt::format("at least {}, the nodes of {} {} of split {}", mesh.nodes,
                    meshes ? "trajectory" : "graph", i, split),
        std::to_string(config.train.batch_nodes),
        fmt::format("raise it to {} or more, or set train.batch instead", dataset.largest_mesh(split).nodes));
  }
  return all;
}

/// Fills train.batch_nodes with samples in the order of `before`: `take` gets each with how many nodes are
/// left, and returns how many it takes of them.
template <class Before, class Take>
void fill_batch(const Config& config, const Task& task, const Before& before, const Take& take) {
  std::vector<SizedSamples> all = sized_samples(config, task);
  // Of equal ones the first: results do not depend on how they were sorted.
  std::sort(all.begin(), all.end(), [&](const SizedSamples& a, const SizedSamples& b) {
    if (before(a.mesh, b.mesh) || before(b.mesh, a.mesh)) return before(a.mesh, b.mesh);
    return a.trajectory < b.trajectory;
  });
  int64_t left = config.train.batch_nodes;
  for (const SizedSamples& one : all) left -= take(one, left);
}

bool more_edges_a_node(const Dataset::MeshSizes& a, const Dataset::MeshSizes& b) {
  return a.edges * b.nodes > b.edges * a.nodes;
}

BatchShape most_within_nodes(const Config& config, const Task& task) {
  BatchShape batch{.nodes = 0, .edges = 0, .graphs = 0};
  fill_batch(config, task, more_edges_a_node, [&](const SizedSamples& one, int64_t left) {
    const int64_t nodes = std::min(left, one.count * one.mesh.nodes);
    batch.nodes += nodes;
    batch.edges += nodes == 0 ? 0 : (nodes * one.mesh.edges - 1) / one.mesh.nodes + 1;
    return nodes;
  });
  const auto fewer_nodes = [](const auto& a, const auto& b) { return a.nodes < b.nodes; };
  fill_batch(config, task, fewer_nodes, [&](const SizedSamples& one, int64_t left) {
    const int64_t samples = std::min(left / one.mesh.nodes, one.count);
    batch.graphs += samples;
    return samples * one.mesh.nodes;
  });
  batch.edges = std::max<int64_t>(1, batch.edges);
  batch.world_edges = world_room(config.data, batch.nodes);
  return batch;
}

BatchShape least_within_nodes(const Config& config, const Task& task) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  BatchShape batch{.nodes = kMost, .edges = kMost};
  for (const SizedSamples& one : sized_samples(config, task)) {
    batch.nodes = std::min(batch.nodes, one.mesh.nodes);
    batch.edges = std::min(batch.edges, std::max<int64_t>(1, one.mesh.edges));
  }
  batch.world_edges = world_room(config.data, batch.nodes);
  return batch;
}

}  // namespace

BatchShape largest_batch(const Config& config, const Task& task) {
  return task.room(config.train.batch_nodes > 0 ? most_within_nodes(config, task)
                                                : batch_of(config, task, std::greater<>()));
}

BatchShape smallest_batch(const Config& config, const Task& task) {
  return task.room(config.train.batch_nodes > 0 ? least_within_nodes(config, task)
                                                : batch_of(config, task, std::less<>()));
}

std::vector<Sample> largest_samples(const Config& config, const Task& task) {
  const SplitSamples all = task.samples(config.data.train_split);
  std::vector<Sample> samples;
  if (config.train.batch_nodes > 0) {
    fill_batch(config, task, more_edges_a_node, [&](const SizedSamples& one, int64_t left) {
      const int64_t count = std::min(left / one.mesh.nodes, all.in_trajectory(one.trajectory));
      for (int64_t i = 0; i < count; ++i)
        samples.push_back(all.at(all.starts[static_cast<size_t>(one.trajectory)] + i));
      return count * one.mesh.nodes;
    });
    return samples;
  }
  for (const Occurrences& one : first_of_split(config, task, by_edges, std::greater<>())) {
    const int64_t here = all.in_trajectory(one.trajectory);
    if (one.count > 0 && here == 0) {
      throw data_error(config.data.path, "frames to train on in the trajectories of the largest meshes",
                       fmt::format("0 in trajectory {}", one.trajectory),
                       "plan with --mode static, or lower unroll.steps");
    }
    for (int64_t i = 0; i < one.count; ++i)
      samples.push_back(all.at(all.starts[static_cast<size_t>(one.trajectory)] + i % here));
  }
  return samples;
}

}  // namespace meshgrad
