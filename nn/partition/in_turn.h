// SPDX-License-Identifier: Apache-2.0
// PartsInTurn: a mesh that is too large for a device is computed part after part, stage by stage. Between the
// stages its values lie in host memory, where a part also finds its ghosts' rows. The device holds one part's
// stage at a time; each stage but the loss is computed twice, as with recomputation.
#pragma once
#include <meshgrad/nn/model.h>
#include <meshgrad/nn/partition/part_batch.h>

namespace meshgrad {

class PartsInTurn {
 public:
  /// The batch of the whole mesh lies on the host; parts[r] is the part of rank r, and all of them are given.
  /// Copies what it needs of both to the runtime's device, all parts' graphs and features, and to the host.
  PartsInTurn(Runtime& runtime, const GraphBatch& whole, std::vector<Part> parts);
  ~PartsInTurn();
  PartsInTurn(const PartsInTurn&) = delete;
  PartsInTurn& operator=(const PartsInTurn&) = delete;

  int64_t parts() const { return static_cast<int64_t>(parts_.size()); }
  const Part& part(int64_t number) const { return parts_[static_cast<size_t>(number)]; }
  const GraphBatch& batch(int64_t number) const { return batches_[static_cast<size_t>(number)]; }

  /// Computes the loss of a part from its prediction, [owned, outputs], on a tape of its own and walks that
  /// back, so that prediction.gradient() is filled.
  using Loss = std::function<void(int64_t part, const Variable& prediction)>;
  /// Adds the gradients of all parts to the parameters', which equal those of the whole mesh but for the
  /// order of sums. A stage may exchange the node values that it is given, once, and nothing else: throws
  /// InvalidArgument otherwise, and what forward() throws.
  void add_gradients(const Model& model, const Loss& loss);
  /// The model's prediction in host memory, [nodes, outputs], in the order of the whole mesh.
  Tensor predict(const Model& model);

  /// Values held in host memory at once, at most, so far.
  int64_t most_host_bytes() const { return most_host_bytes_; }

 private:
  class Exchange;
  /// A part's values or their gradients in host memory; undefined where absent.
  using Held = PerInput<Tensor>;
  /// Of all parts.
  using Level = std::vector<Held>;

  Level forward_stage(const Model& model, int64_t stage, const Level* before);
  Held forward_part(const Model& model, int64_t stage, size_t part, const Level* before);
  Level backward_stage(const Model& model, int64_t stage, const Level* before, const Level& gradients);
  Held backward_part(const Model& model, int64_t stage, size_t part, const Level* before,
                     const Held& gradients);
  Level loss_gradients(const Level& predictions, const Loss& loss);
  Values values_of(const Tape& tape, size_t part, const Level* before, bool need_gradient);
  Tensor upload(const Tensor& host, std::string_view name);
  Tensor download(const Tensor& device);
  void count(const Level& level, int64_t sign);

  Runtime& runtime_;
  std::vector<Part> parts_;
  std::shared_ptr<Exchange> exchange_;
  std::vector<GraphBatch> batches_;
  int64_t host_bytes_ = 0, most_host_bytes_ = 0;
};

}  // namespace meshgrad
