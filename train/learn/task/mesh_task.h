// SPDX-License-Identifier: Apache-2.0
// MeshTask: what tasks on meshes share, with or without time: the data and its fields, samples, features,
// world edges, statistics, how errors count, and how a prediction becomes the fields of the mesh.
// MeshDynamics and SteadyField hold one; Task::mesh() gives it to programs that are about meshes.
#pragma once
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/task/best_metric.h>
#include <meshgrad/train/learn/task/compared_errors.h>
#include <meshgrad/train/learn/task/mesh_inputs.h>
#include <meshgrad/train/learn/task/recomputation.h>
#include <meshgrad/train/learn/task/teacher.h>
#include <meshgrad/train/learn/task/training_loss.h>
#include <meshgrad/train/learn/task/world_edge_search.h>

#include <cmath>

namespace meshgrad {

class CapturedPrediction;  // captured_prediction.h

class MeshTask {
 public:
  /// The data set gets the edges that the configuration asks for. Throws what FieldSelection throws.
  MeshTask(const Dataset& dataset, const DataConfig& config, bool over_time, int64_t predictions = 1,
           const LossConfig& loss = {});
  /// One prediction a sample, over all nodes and without penalties, and as much room for world edges in a
  /// batch as its frames need.
  MeshTask for_validation() const;

  Dataset dataset;
  FieldSelection fields;
  WorldEdgeSearch world;
  ModelSizes sizes;
  int64_t predictions;  ///< of a sample, one after another; without time one
  TrainingLoss loss;

  // What train/learn/task/task.h asks of a task.
  SplitSamples samples(std::string_view split) const;
  DataError no_samples(std::string_view split) const;
  void read_ahead(std::string_view split, const Sample& sample) const {
    dataset.read_ahead(split, sample.trajectory);
  }
  TaskDescription describe() const;
  /// Under "train.noise", targets over time whose change has a standard deviation that the noise is not
  /// within 0.01 to 1 times of. Under "scale", what varies, but by less than a Normalizer takes for a
  /// constant: it would reach the model almost as zeros. Under "data.targets", targets on graphs that are
  /// constant in the training split. Under "data.valid_split", a split that changes too little to tell models
  /// apart (quiet_split).
  std::vector<TaskWarning> validate(const Config& config) const;
  std::string describe_sampling(std::string_view split, double visits) const {
    return loss.describe_sampling(*this, split, visits);
  }
  /// Sizes of the union of these samples' meshes, with its room for world edges. Throws ConfigError for 2^31
  /// - 1 nodes or edges and more.
  BatchShape shape(std::string_view split, const std::vector<Sample>& samples) const;
  void add_device_inputs(BatchLayout& layout) const { world.add_to(layout); }
  /// Predicted nodes of these samples over all predictions, each with its weight; without targets on nodes
  /// the samples.
  double loss_weight(std::string_view split, const std::vector<Sample>& samples) const {
    return static_cast<double>(predictions) * loss.weight(*this, split, samples);
  }
  DataError no_loss() const;
  std::vector<RankedMetric> metrics() const;
  /// Compares the prediction of one sample, rows [nodes, outputs] on the host, with the sample's rows of a
  /// batch without noise, and what the baseline predicts. Nothing for meshes in memory, which have no
  /// statistics.
  ComparedErrors compare(const Stream& stream, std::string_view split, const Sample& sample,
                         const Tensor& prediction, const Batch& batch, const Normalizers& normalizers) const;
  /// The same of its targets on graphs, from their row [1, graph_outputs] of a prediction; of a sample
  /// without time, or of a frame to the next. They weigh as in the loss.
  ComparedErrors compare_graph(std::string_view split, const Sample& sample, const Tensor& row,
                               const Normalizers& normalizers) const;
  static double error_of(double mean) { return std::sqrt(mean); }
  /// Empty normalisers, that learn from batches.
  Normalizers online_normalizers() const;
  /// From the data set's statistics: inputs over all nodes, the one-hot unchanged; current positions over
  /// some frames (displacement_stats); targets over the predicted nodes, with the noise's share added where
  /// they are changes of what the model reads: sqrt(std^2 + share^2).
  Normalizers dataset_normalizers(const NoiseOptions& noise) const;

  // What the tasks on meshes are made of.
  /// Frames of a trajectory of `frames` at which samples start: they have all the neighbours they need.
  /// Without time every frame is a sample.
  FrameRange sample_frames(int64_t frames) const;
  /// The fewest frames of a trajectory that has a sample.
  int64_t least_frames() const { return fields.over_time ? predictions + fields.earlier_frames() + 1 : 1; }
  /// The model's inputs, "target" [nodes, outputs] in the accumulator of `dtype`, "mask" u8 [nodes], and what
  /// TrainingLoss adds. With targets on graphs also "graph_target" [graphs, graph_outputs], "graph_mask" u8
  /// [graphs], and the weights "graph_rows" [graphs] and "graph_columns" [graph_outputs].
  BatchLayout layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const;
  /// Writes these of targets on graphs. A graph weighs as much as its predicted nodes together, or alone 1.
  void write_graph_targets(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                           Normalizers& normalizers, bool learn) const;
  /// Their rows in units, [graphs, graph_outputs], of what the `frame`-th prediction of each sample leads to.
  std::vector<float> graph_rows(std::string_view split, const std::vector<Sample>& samples,
                                int64_t frame = 0) const;
  /// Sum over predictions and predicted nodes of what their normalised errors cost, over graphs likewise, and
  /// the penalty. With further predictions, relative_l2 takes the target of the first.
  LossTerms loss_of(Tape& tape, const Model& model, const Batch& batch, const Recomputation& recomputation,
                    const Teacher* teacher) const;
  std::vector<GivenTensor> given(const Batch& batch) const;
  int64_t predicted_nodes(std::string_view split, const std::vector<Sample>& samples) const;
  /// Throws DataError when pages of these samples were lost.
  void check_read(std::string_view split, const std::vector<Sample>& samples) const;
  /// Statistics of a field over the predicted nodes of the training split.
  FieldStatistics predicted_stats(const std::string& field, Quantity which) const;
  /// [nodes, outputs]: means of the targets in the training split, over the nodes of a node's type.
  std::vector<float> mean_values(const MeshView& mesh) const;
  /// [nodes, outputs]: what Evaluation::baseline predicts in place of the model's output.
  std::vector<float> baseline_output(const TrajectoryView& trajectory, int64_t t) const;
  /// By column of the targets: 0, or of a field whose mean over the predicted nodes of the training split is
  /// more than 3 standard deviations from zero, this mean.
  std::vector<double> centres() const;

  // Predictions.
  /// The state at frame t, from the data.
  FieldState state_at(const TrajectoryView& trajectory, int64_t t) const;
  /// A batch of one graph for prediction, without target and mask: inputs that are targets too come from
  /// `state`, others from frame t. In the memory of `captured`, unless it is null.
  Batch prediction_batch(Runtime& runtime, DType dtype, const TrajectoryView& trajectory, int64_t t,
                         const FieldState& state, const Normalizers& normalizers,
                         CapturedPrediction* captured = nullptr) const;
  /// `state` with the predicted nodes one prediction further (without time: of the same frame), from a
  /// normalised prediction [nodes, outputs] on the host; other nodes stay.
  void advance(const MeshView& mesh, const Tensor& prediction, const Normalizers& normalizers,
               SampleScratch& scratch, FieldState& state) const;
  /// Throws ConfigError when a split, or one trajectory of it, has nothing to predict: with targets on nodes
  /// no node of data.predicted_types, or too few frames. Errors over nothing would be NaN.
  void check_something_to_predict(const std::string& split, std::optional<int64_t> trajectory = {}) const;
};

/// The standard deviation of what noise of 1 on the inputs adds to targets that are changes
/// of them (MeshDynamics::add_noise and write_targets); `gamma`: train.gamma.
double noise_in_targets(const FieldSelection& fields, double gamma);

}  // namespace meshgrad
