// SPDX-License-Identifier: Apache-2.0
// GraphRegression: numbers of whole graphs, such as the drag of a body or the energy of a molecule.
#pragma once
#include <meshgrad/train/learn/task/graph_task.h>
#include <meshgrad/train/learn/task/target_fields.h>

namespace meshgrad {

class GraphRegression : public GraphTask {
 public:
  /// data.targets are fields on graphs. Throws what GraphTask and TargetFields::on_graphs throw.
  GraphRegression(const Dataset& dataset, const Config& config);

  // What train/learn/task/task.h asks of every task.
  TaskDescription describe() const;
  std::vector<TaskWarning> validate(const Config&) const {
    std::vector<TaskWarning> found = data_warnings();
    targets_.warn(dataset, found);
    return found;
  }
  /// The model's inputs, "target" [graphs, outputs] in the accumulator of `dtype`, and "mask" u8 [graphs].
  BatchLayout layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const;
  void write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
             const NoiseOptions& noise, Normalizers& normalizers, bool learn, SampleScratch& scratch) const;
  /// The graphs.
  double loss_weight(std::string_view, const std::vector<Sample>& samples) const {
    return static_cast<double>(samples.size());
  }
  /// Sum over the graphs of the squared errors of their normalised targets.
  LossTerms loss(Tape& tape, const Model& model, const Batch& batch,
                 const Recomputation& recomputation) const;
  /// Squared errors in standard deviations of the training split; the baseline is its mean.
  ComparedErrors compare(const Stream& stream, std::string_view split, const Sample& sample,
                         const Tensor& prediction, const Batch& batch, const Normalizers& normalizers) const;
  static double error_of(double mean);
  std::vector<RankedMetric> metrics() const { return targets_.metrics(); }
  std::vector<GivenTensor> given(const Batch& batch) const;
  GraphRegression for_validation() const { return *this; }
  Normalizers online_normalizers() const { return inputs_.online_normalizers(sizes.outputs); }
  Normalizers dataset_normalizers(const NoiseOptions& noise) const;
  Evaluation evaluate(const TrainedModel& trained, const EvaluateOptions& options) const;
  /// The targets of the graphs of the split.
  PredictedTable table(const TrainedModel& trained, const EvaluateOptions& options) const;

 private:
  TargetFields targets_;
};

}  // namespace meshgrad
