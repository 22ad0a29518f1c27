// SPDX-License-Identifier: Apache-2.0
// GraphClassification: which class each of many given graphs belongs to.
#pragma once
#include <meshgrad/train/learn/task/class_weights.h>
#include <meshgrad/train/learn/task/graph_task.h>

namespace meshgrad {

class GraphClassification : public GraphTask {
 public:
  /// data.targets is one i32 field on graphs, the class of each, from 0. Throws what GraphTask and
  /// ClassCounts::finish throw, and ConfigError for other targets.
  GraphClassification(const Dataset& dataset, const Config& config);

  int32_t class_of(std::string_view split, const Sample& sample) const {
    return label_of(dataset.trajectory(split, sample.trajectory), sample.frame);
  }

  // What train/learn/task/task.h asks of every task.
  TaskDescription describe() const;
  std::vector<TaskWarning> validate(const Config&) const { return data_warnings(); }
  /// The model's inputs, "labels" i32 [graphs], "mask" u8 [graphs], and what ClassWeights adds.
  BatchLayout layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const;
  void write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
             const NoiseOptions& noise, Normalizers& normalizers, bool learn, SampleScratch& scratch) const;
  /// The weights of the graphs.
  double loss_weight(std::string_view split, const std::vector<Sample>& samples) const;
  /// Sum over the graphs of the cross entropy of their class, times its weight.
  LossTerms loss(Tape& tape, const Model& model, const Batch& batch, const Recomputation& recomputation,
                 const Teacher* teacher) const;
  /// Cross entropies; the baseline says how frequent each class is in training.
  ComparedErrors compare(const Stream& stream, std::string_view split, const Sample& sample,
                         const Tensor& prediction, const Batch& batch, const Normalizers& normalizers) const;
  static double error_of(double mean) { return mean; }
  static std::vector<RankedMetric> metrics() { return class_metrics(); }
  std::vector<GivenTensor> given(const Batch&) const { return {}; }
  GraphClassification for_validation() const { return *this; }
  Normalizers online_normalizers() const { return inputs_.online_normalizers(0); }
  Normalizers dataset_normalizers(const NoiseOptions&) const { return inputs_.dataset_normalizers(dataset); }
  /// The metrics of ClassPredictions over the graphs of the split.
  Evaluation evaluate(const TrainedModel& trained, const EvaluateOptions& options) const;
  /// Classes and probabilities of the graphs of the split.
  PredictedTable table(const TrainedModel& trained, const EvaluateOptions& options) const;

 private:
  int32_t label_of(const TrajectoryView& view, int64_t frame) const {
    return view.field(label_.name).frame_of<int32_t>(frame).front();
  }

  FieldInfo label_;
  std::vector<int64_t> trained_;  ///< graphs of each class in training
  ClassWeights weights_;
};

}  // namespace meshgrad
