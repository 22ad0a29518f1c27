// SPDX-License-Identifier: Apache-2.0
// MeshDynamics: fields that change over time on a mesh. A sample is a frame; the model predicts the change to
// the next frame (or the second change), and rollouts feed predictions back. Inputs, targets, noise and
// masks follow Pfaff et al. (2021), appendices A.1 and A.2.2; noise over several given frames (data.history)
// walks as in Sanchez-Gonzalez et al. (2020).
#pragma once
#include <meshgrad/train/learn/task/mesh_task.h>
#include <meshgrad/train/learn/task/recomputation.h>
#include <meshgrad/train/learn/task/teacher.h>

#include <utility>

namespace meshgrad {

struct TrainedModel;  // evaluation.h

class MeshDynamics {
 public:
  /// Each sample is unrolled over `unroll_frames` predictions. Throws what MeshTask throws, and ConfigError
  /// for a target that does not change over time.
  MeshDynamics(const Dataset& dataset, const DataConfig& config, int64_t unroll_frames = 1,
               const LossConfig& loss = {});

  // What train/learn/task/task.h asks of every task.
  const MeshTask& mesh() const { return mesh_; }
  MeshTask& mesh() { return mesh_; }
  /// Beside what MeshTask::layout has: with further frames "unroll.nodes", "unroll.target", "unroll.source",
  /// "unroll.ratio" and with targets on graphs "unroll.graph_target" (unrolled_loss.h).
  BatchLayout layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const;
  /// Writes a training batch into `batch`, whose tensors lie on the host and are large enough. With `learn`,
  /// statistics of the first frame are added to the normalisers before they are applied. Noise is in the
  /// first frame alone; the further frames are the data's.
  void write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
             const NoiseOptions& noise, Normalizers& normalizers, bool learn, SampleScratch& scratch) const;
  LossTerms loss(Tape& tape, const Model& model, const Batch& batch, const Recomputation& recomputation,
                 const Teacher* teacher) const {
    return mesh_.loss_of(tape, model, batch, recomputation, teacher);
  }
  Evaluation evaluate(const TrainedModel& trained, const EvaluateOptions& options) const;
  MeshDynamics for_validation() const { return MeshDynamics(mesh_.for_validation()); }

 private:
  explicit MeshDynamics(MeshTask mesh) : mesh_(std::move(mesh)) {}
  void add_noise(const TrajectoryView& trajectory, const Sample& sample, const NoiseOptions& noise,
                 SampleScratch& scratch) const;
  template <class T>
  void write_targets(const TrajectoryView& trajectory, const Sample& sample, const NoiseOptions& options,
                     SampleScratch& scratch, T* rows) const;
  template <class T>
  void write_further(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                     const Normalizers& normalizers, SampleScratch& scratch) const;

  MeshTask mesh_;
};

}  // namespace meshgrad
