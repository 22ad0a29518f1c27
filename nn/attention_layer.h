// SPDX-License-Identifier: Apache-2.0
// AttentionLayer: the layer that graph attention networks are made of, and encoders of vgae.h.
#pragma once
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/gat.h>

#include <optional>
#include <string>

namespace meshgrad {

/// Numbers the dropouts of a model.
class Dropouts {
 public:
  /// Of one that is inactive unless the tape trains.
  struct Place {
    uint32_t op = 0;
    double rate = 0.0;
    /// Throws InvalidArgument for a batch without node_keys.
    DropoutKey key(const Tape& tape, const GraphBatch& batch) const;
  };
  Place next(double rate) { return {.op = count_++, .rate = rate}; }

 private:
  uint32_t count_ = 0;
};

/// What an attention layer is made of, beside the options that all layers share.
struct AttentionShape {
  std::string name;
  int64_t in = 0;
  int64_t heads = 1;
  int64_t width = 0;  ///< of a head
  bool concatenate = true;
  int64_t edge_inputs = 0;  ///< 0: none are read

  int64_t all_heads() const { return heads * width; }
  int64_t out() const { return concatenate ? all_heads() : width; }
};

/// Without an activation.
class AttentionLayer {
 public:
  /// Declares the parameters that make_gat describes. Of `options` it takes score, self_edges and the rates
  /// of dropout.
  AttentionLayer(ParameterSet& parameters, const AttentionShape& shape, const GatOptions& options,
                 Dropouts& dropouts);

  Variable operator()(Tape& tape, const ParameterSet& set, const GraphBatch& batch, const Variable& nodes,
                      const Variable& edges) const;

 private:
  AttentionShape shape_;
  AttentionScore score_;
  bool self_edges_;
  Dropouts::Place inputs_, alphas_;
  size_t values_ = 0, queries_ = 0, queries_bias_ = 0, weight_ = 0;
  size_t sender_score_ = 0, receiver_score_ = 0, bias_ = 0;
  std::optional<size_t> values_bias_, edges_;
};

}  // namespace meshgrad
