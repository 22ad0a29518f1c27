// SPDX-License-Identifier: Apache-2.0
// MeshDynamics: fields that change over time on a mesh. A sample is a frame; the model predicts the change to
// the next frame (or the second change), and rollouts feed predictions back. Inputs, targets, noise and
// masks follow Pfaff et al. (2021), appendices A.1 and A.2.2; noise over several given frames (data.history)
// walks as in Sanchez-Gonzalez et al. (2020).
#pragma once
#include <meshgrad/train/learn/task/mesh_inputs.h>
#include <meshgrad/train/learn/task/recomputation.h>
#include <meshgrad/train/learn/task/training_loss.h>

namespace meshgrad {

/// A tensor that the search for non-finite values reads before it runs the model; rows where `mask` is 0 do
/// not count.
struct GivenTensor {
  std::string name;
  Tensor tensor;
  Rows rows;
  Tensor mask;
};

class MeshDynamics {
 public:
  /// Each sample is unrolled over `unroll_frames` predictions. Throws what MeshInputs throws, and ConfigError
  /// for a target that does not change over time.
  MeshDynamics(const Dataset& dataset, const DataConfig& config, int64_t unroll_frames = 1,
               const LossConfig& loss = {});

  // What train/learn/task/task.h asks of every task.
  const MeshInputs& inputs() const { return inputs_; }
  /// Start frames of samples in a trajectory of `frames`: they have all the neighbours they need.
  FrameRange sample_frames(int64_t frames) const;
  /// The fewest frames of a trajectory that has a sample.
  int64_t least_frames() const;
  /// From the data set's statistics: fields over all nodes, the one-hot unchanged, targets over the predicted
  /// nodes with the noise's share added: sqrt(std^2 + share^2).
  Normalizers dataset_normalizers(const NoiseOptions& noise) const;
  /// Beside the model's inputs: "target" [nodes, outputs] and "mask" u8 [nodes]; with further frames
  /// "unroll.nodes", "unroll.target", "unroll.source" and "unroll.ratio" (unrolled_loss.h); and what
  /// TrainingLoss adds.
  BatchLayout layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const;
  /// Writes a training batch into `batch`, whose tensors lie on the host and are large enough. With `learn`,
  /// statistics of the first frame are added to the normalisers before they are applied. Noise is in the
  /// first frame alone; the further frames are the data's.
  void write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
             const NoiseOptions& noise, Normalizers& normalizers, bool learn, SampleScratch& scratch) const;
  /// Predicted nodes of these samples over all frames, each with its weight.
  double loss_weight(std::string_view split, const std::vector<Sample>& samples) const;
  /// Sum over frames and predicted nodes of what their normalised errors cost, and the penalty. With further
  /// frames, relative_l2 takes the target of the first.
  LossTerms loss(Tape& tape, const Model& model, const Batch& batch,
                 const Recomputation& recomputation) const;
  std::vector<GivenTensor> given(const Batch& batch) const;
  /// The same with one prediction a sample: what validation compares.
  MeshDynamics for_validation() const;

  // Prediction over time.
  int64_t unroll_frames() const { return unroll_frames_; }
  /// The state at frame t, from the data.
  FieldState state_at(const TrajectoryView& trajectory, int64_t t) const;
  /// A batch of one graph for prediction: inputs from `state`, other fields from frame t.
  Batch prediction_batch(Runtime& runtime, DType dtype, const TrajectoryView& trajectory, int64_t t,
                         const FieldState& state, const Normalizers& normalizers) const;
  /// The next values of the predicted nodes, from a normalised prediction [nodes, outputs] on the host; other
  /// nodes as in `state.current`.
  std::vector<float> advance(const TrajectoryView& trajectory, const FieldState& state,
                             const Tensor& prediction, const Normalizers& normalizers) const;
  /// The same in place: `state` becomes that of the next frame.
  void advance_in_place(const MeshView& mesh, const Tensor& prediction, const Normalizers& normalizers,
                        SampleScratch& scratch, FieldState& state) const;

 private:
  using Input = MeshInputs::Input;
  bool second_change() const { return inputs_.config().predict == Prediction::second_change; }
  void read_state(const TrajectoryView& trajectory, int64_t t, FieldState& state) const;
  void add_noise(const TrajectoryView& trajectory, const Sample& sample, const NoiseOptions& noise,
                 SampleScratch& scratch) const;
  template <class T>
  void write_targets(const TrajectoryView& trajectory, const Sample& sample, const NoiseOptions& options,
                     SampleScratch& scratch, T* rows) const;
  template <class T>
  void write_further(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                     const Normalizers& normalizers, SampleScratch& scratch) const;

  MeshInputs inputs_;
  int64_t unroll_frames_;
  TrainingLoss loss_;
};

}  // namespace meshgrad
