// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/class_metrics.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/link_reconstruction.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace meshgrad {
namespace {

/// Of each entry, as the linked ones are half of the loss, and the others; `drawn` of `pairs` stand for all.
float entry_weight(int64_t entries, size_t pairs, size_t drawn) {
  if (drawn == 0) return 0.0F;
  return static_cast<float>(0.5 / static_cast<double>(entries) * static_cast<double>(pairs) /
                            static_cast<double>(drawn));
}

std::string_view part_named(std::string_view split) {
  for (const std::string_view part : {"train", "valid", "test"})
    if (split == part) return part;
  throw config_error("split", "train, valid or test, as links are divided", toml_quoted(std::string(split)),
                     "name one of these");
}

const PairSample& part_of(const LinkSplit& links, std::string_view split) {
  const std::string_view part = part_named(split);
  return part == "train" ? links.train : part == "valid" ? links.valid : links.test;
}

/// log(1 + exp(x)).
double log_1p_exp(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

/// Inner products of rows of z.
struct LinkReconstruction::PairLogits {
  std::vector<double> z;
  size_t width;

  double operator()(const NodePair& pair) const {
    const double* const a = z.data() + static_cast<size_t>(pair.a) * width;
    const double* const b = z.data() + static_cast<size_t>(pair.b) * width;
    double sum = 0.0;
    for (size_t c = 0; c < width; ++c) sum += a[c] * b[c];
    return sum;
  }
  double cross_entropies(const PairSample& pairs) const {
    double sum = 0.0;
    for (const NodePair& pair : pairs.linked) sum += log_1p_exp(-(*this)(pair));
    for (const NodePair& pair : pairs.others) sum += log_1p_exp((*this)(pair));
    return sum;
  }
};

/// Of pairs or graphs, and which are what the scores look for.
struct LinkReconstruction::Scores {
  std::vector<double> score;
  std::vector<uint8_t> positive;
  void add(double one, uint8_t is_positive) {
    score.push_back(one);
    positive.push_back(is_positive);
  }
};

LinkReconstruction::LinkReconstruction(const Dataset& data, const Config& config)
    : GraphTask(data, config),
      vgae_(config.model.vgae),
      seed_(mixed_bits(static_cast<uint64_t>(config.data.link_seed))) {
  if (config.model.name != ModelName::vgae) {
    throw config_error("model.name", "\"vgae\" with task.name = \"link_reconstruction\"",
                       toml_quoted(std::string(name_of(config.model.name))), "set model.name = \"vgae\"");
  }
  inputs_.leave_edges_out();
  sizes = inputs_.sizes();
  sizes.graph_starts = true;
  sizes.edge_weights = vgae_.encoder == VgaeEncoder::convolution;
  sizes.outputs = vgae_.latent;
  int64_t nodes = 0;
  for (const SplitInfo& split : dataset.splits())
    if (split.count > 0) nodes = std::max(nodes, dataset.largest_mesh(split.name).nodes);
  drawn_ = std::min(vgae_.pairs, nodes * (nodes + 1) / 2);
  const std::string path = dataset.path().string();
  if (dataset.trajectories() != 1) {
    const DataConfig unset;
    if (config.data.link_valid != unset.link_valid || config.data.link_test != unset.link_test) {
      throw config_error(
          "data.link_valid",
          fmt::format("{}, and data.link_test = {}, the defaults: links of one graph are split, "
                      "of many each graph is in a split",
                      unset.link_valid, unset.link_test),
          fmt::format("{} and {}", config.data.link_valid, config.data.link_test), "leave both out");
    }
    if (!dataset.directed()) return;
    throw config_error("data.path", "graphs whose edges have no direction", "directed edges in " + path,
                       "convert with --undirected");
  }
  if (dataset.trajectory(0).frames() != 1) {
    throw config_error("task.name", "one graph without time, or many graphs, for \"link_reconstruction\"",
                       fmt::format("{} frames in {}", dataset.trajectory(0).frames(), path),
                       "convert one frame");
  }
  for (const SplitInfo& split : dataset.splits())
    if (split.count > 0) split_of_graph_ = split.name;
  if (config.data.train_split != split_of_graph_) {
    throw config_error("data.train_split", "the split that has the graph: " + split_of_graph_,
                       toml_quoted(config.data.train_split), "name it");
  }
  const MeshView mesh = dataset.trajectory(0).mesh();
  links_ = std::make_shared<const LinkSplit>(
      split_links(mesh.nodes, linked_pairs(mesh), config.data.link_valid, config.data.link_test, seed_));
  if (links_->train.linked.empty())
    throw data_error(path, "a graph with links to train on", "none",
                     "lower data.link_valid and data.link_test");
}

TrajectoryView LinkReconstruction::view_of(std::string_view split, const Sample& sample) const {
  return one_graph() ? dataset.trajectory(0) : dataset.trajectory(split, sample.trajectory);
}

std::vector<NodePair> LinkReconstruction::read_links(std::string_view split, const Sample& sample) const {
  return one_graph() ? links_->train.linked : linked_pairs(view_of(split, sample).mesh());
}

PairSample LinkReconstruction::evaluated_pairs(std::string_view split, const Sample& sample) const {
  const TrajectoryView view = view_of(split, sample);
  PairSample pairs;
  if (one_graph()) pairs = part_of(*links_, split);
  if (one_graph() && split != "train") return pairs;
  pairs.linked = read_links(split, sample);
  const uint64_t seed = mixed_bits(seed_ ^ view.sample_id(sample.frame));
  pairs.others = other_pairs(view.mesh().nodes, linked_pairs(view.mesh()), std::ssize(pairs.linked), seed, 2);
  return pairs;
}

SplitSamples LinkReconstruction::samples(std::string_view split) const {
  if (!one_graph()) return GraphTask::samples(split);
  SplitSamples samples;
  samples.add(part_of(*links_, split).linked.empty() ? 0 : 1);
  return samples;
}

DataError LinkReconstruction::no_samples(std::string_view split) const {
  if (!one_graph()) return GraphTask::no_samples(split);
  return data_error(dataset.path().string(), fmt::format("linked pairs for {}", split), "none",
                    fmt::format("raise data.link_{}, or name another split", split));
}

TaskDescription LinkReconstruction::describe() const {
  TaskDescription text = describe_inputs();
  if (one_graph()) text.sample = "the whole graph";
  text.outputs = {{"latent", sizes.outputs}};
  return text;
}

std::vector<TaskWarning> LinkReconstruction::validate(const Config& config) const {
  std::vector<TaskWarning> found = data_warnings();
  if (one_graph() && config.train.batch > 1) {
    found.push_back(
        {"train.batch", fmt::format("train.batch = {} computes the one graph {} times a step; set "
                                    "train.batch = 1",
                                    config.train.batch, config.train.batch)});
  }
  constexpr double kMany = 1e9;
  const auto nodes = static_cast<double>(dataset.largest_mesh(config.data.train_split).nodes);
  if (vgae_.pairs == 0 && nodes * nodes > kMany) {
    found.push_back(
        {"vgae.pairs", fmt::format("vgae.pairs = 0 computes all {:.2g} pairs of the largest graph "
                                   "in each step; set vgae.pairs = 100000",
                                   0.5 * nodes * nodes)});
  }
  return found;
}

BatchShape LinkReconstruction::shape(std::string_view split, const std::vector<Sample>& samples) const {
  BatchShape own{.graphs = std::max<int64_t>(1, std::ssize(samples))};
  if (!one_graph()) {
    own = GraphTask::shape(split, samples);
  } else {
    const auto count = std::ssize(samples);
    own.nodes = count * dataset.trajectory(0).mesh().nodes;
    own.edges = count * 2 * std::ssize(links_->train.linked);
  }
  own.edges += own.nodes;
  if (own.graphs * 4 * drawn_ > std::numeric_limits<int32_t>::max()) {
    throw config_error("vgae.pairs",
                       fmt::format("at most {}, for {} graphs in a batch",
                                   std::numeric_limits<int32_t>::max() / (4 * own.graphs), own.graphs),
                       fmt::format("{}", vgae_.pairs), "lower vgae.pairs or train.batch");
  }
  return own;
}

BatchShape LinkReconstruction::room(BatchShape shape) const {
  if (dataset.directed()) shape.edges *= 2;
  shape.edges += shape.nodes;
  return shape;
}

BatchLayout LinkReconstruction::layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const {
  BatchLayout layout(sizes, shape, dtype, kind);
  layout.add("pair_weights", {shape.graphs, 2}, DType::f32, TensorRows::graphs);
  layout.add("latent_weights", {shape.nodes}, DType::f32, TensorRows::nodes);
  if (vgae_.pairs > 0) {
    const int64_t entries = shape.graphs * 4 * drawn_;
    layout.add("pair_offsets", {shape.nodes + 1}, DType::i32);
    layout.add("pair_others", {entries}, DType::i32);
    layout.add("pair_linked", {entries}, DType::u8);
  }
  if (vgae_.feature_weight == 0.0) return layout;
  layout.add("target", {shape.nodes, sizes.node_inputs}, accumulator_of(dtype), TensorRows::nodes);
  layout.add("mask", {shape.nodes}, DType::u8, TensorRows::nodes);
  layout.add("feature_weights", {shape.nodes}, accumulator_of(dtype), TensorRows::nodes);
  return layout;
}

void LinkReconstruction::write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                               const NoiseOptions& noise, Normalizers& normalizers, bool learn,
                               SampleScratch& scratch) const {
  std::vector<std::vector<NodePair>> links;
  std::vector<std::unique_ptr<LinkGraph>> edges;
  std::vector<GivenGraph> graphs;
  for (const Sample& sample : samples) {
    const TrajectoryView view = view_of(split, sample);
    links.push_back(with_own_pairs(view.mesh().nodes, read_links(split, sample)));
    edges.push_back(std::make_unique<LinkGraph>(view.mesh(), links.back()));
    graphs.push_back({view, sample.frame, &edges.back()->view()});
  }
  inputs_.write(batch, graphs, normalizers, learn, scratch);
  if (sizes.edge_weights) write_convolution_weights(batch.graph.edges(kMeshEdges));
  write_pairs(batch, split, samples, links, noise.seed);
  if (vgae_.feature_weight > 0.0) write_features(batch, graphs);
  dataset.check_unchanged();
}

void LinkReconstruction::write_pairs(const Batch& batch, std::string_view split,
                                     const std::vector<Sample>& samples,
                                     const std::vector<std::vector<NodePair>>& links, uint64_t seed) const {
  const std::span<float> weights = batch.tensor("pair_weights").values<float>();
  std::ranges::fill(weights, 0.0F);
  float* latent = batch.tensor("latent_weights").data<float>();
  int32_t* offsets = vgae_.pairs > 0 ? batch.tensor("pair_offsets").data<int32_t>() : nullptr;
  int32_t first = 0, entries = 0;
  if (offsets != nullptr) *offsets++ = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const TrajectoryView view = view_of(split, samples[i]);
    const int64_t nodes = view.mesh().nodes, linked_entries = 2 * std::ssize(links[i]) - nodes;
    const int64_t other_entries = nodes * nodes - linked_entries;
    const size_t count = links[i].size(), others = static_cast<size_t>(other_entries / 2);
    std::fill_n(
        latent, nodes,
        static_cast<float>(vgae_.kl_weight / (static_cast<double>(nodes) * static_cast<double>(nodes))));
    latent += nodes;
    weights[2 * i] = entry_weight(linked_entries, count, count);
    weights[2 * i + 1] = entry_weight(other_entries, others, others);
    if (offsets == nullptr) continue;
    const uint64_t of_sample = mixed_bits(mixed_bits(seed) ^ view.sample_id(samples[i].frame));
    const PairSample drawn = drawn_pairs(nodes, links[i], vgae_.pairs, of_sample, samples[i].visit);
    weights[2 * i] = entry_weight(linked_entries, count, drawn.linked.size());
    weights[2 * i + 1] = entry_weight(other_entries, others, drawn.others.size());
    const LinkGraph linked(view.mesh(), drawn.linked), other(view.mesh(), drawn.others);
    int32_t* const to = batch.tensor("pair_others").data<int32_t>();
    uint8_t* const flags = batch.tensor("pair_linked").data<uint8_t>();
    for (size_t node = 0; node < static_cast<size_t>(nodes); ++node) {
      for (const LinkGraph* graph : {&linked, &other}) {
        const MeshView& pairs = graph->view();
        for (int32_t e = pairs.receiver_offsets[node]; e < pairs.receiver_offsets[node + 1]; ++e) {
          to[entries] = first + pairs.senders[static_cast<size_t>(e)];
          flags[entries++] = graph == &linked ? 1 : 0;
        }
      }
      *offsets++ = entries;
    }
    first += static_cast<int32_t>(nodes);
  }
}

void LinkReconstruction::write_features(const Batch& batch, const std::vector<GivenGraph>& graphs) const {
  dispatch_storage(accumulator_of(batch.graph.node_features.dtype()), [&]<class T>() {
    T* weights = batch.tensor("feature_weights").template data<T>();
    uint8_t* mask = batch.tensor("mask").data<uint8_t>();
    int64_t nodes = 0;
    for (const GivenGraph& graph : graphs) {
      const int64_t own = graph.view.mesh().nodes;
      std::fill_n(weights + nodes, own,
                  static_cast<T>(vgae_.feature_weight / static_cast<double>(own * sizes.node_inputs)));
      std::fill_n(mask + nodes, own, uint8_t{1});
      nodes += own;
    }
    std::vector<T> wide;
    std::ranges::copy(read_rows(batch.graph.node_features.row_range(0, nodes), wide),
                      batch.tensor("target").template data<T>());
  });
}

NodePairs LinkReconstruction::pairs_of(const Batch& batch) const {
  NodePairs pairs{.graph_starts = batch.graph.graph_starts, .weights = batch.tensor("pair_weights")};
  if (vgae_.pairs > 0) {
    pairs.offsets = batch.tensor("pair_offsets");
    pairs.others = batch.tensor("pair_others");
    pairs.linked = batch.tensor("pair_linked");
  } else {  // the edges are the linked pairs
    const Graph& graph = batch.graph.edge_sets[0].graph;
    pairs.offsets = graph.receiver_offsets;
    pairs.others = graph.senders;
    pairs.all_pairs = true;
  }
  return pairs;
}

Variable LinkReconstruction::add_divergence(Tape& tape, const Variable& sum, const Values& values,
                                            const Batch& batch) const {
  if (vgae_.kl_weight == 0.0) return sum;
  return ops::latent_loss(tape, sum, values[1], batch.tensor("latent_weights"));
}

Variable LinkReconstruction::add_features(Tape& tape, const Variable& sum, const Values& values,
                                          const Batch& batch) const {
  if (vgae_.feature_weight == 0.0) return sum;
  const Tensor& mask = batch.tensor("mask");
  const Variable error = ops::accumulate_error(tape, {}, values[2], batch.tensor("target"), mask);
  return ops::masked_loss(tape, sum, {error}, mask, {.row_weights = batch.tensor("feature_weights")}).sum;
}

LossTerms LinkReconstruction::loss(Tape& tape, const Model& model, const Batch& batch,
                                   const Recomputation& recomputation) const {
  const Values values = forward(model, tape, batch.graph, recomputation.stages);
  const Variable rest = add_features(tape, add_divergence(tape, {}, values, batch), values, batch);
  return {.sum = ops::pair_loss(tape, rest, values[0], pairs_of(batch)), .penalty = {}};
}

ComparedErrors LinkReconstruction::compare(const Stream&, std::string_view split, const Sample& sample,
                                           const Tensor& prediction, const Batch&, const Normalizers&) const {
  const PairSample pairs = evaluated_pairs(split, sample);
  const auto count = static_cast<double>(pairs.linked.size() + pairs.others.size());
  const PairLogits logits{values_of(prediction), static_cast<size_t>(sizes.outputs)};
  return {logits.cross_entropies(pairs), count * std::numbers::ln2, count};
}

bool LinkReconstruction::predict_each_graph(const TrainedModel& trained, const EvaluateOptions& options,
                                            const Compute& compute, const Take& take) const {
  const SplitSamples all = samples(options.split);
  const int64_t count = one_graph() ? all.size() : all.starts[static_cast<size_t>(evaluated(options))];
  if (count == 0) throw no_samples(options.split);
  Ranks alone;
  Ranks& ranks = options.ranks != nullptr ? *options.ranks : alone;
  for (int64_t begin = 0; begin < count; begin += ranks.size()) {
    if (options.stop && agree(ranks, options.stop(), "evaluation")) return true;
    std::vector<double> own;
    if (const int64_t mine = begin + ranks.rank(); mine < count) {
      Normalizers normalizers = trained.normalizers;
      const Batch batch = training_batch(trained.task, trained.runtime, trained.precision, options.split,
                                         {all.at(mine)}, {}, normalizers);
      Tape tape(trained.runtime, Tape::Mode::evaluate);
      own = compute(all.at(mine), tape, forward(trained.model, tape, batch.graph), batch);
    }
    dataset.check_unchanged();
    std::vector<std::vector<double>> computed;
    for (const int64_t size : all_gather(ranks, int64_t{std::ssize(own)}, "evaluation"))
      computed.emplace_back(static_cast<size_t>(size));
    computed[static_cast<size_t>(ranks.rank())] = std::move(own);
    std::vector<std::span<std::byte>> parts;
    for (std::vector<double>& part : computed) parts.push_back(std::as_writable_bytes(std::span(part)));
    all_gather_bytes(ranks, parts, "evaluation");
    for (int64_t i = begin; i < std::min<int64_t>(begin + ranks.size(), count); ++i)
      take(all.at(i), computed[static_cast<size_t>(i - begin)]);
  }
  return false;
}

LinkReconstruction::PairLogits LinkReconstruction::logits_of(const Variable& z, const Stream& stream) const {
  return {values_of(to_host(z.value(), stream)), static_cast<size_t>(sizes.outputs)};
}

void LinkReconstruction::check_label(const std::string& label) const {
  if (label.empty()) return;
  if (one_graph()) {
    throw config_error("--label", "many graphs, which have scores", "1", "leave it out");
  }
  const FieldInfo& field = dataset.field(label);
  if (field.on != FieldOn::graph || field.dtype != DType::i32 || field.components != 1)
    throw unfit_field("--label", "an i32 field of 1 component on graphs, 1 for an anomaly and else 0", field);
}

uint8_t LinkReconstruction::label_of(const std::string& label, std::string_view split,
                                     const Sample& sample) const {
  const int32_t value = view_of(split, sample).field(label).frame_of<int32_t>(sample.frame)[0];
  if (value == 0 || value == 1) return static_cast<uint8_t>(value);
  throw data_error(
      fmt::format("{}: {}, graph {} of split {}", dataset.path().string(), label, sample.trajectory, split),
      "1 for an anomaly, or 0", fmt::format("{}", value), "make such a field, or name another");
}

void LinkReconstruction::add_areas(const Scores& scores, const std::string& of, const char* kinds[2],
                                   Evaluation& result) {
  result.metrics.push_back({"AUC" + of, "", roc_area(scores.score, scores.positive)});
  result.metrics.push_back({"average precision" + of, "", average_precision(scores.score, scores.positive)});
  const auto positives = std::ranges::count(scores.positive, uint8_t{1});
  if (positives > 0 && positives < std::ssize(scores.positive)) return;
  result.notes.push_back(fmt::format("AUC{}{} nan: split {} has no {}", of,
                                     positives == 0 ? " and average precision are" : " is", result.split,
                                     kinds[positives == 0 ? 0 : 1]));
}

Evaluation LinkReconstruction::evaluate(const TrainedModel& trained, const EvaluateOptions& options) const {
  check_label(options.label);
  Evaluation result{
      .split = options.split, .trajectories = one_graph() ? 1 : evaluated(options), .targets = "links"};
  Scores pairs, graphs;
  double entropy = 0.0, links = 0.0;
  const bool scored = !options.label.empty();
  const auto compute = [&](const Sample& sample, Tape& tape, const Values& values, const Batch& batch) {
    const PairLogits logits = logits_of(values[0], trained.runtime.stream());
    const PairSample evaluated = evaluated_pairs(options.split, sample);
    std::vector<double> row{static_cast<double>(evaluated.linked.size()), logits.cross_entropies(evaluated),
                            scored ? score_of(tape, values, batch).front() : 0.0};
    for (const std::vector<NodePair>* kind : {&evaluated.linked, &evaluated.others})
      for (const NodePair& pair : *kind) row.push_back(logits(pair));
    return row;
  };
  result.stopped =
      predict_each_graph(trained, options, compute, [&](const Sample& sample, std::span<const double> row) {
        const auto linked = static_cast<size_t>(row[0]);
        links += row[0];
        entropy += row[1];
        if (scored) graphs.add(row[2], label_of(options.label, options.split, sample));
        for (size_t i = 0; i + 3 < row.size(); ++i) pairs.add(row[i + 3], i < linked ? 1 : 0);
      });
  const auto count = static_cast<double>(pairs.score.size());
  const char* kinds[] = {"linked pairs", "other pairs"};
  add_areas(pairs, "", kinds, result);
  result.metrics.insert(result.metrics.end(), {{"cross entropy", "nat", entropy / count},
                                               {"linked pairs", "", links},
                                               {"other pairs", "", count - links}});
  const char* graph_kinds[] = {"anomalies", "graphs that are none"};
  if (scored) add_areas(graphs, " of scores", graph_kinds, result);
  return result;
}

std::vector<double> LinkReconstruction::score_of(Tape& tape, const Values& values, const Batch& batch) const {
  const auto read = [&](const Variable& sum) {
    return sum ? values_of(to_host(sum.value(), tape.runtime().stream())).front() : 0.0;
  };
  std::vector<double> parts{0.0, read(ops::pair_loss(tape, {}, values[0], pairs_of(batch))),
                            read(add_divergence(tape, {}, values, batch))};
  if (vgae_.feature_weight > 0.0) parts.push_back(read(add_features(tape, {}, values, batch)));
  for (size_t i = 1; i < parts.size(); ++i) parts[0] += parts[i];
  return parts;
}

PredictedTable LinkReconstruction::table(const TrainedModel& trained, const EvaluateOptions& options) const {
  PredictedTable table{.rows = one_graph() ? "pair" : "graph"};
  if (one_graph()) {
    table.groups = {{"node_a", 1}, {"node_b", 1}, {"linked", 1}, {"probability", 1}};
  } else {
    table.groups = {{"score", 1}, {"pairs", 1}, {"divergence", 1}};
    if (vgae_.feature_weight > 0.0) table.groups.push_back({"features", 1});
  }
  const auto compute = [&](const Sample& sample, Tape& tape, const Values& values, const Batch& batch) {
    if (!one_graph()) return score_of(tape, values, batch);
    const PairLogits logits = logits_of(values[0], trained.runtime.stream());
    const PairSample pairs = evaluated_pairs(options.split, sample);
    std::vector<double> rows;
    for (const std::vector<NodePair>* kind : {&pairs.linked, &pairs.others}) {
      for (const NodePair& pair : *kind) {
        rows.insert(rows.end(), {static_cast<double>(pair.a), static_cast<double>(pair.b),
                                 kind == &pairs.linked ? 1.0 : 0.0, 1.0 / (1.0 + std::exp(-logits(pair)))});
      }
    }
    return rows;
  };
  predict_each_graph(trained, options, compute, [&](const Sample& sample, std::span<const double> rows) {
    table.values.insert(table.values.end(), rows.begin(), rows.end());
    if (!one_graph()) {
      table.numbers.push_back(sample.trajectory);
      table.frames.push_back(sample.frame);
    } else {
      for (size_t pair = 0; 4 * pair < rows.size(); ++pair)
        table.numbers.push_back(static_cast<int64_t>(pair));
    }
  });
  drop_first_frames(table);
  return table;
}

}  // namespace meshgrad
