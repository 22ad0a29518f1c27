// SPDX-License-Identifier: Apache-2.0
// SteadyField: fields on a mesh without time (steady flow, stress of a loaded part, temperature). A sample is
// a mesh with its fields; the model predicts the targets from the inputs at once.
#pragma once
#include <meshgrad/train/learn/task/mesh_dynamics.h>

namespace meshgrad {

class SteadyField {
 public:
  /// Throws what MeshTask throws, and ConfigError for a target that is an input too.
  SteadyField(const Dataset& dataset, const DataConfig& config, const LossConfig& loss = {});

  // What train/learn/task/task.h asks of every task.
  const MeshTask& mesh() const { return mesh_; }
  MeshTask& mesh() { return mesh_; }
  BatchLayout layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const {
    return mesh_.layout(shape, dtype, kind);
  }
  /// Writes a training batch as MeshDynamics::write does. Noise, if any, is added to the input fields on
  /// nodes of the types data.noise_types; targets stay.
  void write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
             const NoiseOptions& noise, Normalizers& normalizers, bool learn, SampleScratch& scratch) const;
  LossTerms loss(Tape& tape, const Model& model, const Batch& batch, const Recomputation& recomputation,
                 const Teacher* teacher) const {
    return mesh_.loss_of(tape, model, batch, recomputation, teacher);
  }
  Evaluation evaluate(const TrainedModel& trained, const EvaluateOptions& options) const;
  SteadyField for_validation() const { return SteadyField(mesh_.for_validation()); }

 private:
  explicit SteadyField(MeshTask mesh) : mesh_(std::move(mesh)) {}

  MeshTask mesh_;
};

}  // namespace meshgrad
