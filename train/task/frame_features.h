// SPDX-License-Identifier: Apache-2.0
// From frames of a data set to batches of a model: inputs, targets, noise, masks and normalisation.
// The rules are those of Pfaff et al. (2021), appendix A.1 and A.2.2.
#pragma once
#include <meshgrad/nn/batch.h>
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/config/config.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/task/batch_memory.h>
#include <meshgrad/train/task/sampler.h>

#pragma GCC visibility push(default)
namespace meshgrad {

struct Normalizers {
  Normalizer nodes;  ///< fields and one-hot types
  Normalizer edges;  ///< relative position and norm
  Normalizer targets;
};

/// What a model predicts at a time, in physical units.
struct FieldState {
  std::vector<float> current;   ///< [nodes, outputs]
  std::vector<float> previous;  ///< the same one frame before; empty unless second differences are predicted
};

/// What a sample is put together in. Kept from one batch to the next, it asks the heap for nothing.
struct SampleScratch {
  FieldState state;
  std::vector<float> noise;                   ///< that `state.current` has: [nodes, outputs]
  std::vector<float> next;                    ///< the values one frame behind
  std::vector<float> wide_nodes, wide_edges;  ///< rows of a batch that stores 16 bits
};

/// Noise for a sample; none in validation and rollouts.
struct NoiseOptions {
  double deviation = 0.0;
  double gamma = 1.0;
  uint64_t seed = 0;
};

class FrameFeatures {
 public:
  /// Throws ConfigError when a named field does not exist or a type is outside the one-hot.
  FrameFeatures(const Dataset& dataset, const DataConfig& config);

  int64_t node_inputs() const { return node_inputs_; }
  int64_t edge_inputs() const { return dataset_.dim() + 1; }
  int64_t outputs() const { return outputs_; }

  /// From the data set's statistics: fields over all nodes, the one-hot left as it is, the target over the
  /// predicted nodes with the noise's share added: sqrt(std^2 + share^2).
  Normalizers dataset_normalizers(const NoiseOptions& noise) const;
  /// Empty ones, to be learned.
  Normalizers online_normalizers() const;

  /// Sizes of a training batch of these samples, each unrolled over `steps`.
  BatchSizes training_sizes(std::string_view split, const std::vector<Sample>& samples,
                            int64_t steps = 1) const;
  /// Writes a training batch into `batch`, whose tensors lie on the host and are large enough. With `learn`,
  /// statistics of the batch's first step are added to the normalisers before they are applied. Noise is in
  /// the first step alone: the frames behind it, one for each of the batch's further steps, are the data's.
  void write_training_batch(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                            const NoiseOptions& noise, Normalizers& normalizers, bool learn,
                            SampleScratch& scratch) const;
  /// The same in memory of its own on the runtime's device, with offsets and sample ids.
  Batch training_batch(Runtime& runtime, DType dtype, std::string_view split,
                       const std::vector<Sample>& samples, const NoiseOptions& noise,
                       Normalizers& normalizers, bool learn, int64_t steps = 1) const;
  /// A batch of one graph for prediction: inputs from `state`, other fields from frame t.
  Batch prediction_batch(Runtime& runtime, DType dtype, const TrajectoryView& trajectory, int64_t t,
                         const FieldState& state, const Normalizers& normalizers) const;

  /// The state at frame t, from the data.
  FieldState state_at(const TrajectoryView& trajectory, int64_t t) const;
  /// The next values of the predicted nodes, from a normalised prediction [nodes, outputs] on the host; other
  /// nodes as in `state.current`.
  std::vector<float> advance(const TrajectoryView& trajectory, const FieldState& state,
                             const Tensor& prediction, const Normalizers& normalizers) const;
  /// Target fields at frame t side by side: [nodes, outputs].
  std::vector<float> target_values(const TrajectoryView& trajectory, int64_t t) const;
  /// u8 [nodes]: 1 where a node is predicted.
  std::vector<uint8_t> predicted_mask(const MeshView& mesh) const;
  int64_t predicted_nodes(const MeshView& mesh) const;
  /// "velocity" or "velocity, pressure".
  std::string target_names() const;
  const std::vector<FieldInfo>& targets() const { return targets_; }

 private:
  struct Input {
    FieldInfo field;
    int64_t target_column = -1;  // where it stands among the targets, -1: nowhere
  };
  template <class T>
  void write_node_inputs(const TrajectoryView& trajectory, int64_t t, const FieldState& state, T* rows) const;
  template <class T>
  void write_edge_inputs(const MeshView& mesh, T* rows) const;
  template <class T>
  void write_targets(const TrajectoryView& trajectory, const Sample& sample, const NoiseOptions& options,
                     SampleScratch& scratch, T* rows) const;
  template <class T>
  void write_further(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                     const Normalizers& normalizers, int64_t nodes, SampleScratch& scratch) const;
  void write_mask(const MeshView& mesh, uint8_t* rows) const;
  void read_targets(const TrajectoryView& trajectory, int64_t t, std::vector<float>& values) const;
  void read_state(const TrajectoryView& trajectory, int64_t t, FieldState& state) const;
  void add_noise(const TrajectoryView& trajectory, const Sample& sample, const NoiseOptions& noise,
                 SampleScratch& scratch) const;
  bool takes_noise(int32_t type) const;
  BatchSizes sizes_of(const Dataset::MeshSizes& meshes, int64_t outputs) const;

  const Dataset& dataset_;
  DataConfig config_;
  std::vector<Input> inputs_;
  std::vector<FieldInfo> targets_;
  int64_t node_inputs_ = 0;
  int64_t outputs_ = 0;
};

/// The disjoint union of meshes as one graph, mesh by mesh: writes one with its indices moved behind those of
/// the meshes before it, and returns the sizes of them all. The graph's tensors lie on the host and are large
/// enough; `counts`, if it has them, are written too.
Dataset::MeshSizes append_to_union(const Graph& graph, const MeshView& mesh,
                                   const Dataset::MeshSizes& before);

}  // namespace meshgrad
#pragma GCC visibility pop
