// SPDX-License-Identifier: Apache-2.0
// LinkReconstruction: which nodes of a graph are linked, from a model (model.name = "vgae") that gives each
// node latent values. Data of one graph: its links are split for training, validation and test
// (link_pairs.h), and the model reads those of training alone, in every split. Data of many graphs: each
// graph's own links are reconstructed, and what that costs is the graph's anomaly score.
//
// The loss of a graph with n nodes is
//   (mean cross entropy of its linked pairs + mean cross entropy of the others) / 2
//   + kl_weight sum over nodes of the divergence from the prior / n^2 + feature_weight mean squared error of
//   x,
// where a kind of pairs that does not occur counts as 0. The first line is that of Kipf, Welling (2016) with
// their weights of linked pairs.
#pragma once
#include <meshgrad/kernels/node_pairs.h>
#include <meshgrad/train/learn/task/graph_task.h>
#include <meshgrad/train/learn/task/link_pairs.h>

namespace meshgrad {

class LinkReconstruction : public GraphTask {
 public:
  /// Throws what GraphTask throws, ConfigError for another model, for many graphs of directed edges, for one
  /// graph over time, and for a graph without links to train on.
  LinkReconstruction(const Dataset& dataset, const Config& config);

  // What train/learn/task/task.h asks of every task.
  SplitSamples samples(std::string_view split) const;
  DataError no_samples(std::string_view split) const;
  void read_ahead(std::string_view split, const Sample& sample) const {
    GraphTask::read_ahead(one_graph() ? split_of_graph_ : split, sample);
  }
  DataError no_loss() const { return no_samples("train"); }
  TaskDescription describe() const;
  std::vector<TaskWarning> validate(const Config& config) const;
  BatchShape shape(std::string_view split, const std::vector<Sample>& samples) const;
  /// Room for the edges that the model reads, given that for the data's own.
  BatchShape room(BatchShape shape) const;
  /// The model's inputs, "pair_weights" f32 [graphs, 2] and "latent_weights" f32 [nodes]; where pairs are
  /// drawn, "pair_offsets", "pair_others" and "pair_linked" as NodePairs has them; with features "target",
  /// "mask" and "feature_weights" [nodes].
  BatchLayout layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const;
  void write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
             const NoiseOptions& noise, Normalizers& normalizers, bool learn, SampleScratch& scratch) const;
  double loss_weight(std::string_view, const std::vector<Sample>& samples) const {
    return static_cast<double>(samples.size());
  }
  LossTerms loss(Tape& tape, const Model& model, const Batch& batch,
                 const Recomputation& recomputation) const;
  /// Cross entropies of the pairs that the split is evaluated on; the baseline says one half of each.
  ComparedErrors compare(const Stream& stream, std::string_view split, const Sample& sample,
                         const Tensor& prediction, const Batch& batch, const Normalizers& normalizers) const;
  static double error_of(double mean) { return mean; }
  static std::vector<RankedMetric> metrics() { return link_metrics(); }
  std::vector<GivenTensor> given(const Batch&) const { return {}; }
  /// A loss reads the pairs of whole graphs, not the rows of a prediction.
  static constexpr bool kLossOfWholeGraphs = true;
  LinkReconstruction for_validation() const { return *this; }
  Normalizers online_normalizers() const { return inputs_.online_normalizers(0); }
  Normalizers dataset_normalizers(const NoiseOptions&) const { return inputs_.dataset_normalizers(dataset); }
  /// AUC, average precision and cross entropy of linked pairs against as many others, and of graphs with
  /// EvaluateOptions::label AUC and average precision of their scores.
  Evaluation evaluate(const TrainedModel& trained, const EvaluateOptions& options) const;
  /// Of one graph a row for each of these pairs; of many a row for each graph, with its score.
  PredictedTable table(const TrainedModel& trained, const EvaluateOptions& options) const;

 private:
  bool one_graph() const { return links_ != nullptr; }
  TrajectoryView view_of(std::string_view split, const Sample& sample) const;
  /// The links that the model reads.
  std::vector<NodePair> read_links(std::string_view split, const Sample& sample) const;
  /// What a split is evaluated on.
  PairSample evaluated_pairs(std::string_view split, const Sample& sample) const;
  void write_pairs(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                   const std::vector<std::vector<NodePair>>& links, uint64_t seed) const;
  void write_features(const Batch& batch, const std::vector<GivenGraph>& graphs) const;
  NodePairs pairs_of(const Batch& batch) const;
  struct PairLogits;
  PairLogits logits_of(const Variable& z, const Stream& stream) const;

  // The terms of the loss, added to `sum`, which may be undefined.
  Variable add_divergence(Tape& tape, const Variable& sum, const Values& values, const Batch& batch) const;
  Variable add_features(Tape& tape, const Variable& sum, const Values& values, const Batch& batch) const;
  /// The loss of a batch of one graph, then its parts.
  std::vector<double> score_of(Tape& tape, const Values& values, const Batch& batch) const;

  /// What is computed of a sample, alone in its batch, from the model's values.
  using Compute = std::function<std::vector<double>(const Sample&, Tape&, const Values&, const Batch&)>;
  using Take = std::function<void(const Sample&, std::span<const double>)>;
  /// Calls `compute` for each sample of a split, and `take` with the result, in order. The ranks of `options`
  /// share the samples; each takes all results. True: stopped by options.stop.
  bool predict_each_graph(const TrainedModel& trained, const EvaluateOptions& options, const Compute& compute,
                          const Take& take) const;

  /// Throws ConfigError unless it is empty or names labels of graphs.
  void check_label(const std::string& label) const;
  uint8_t label_of(const std::string& label, std::string_view split, const Sample& sample) const;
  struct Scores;
  /// AUC and average precision of `scores`, with a note where one of two kinds does not occur.
  static void add_areas(const Scores& scores, const std::string& of, const char* kinds[2],
                        Evaluation& result);

  VgaeConfig vgae_;
  int64_t drawn_ = 0;                       ///< of each kind, at most: vgae.pairs, or all that a graph has
  uint64_t seed_;                           ///< of the split and of the pairs of evaluations
  std::shared_ptr<const LinkSplit> links_;  ///< of one graph; null: there are many
  std::string split_of_graph_;              ///< the one that the file has the graph in
};

}  // namespace meshgrad
