// SPDX-License-Identifier: Apache-2.0
// GraphTask: what tasks with one output row for each graph share. A sample is a graph, of data over time at
// one frame; the model pools the values of its nodes (model.pool).
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/learn/task/best_metric.h>
#include <meshgrad/train/learn/task/compared_errors.h>
#include <meshgrad/train/learn/task/graph_inputs.h>
#include <meshgrad/train/learn/task/prediction.h>
#include <meshgrad/train/learn/task/recomputation.h>
#include <meshgrad/train/learn/task/sample.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

struct TrainedModel;  // evaluation.h

class GraphTask {
 public:
  Dataset dataset;
  ModelSizes sizes;

  // What train/learn/task/task.h asks of every task, for those that are made of this.
  SplitSamples samples(std::string_view split) const;
  DataError no_samples(std::string_view split) const;
  DataError no_loss() const { return no_samples("that is trained on"); }
  void read_ahead(std::string_view split, const Sample& sample) const {
    dataset.read_ahead(split, sample.trajectory);
  }
  std::string describe_sampling(std::string_view, double) const { return {}; }
  /// Throws ConfigError for 2^31 - 1 nodes or edges and more.
  BatchShape shape(std::string_view split, const std::vector<Sample>& samples) const;
  void add_device_inputs(BatchLayout&) const {}

 protected:
  /// Throws what GraphInputs throws, and ConfigError for training noise.
  GraphTask(const Dataset& data, const Config& config);

  TaskDescription describe_inputs() const;
  std::vector<TaskWarning> data_warnings() const;
  std::vector<GivenGraph> graphs_of(std::string_view split, const std::vector<Sample>& samples) const;
  /// Calls `one` with what the model gives for each sample of a split, [outputs], in order. The ranks of
  /// `options` share the samples; each gets all of them. True: stopped by options.stop.
  bool predict_each(const TrainedModel& trained, const EvaluateOptions& options,
                    const std::function<void(const Sample&, std::span<const double> row)>& one) const;
  /// Trajectories that predict_each visits.
  int64_t evaluated(const EvaluateOptions& options) const;

  GraphInputs inputs_;
};

/// Frames say nothing where each graph has one.
void drop_first_frames(PredictedTable& table);

}  // namespace meshgrad
