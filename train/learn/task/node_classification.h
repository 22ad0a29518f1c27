// SPDX-License-Identifier: Apache-2.0
// NodeClassification: which class each node of one given graph belongs to. The graph needs neither positions
// nor frames. A sample is the whole graph: data.node_split says which of its nodes are trained on, validated
// and tested, and the loss of a split counts its nodes only.
// Source of the setting: Kipf and Welling, "Semi-supervised classification with graph convolutional networks"
// (2017), section 3.1.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/learn/task/best_metric.h>
#include <meshgrad/train/learn/task/class_weights.h>
#include <meshgrad/train/learn/task/compared_errors.h>
#include <meshgrad/train/learn/task/graph_inputs.h>
#include <meshgrad/train/learn/task/prediction.h>
#include <meshgrad/train/learn/task/recomputation.h>
#include <meshgrad/train/learn/task/sample.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

struct TrainedModel;  // evaluation.h

class NodeClassification {
 public:
  /// data.targets is one i32 field on nodes, the class of each, from 0. Throws what GraphInputs throws,
  /// ConfigError for other targets, for data of several graphs or frames, for training noise, and where
  /// data.node_split does not say which node split counts; DataError for a node of a split without a class.
  NodeClassification(const Dataset& dataset, const Config& config);

  Dataset dataset;
  ModelSizes sizes;  ///< outputs: classes

  // What train/learn/task/task.h asks of every task.
  SplitSamples samples(std::string_view split) const;
  DataError no_samples(std::string_view split) const;
  DataError no_loss() const { return no_samples("the split that is trained on"); }
  void read_ahead(std::string_view, const Sample&) const { dataset.read_ahead(split_of_graph_, 0); }
  TaskDescription describe() const;
  std::vector<TaskWarning> validate(const Config& config) const;
  std::string describe_sampling(std::string_view, double) const { return {}; }
  BatchShape shape(std::string_view split, const std::vector<Sample>& samples) const;
  /// The model's inputs, "labels" i32 [nodes], "mask" u8 [nodes], and what ClassWeights adds.
  BatchLayout layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const;
  void add_device_inputs(BatchLayout&) const {}
  void write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
             const NoiseOptions& noise, Normalizers& normalizers, bool learn, SampleScratch& scratch) const;
  /// The weights of the split's nodes, as often as there are samples.
  double loss_weight(std::string_view split, const std::vector<Sample>& samples) const;
  /// Sum over the nodes of the split of the cross entropy of their class, times its weight.
  LossTerms loss(Tape& tape, const Model& model, const Batch& batch, const Recomputation& recomputation,
                 const Teacher* teacher) const;
  /// Cross entropies of the split's nodes; the baseline says how frequent each class is in training.
  ComparedErrors compare(const Stream& stream, std::string_view split, const Sample& sample,
                         const Tensor& prediction, const Batch& batch, const Normalizers& normalizers) const;
  static double error_of(double mean) { return mean; }
  static std::vector<RankedMetric> metrics() { return class_metrics(); }
  std::vector<GivenTensor> given(const Batch&) const { return {}; }
  NodeClassification for_validation() const { return *this; }
  Normalizers online_normalizers() const { return inputs_.online_normalizers(0); }
  Normalizers dataset_normalizers(const NoiseOptions&) const { return inputs_.dataset_normalizers(dataset); }
  /// The metrics of ClassPredictions over the nodes of the split.
  Evaluation evaluate(const TrainedModel& trained, const EvaluateOptions& options) const;
  /// Classes and probabilities of the nodes of the split.
  PredictedTable table(const TrainedModel& trained, const EvaluateOptions& options) const;

 private:
  TrajectoryView graph() const { return dataset.trajectory(0); }
  std::span<const int32_t> labels() const { return graph().field(label_.name).frame_of<int32_t>(0); }
  /// Calls `one` with what the model gives for each node of a split, [outputs].
  void predict_each(const TrainedModel& trained, std::string_view split,
                    const std::function<void(size_t node, std::span<const double> row)>& one) const;
  /// [nodes]: 1 at the nodes of a split. Throws ConfigError for another name than train, valid and test.
  std::vector<uint8_t> mask_of(std::string_view split) const;

  GraphInputs inputs_;
  FieldInfo label_;
  std::vector<int64_t> trained_;  ///< nodes of each class in training
  ClassWeights weights_;
  std::string node_split_;
  std::string split_of_graph_;  ///< the one that the file has the graph in
};

}  // namespace meshgrad
