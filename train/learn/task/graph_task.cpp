// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/graph_task.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace meshgrad {

GraphTask::GraphTask(const Dataset& data, const Config& config) : dataset(data), inputs_(data, config) {
  refuse_noise(config);
  sizes = inputs_.sizes();
  sizes.graph_starts = true;
  sizes.pool = config.model.pool;
}

SplitSamples GraphTask::samples(std::string_view split) const {
  SplitSamples samples;
  for (int64_t i = 0; i < dataset.size(split); ++i) samples.add(dataset.frames(split, i));
  return samples;
}

DataError GraphTask::no_samples(std::string_view split) const {
  return data_error(fmt::format("{}: split {}", dataset.path().string(), split), "at least one graph", "none",
                    "choose another split");
}

BatchShape GraphTask::shape(std::string_view split, const std::vector<Sample>& samples) const {
  BatchShape shape{.graphs = std::max<int64_t>(1, std::ssize(samples))};
  for (const Sample& sample : samples) {
    const Dataset::MeshSizes one = dataset.mesh_sizes(split, sample.trajectory);
    shape.nodes += one.nodes;
    shape.edges += one.edges;
  }
  if (std::max(shape.nodes, shape.edges) > std::numeric_limits<int32_t>::max() - 1) {
    throw config_error("train.batch", "a batch of fewer than 2^31 nodes and edges",
                       fmt::format("{} nodes and {} edges", shape.nodes, shape.edges),
                       "lower train.batch or train.batch_nodes");
  }
  return shape;
}

TaskDescription GraphTask::describe_inputs() const {
  TaskDescription text{.sample = "a graph"};
  inputs_.describe(text);
  return text;
}

std::vector<TaskWarning> GraphTask::data_warnings() const {
  std::vector<TaskWarning> found;
  for (const std::string& text : dataset.warnings()) found.push_back({"data.path", text});
  inputs_.warn(found);
  return found;
}

std::vector<GivenGraph> GraphTask::graphs_of(std::string_view split,
                                             const std::vector<Sample>& samples) const {
  std::vector<GivenGraph> graphs;
  for (const Sample& sample : samples)
    graphs.push_back({dataset.trajectory(split, sample.trajectory), sample.frame});
  return graphs;
}

int64_t GraphTask::evaluated(const EvaluateOptions& options) const {
  const int64_t size = dataset.size(options.split);
  return options.trajectories > 0 ? std::min(options.trajectories, size) : size;
}

bool GraphTask::predict_each(const TrainedModel& trained, const EvaluateOptions& options,
                             const std::function<void(const Sample&, std::span<const double>)>& one) const {
  constexpr int64_t kMostRows = 1 << 18;  // nodes and edges of a batch; a larger graph is one alone
  const SplitSamples all = samples(options.split);
  const int64_t count = all.starts[static_cast<size_t>(evaluated(options))];
  if (count == 0) throw no_samples(options.split);
  std::vector<std::vector<Sample>> batches;
  int64_t rows = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Sample sample = all.at(i);
    const Dataset::MeshSizes graph = dataset.mesh_sizes(options.split, sample.trajectory);
    rows += graph.nodes + graph.edges;
    if (batches.empty() || rows > kMostRows) {
      batches.emplace_back();
      rows = graph.nodes + graph.edges;
    }
    batches.back().push_back(sample);
  }
  const auto width = static_cast<size_t>(sizes.outputs);
  const auto predict = [&](const std::vector<Sample>& batch_samples) {
    Normalizers normalizers = trained.normalizers;
    const Batch batch = training_batch(trained.task, trained.runtime, trained.precision, options.split,
                                       batch_samples, {}, normalizers);
    Tape tape(trained.runtime, Tape::Mode::evaluate);
    const Values values = forward(trained.model, tape, batch.graph);
    return values_of(to_host(values.front().value(), trained.runtime.stream()));
  };
  Ranks alone;
  Ranks& ranks = options.ranks != nullptr ? *options.ranks : alone;
  const auto size = static_cast<size_t>(ranks.size());
  for (size_t begin = 0; begin < batches.size(); begin += size) {
    if (options.stop && agree(ranks, options.stop(), "evaluation")) return true;
    const auto round = std::span(batches).subspan(begin, std::min(size, batches.size() - begin));
    std::vector<std::vector<double>> predicted(size);
    for (size_t rank = 0; rank < round.size(); ++rank) predicted[rank].resize(round[rank].size() * width);
    const auto own = static_cast<size_t>(ranks.rank());
    if (own < round.size()) predicted[own] = predict(round[own]);
    dataset.check_unchanged();
    std::vector<std::span<std::byte>> parts;
    for (std::vector<double>& part : predicted) parts.push_back(std::as_writable_bytes(std::span(part)));
    all_gather_bytes(ranks, parts, "evaluation");
    for (size_t rank = 0; rank < round.size(); ++rank)
      for (size_t i = 0; i < round[rank].size(); ++i)
        one(round[rank][i], std::span<const double>(predicted[rank]).subspan(i * width, width));
  }
  return false;
}

void drop_first_frames(PredictedTable& table) {
  if (std::ranges::all_of(table.frames, [](int64_t frame) { return frame == 0; })) table.frames.clear();
}

}  // namespace meshgrad
