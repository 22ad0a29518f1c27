// SPDX-License-Identifier: Apache-2.0
// SteadyField: fields on a mesh without time (steady flow, stress of a loaded part, temperature). A sample is
// a mesh with its fields; the model predicts the targets from the inputs at once.
#pragma once
#include <meshgrad/train/learn/task/mesh_dynamics.h>

namespace meshgrad {

class SteadyField {
 public:
  /// Throws what MeshInputs throws, and ConfigError for a target that is an input too.
  SteadyField(const Dataset& dataset, const DataConfig& config, const LossConfig& loss = {});

  // What train/learn/task/task.h asks of every task.
  const MeshInputs& inputs() const { return inputs_; }
  /// Every frame is a sample: data without time has one a mesh.
  FrameRange sample_frames(int64_t frames) const { return {0, frames}; }
  int64_t least_frames() const { return 1; }
  /// From the data set's statistics: inputs over all nodes, targets over the predicted nodes, the one-hot
  /// unchanged.
  Normalizers dataset_normalizers(const NoiseOptions& noise) const;
  /// Beside the model's inputs: "target" [nodes, outputs], "mask" u8 [nodes], and what TrainingLoss adds.
  BatchLayout layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const;
  /// Writes a training batch as MeshDynamics::write does. Noise, if any, is added to the input fields on
  /// nodes of the types data.noise_types; targets stay.
  void write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
             const NoiseOptions& noise, Normalizers& normalizers, bool learn, SampleScratch& scratch) const;
  /// Predicted nodes of these samples, each with its weight.
  double loss_weight(std::string_view split, const std::vector<Sample>& samples) const;
  /// Sum over predicted nodes of what their normalised errors cost.
  LossTerms loss(Tape& tape, const Model& model, const Batch& batch,
                 const Recomputation& recomputation) const;
  std::vector<GivenTensor> given(const Batch& batch) const;
  SteadyField for_validation() const;

  /// Targets in physical units, [nodes, outputs], from a normalised prediction on the host. Nodes that are
  /// not predicted take the values of `truth`.
  std::vector<float> physical(const MeshView& mesh, const Tensor& prediction, const Normalizers& normalizers,
                              const std::vector<float>& truth) const;
  /// The same in place: the predicted nodes of `values`.
  void replace_predicted(const MeshView& mesh, const Tensor& prediction, const Normalizers& normalizers,
                         SampleScratch& scratch, std::vector<float>& values) const;

 private:
  MeshInputs inputs_;
  TrainingLoss loss_;
};

}  // namespace meshgrad
