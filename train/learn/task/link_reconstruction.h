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
  /// AUC, average precision and cross entropy of linked pairs against as many others.
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
  /// Calls `one` with the model's values for each sample of a split, and last its inputs, [nodes, columns]
  /// each. Every rank computes all of them.
  void predict_values(const TrainedModel& trained, const EvaluateOptions& options,
                      const std::function<void(const Sample&, const std::vector<Tensor>&)>& one) const;

  /// The loss of a graph without sampling, then its parts.
  std::vector<double> score_of(std::string_view split, const Sample& sample,
                               const std::vector<Tensor>& values) const;

  VgaeConfig vgae_;
  int64_t drawn_ = 0;                       ///< of each kind, at most: vgae.pairs, or all that a graph has
  uint64_t seed_;                           ///< of the split and of the pairs of evaluations
  std::shared_ptr<const LinkSplit> links_;  ///< of one graph; null: there are many
  std::string split_of_graph_;              ///< the one that the file has the graph in
};

}  // namespace meshgrad
