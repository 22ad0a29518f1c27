// SPDX-License-Identifier: Apache-2.0
// Task: what a learning problem is. It says what a sample is, how samples become a batch, what is compared
// and what is reported. The trainer, steps, plans and checkpoints know a Task and a Model, and the members of
// neither; nothing here asks for a mesh, positions or frames. A closed set: a new task is a class with these
// members and one more name below and in make_task.
#pragma once
#include <meshgrad/train/learn/task/graph_classification.h>
#include <meshgrad/train/learn/task/graph_regression.h>
#include <meshgrad/train/learn/task/link_reconstruction.h>
#include <meshgrad/train/learn/task/node_classification.h>
#include <meshgrad/train/learn/task/steady_field.h>
#include <meshgrad/train/learn/task/teacher.h>

#include <memory>
#include <utility>
#include <variant>

namespace meshgrad {

class Task {
  using Kind = std::variant<MeshDynamics, SteadyField, NodeClassification, GraphRegression,
                            GraphClassification, LinkReconstruction>;
  template <class Body>
  decltype(auto) visit(Body&& body) const {
    return std::visit(std::forward<Body>(body), kind_);
  }
  /// The same with the MeshTask of a task that has one: it answers for all of them.
  template <class Body>
  decltype(auto) visit_shared(Body&& body) const {
    return visit([&](const auto& task) -> decltype(auto) {
      if constexpr (requires { task.mesh(); }) {
        return body(task.mesh());
      } else {
        return body(task);
      }
    });
  }

 public:
  /// Batches also have what `model` reads: node keys, starts of graphs.
  explicit Task(Kind kind, const ModelConfig& model = {});

  /// What a task on meshes reads and predicts, for programs that are about meshes; null for others.
  const MeshTask* find_mesh() const;
  /// The same; throws ConfigError for others.
  const MeshTask& mesh() const;
  /// What the model takes and gives.
  const ModelSizes& sizes() const {
    return visit_shared([](const auto& task) -> const ModelSizes& { return task.sizes; });
  }
  const Dataset& dataset() const {
    return visit_shared([](const auto& task) -> const Dataset& { return task.dataset; });
  }

  /// The samples of a split, perhaps none. Throws ConfigError for an unknown one.
  SplitSamples samples(std::string_view split) const {
    return visit_shared([&](const auto& task) { return task.samples(split); });
  }
  /// The error of a split without any.
  DataError no_samples(std::string_view split) const {
    return visit_shared([&](const auto& task) { return task.no_samples(split); });
  }
  /// The class of each sample of a split; none of a task whose samples have no class.
  std::vector<int32_t> classes_of(std::string_view split) const {
    return visit_shared([&](const auto& task) {
      std::vector<int32_t> classes;
      if constexpr (requires { task.class_of(split, Sample()); }) {
        const SplitSamples all = task.samples(split);
        for (int64_t i = 0; i < all.size(); ++i) classes.push_back(task.class_of(split, all.at(i)));
      }
      return classes;
    });
  }
  /// Reads a sample's pages soon, without waiting for them.
  void read_ahead(std::string_view split, const Sample& sample) const {
    visit_shared([&](const auto& task) { task.read_ahead(split, sample); });
  }
  /// Normalisers from the data set's statistics, or empty ones that learn from batches.
  Normalizers dataset_normalizers(const NoiseOptions& noise) const {
    return visit_shared([&](const auto& task) { return task.dataset_normalizers(noise); });
  }
  Normalizers online_normalizers() const {
    return visit_shared([](const auto& task) { return task.online_normalizers(); });
  }

  BatchShape shape(std::string_view split, const std::vector<Sample>& samples) const {
    return visit_shared([&](const auto& task) { return task.shape(split, samples); });
  }
  BatchLayout layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const {
    BatchLayout made = visit([&](const auto& task) { return task.layout(shape, dtype, kind); });
    if (node_keys_) made.add_node_keys();
    if (teacher_ != nullptr) teacher_->add_to(made);
    return made;
  }
  /// Room for the model's edges in a batch with room for the data's own.
  BatchShape room(const BatchShape& shape) const {
    return visit_shared([&](const auto& task) {
      if constexpr (requires { task.room(shape); }) {
        return task.room(shape);
      } else {
        return shape;
      }
    });
  }
  /// Whether the loss of a sample needs its graph, so that the rows of a prediction do not suffice.
  bool loss_of_whole_graphs() const {
    return visit_shared([](const auto& task) {
      return requires { task.kLossOfWholeGraphs; };
    });
  }
  /// Adds what a device reads to make a part of the batch itself.
  void add_device_inputs(BatchLayout& layout) const {
    visit_shared([&](const auto& task) { task.add_device_inputs(layout); });
  }
  /// Writes a training batch on the host. With `learn`, the normalisers learn from it before they are
  /// applied. Throws DataError when pages of the data were lost.
  void write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
             const NoiseOptions& noise, Normalizers& normalizers, bool learn, SampleScratch& scratch) const {
    visit([&](const auto& task) { task.write(batch, split, samples, noise, normalizers, learn, scratch); });
    if (batch.graph.node_keys.defined()) write_keys(batch, split, samples, noise.seed);
    if (teacher_ != nullptr) teacher_->write(batch, split, samples, normalizers);
  }
  /// Weight of the loss of these samples, known before a forward pass.
  double loss_weight(std::string_view split, const std::vector<Sample>& samples) const {
    return visit_shared([&](const auto& task) { return task.loss_weight(split, samples); });
  }
  /// Compares a prediction of one sample, the rows that the model gives for it on the host, with the data, of
  /// which `batch` has the sample's rows, and with the baseline. Validation reports error_of the sums.
  ComparedErrors compare(const Stream& stream, std::string_view split, const Sample& sample,
                         const Tensor& prediction, const Batch& batch, const Normalizers& normalizers) const {
    return visit_shared([&](const auto& task) {
      return task.compare(stream, split, sample, prediction, batch, normalizers);
    });
  }
  /// The figure of a mean of ComparedErrors: of tasks on meshes its root.
  double error_of(double mean) const {
    return visit_shared([&](const auto& task) { return task.error_of(mean); });
  }
  /// The error of a batch whose loss weighs nothing.
  DataError no_loss() const {
    return visit_shared([](const auto& task) { return task.no_loss(); });
  }
  /// The loss as a sum over its terms; first the device makes its part of the batch. All arguments but the
  /// tape must outlive the tape's entries.
  LossTerms loss(Tape& tape, const Model& model, const Batch& batch,
                 const Recomputation& recomputation) const {
    return visit([&](const auto& task) {
      if constexpr (requires { task.loss(tape, model, batch, recomputation, teacher_.get()); }) {
        return task.loss(tape, model, batch, recomputation, teacher_.get());
      } else {
        return task.loss(tape, model, batch, recomputation);
      }
    });
  }
  /// The same as a function that refers to this task, which must outlive it.
  BatchLoss batch_loss() const {
    return [this](Tape& tape, const Model& model, const Batch& batch, const Recomputation& recomputation) {
      return loss(tape, model, batch, recomputation);
    };
  }
  /// The task's own tensors of a batch, for the search for non-finite values.
  std::vector<GivenTensor> given(const Batch& batch) const {
    return visit_shared([&](const auto& task) { return task.given(batch); });
  }
  /// The task whose loss validation reports: without unrolling, sampled nodes, penalties and a teacher.
  Task for_validation() const {
    return visit([](const auto& task) { return Task(Kind(task.for_validation())); });
  }

  /// Batches and losses are for a student of this teacher from now on.
  void set_teacher(std::shared_ptr<const Teacher> teacher) { teacher_ = std::move(teacher); }
  /// Null: there is none.
  const Teacher* teacher() const { return teacher_.get(); }

  /// What a sample is, what the model reads and what it predicts.
  TaskDescription describe() const {
    return visit_shared([](const auto& task) { return task.describe(); });
  }
  /// What is doubtful about the configuration and the data. A key that means nothing for the task is an error
  /// of parse_config.
  std::vector<TaskWarning> validate(const Config& config) const {
    return visit_shared([&](const auto& task) { return task.validate(config); });
  }
  /// What loss.sample leaves out, for people; empty without it. `visits`: how often a sample is used.
  std::string describe_sampling(std::string_view split, double visits) const {
    return visit_shared([&](const auto& task) { return task.describe_sampling(split, visits); });
  }
  /// The metrics of `evaluate` that may choose the best model.
  std::vector<RankedMetric> metrics() const {
    return visit_shared([](const auto& task) { return task.metrics(); });
  }
  /// Errors over a split, in physical units: see evaluate in evaluation.h.
  Evaluation evaluate(const TrainedModel& trained, const EvaluateOptions& options) const {
    return visit([&](const auto& task) { return task.evaluate(trained, options); });
  }

  /// What a task that is not on meshes predicts of a split. Throws ConfigError for others.
  PredictedTable table(const TrainedModel& trained, const EvaluateOptions& options) const;

 private:
  void write_keys(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                  uint64_t seed) const;

  Kind kind_;
  bool node_keys_;
  std::shared_ptr<const Teacher> teacher_;
};

/// The task that task.name names. Throws ConfigError for fields that do not fit it, and for a train.best that
/// is none of its metrics.
Task make_task(const Config& config, const Dataset& dataset);

/// A training batch in memory of its own on the runtime's device.
Batch training_batch(const Task& task, Runtime& runtime, DType dtype, std::string_view split,
                     const std::vector<Sample>& samples, const NoiseOptions& noise, Normalizers& normalizers,
                     bool learn = false);

}  // namespace meshgrad
