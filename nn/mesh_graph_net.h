// SPDX-License-Identifier: Apache-2.0
// MeshGraphNet: encode, `blocks` rounds of message passing with unshared weights, decode.
// Source: Pfaff et al., "Learning mesh-based simulation with graph networks" (2021), section 3.2 and appendix
// A.1.
#pragma once
#include <meshgrad/autograd/recompute/checkpoint.h>
#include <meshgrad/nn/batch.h>
#include <meshgrad/nn/mlp.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// The order of the concatenation in front of an edge MLP. Weights trained under one are silently wrong under
/// the other, so a file of weights must say which it holds.
enum class ConcatOrder : uint8_t {
  sender_receiver_edge,  ///< DeepMind
  edge_sender_receiver   ///< PhysicsNeMo
};
/// What the node MLP sums: the edge MLP's output (DeepMind), or that plus the residual (PhysicsNeMo).
enum class AggregateOrder : uint8_t { before_residual, after_residual };

struct MeshGraphNetOptions {
  int64_t node_inputs = 0;
  std::vector<int64_t> edge_inputs;  ///< per edge set
  std::vector<std::string>
      edge_set_names;  ///< as many; the name is part of parameter names when there are several
  int64_t outputs = 0;
  int64_t width = 128;
  int64_t blocks = 15;
  int64_t hidden_layers = 2;
  Activation activation = Activation::relu;
  Norm norm = Norm::layer;
  ConcatOrder concat_order = ConcatOrder::sender_receiver_edge;
  AggregateOrder aggregate = AggregateOrder::before_residual;
  ComputePath path = ComputePath::fused;
  bool keep_hidden = true;  ///< fused path: false recomputes hidden activations in backward
};

/// Latents after the encoder (index 0) and after each block, for those who want to look.
struct LatentTrace {
  std::vector<Tensor> nodes;               ///< [nodes, width] each
  std::vector<std::vector<Tensor>> edges;  ///< [edge set][depth]
};

/// Stages [begin, end) of a model that are computed again for the backward pass, as one segment.
struct RecomputedStages {
  int64_t begin = 0;
  int64_t end = 0;
  Keep keep = Keep::inputs;
  bool operator==(const RecomputedStages&) const = default;
};

class MeshGraphNet {
 public:
  /// Throws InvalidArgument for sizes below 1, or edge sets without a name each.
  explicit MeshGraphNet(const MeshGraphNetOptions& options);
  void allocate(Runtime& runtime, DType dtype, uint64_t seed) { parameters_.allocate(runtime, dtype, seed); }

  const MeshGraphNetOptions& options() const { return options_; }
  const ParameterSet& parameters() const { return parameters_; }
  ParameterSet& parameters() { return parameters_; }

  /// What a forward pass goes through, in order: "encoder", "processor.0", ..., "decoder".
  int64_t stages() const { return options_.blocks + 2; }
  std::string stage_name(int64_t stage) const;

  /// [nodes, outputs]: the normalised prediction. The batch must outlive the tape's entries. `nodes` and
  /// `edges` stand for the batch's features, so that a caller can ask for their gradients. With a trace
  /// nothing is recomputed.
  Variable forward(Tape& tape, const Batch& batch, const Variable& nodes, const std::vector<Variable>& edges,
                   LatentTrace* trace = nullptr) const;
  /// `recomputed`: in order, not overlapping. Gradients do not depend on it, to the last bit. `nodes`, where
  /// it is given, stands for the batch's node features.
  Variable forward(Tape& tape, const Batch& batch, const std::vector<RecomputedStages>& recomputed = {},
                   const Variable& nodes = {}) const;
  /// The variables in front of the first stage, and those behind a stage from those before it: the nodes',
  /// then each edge set's, absent when nobody reads them any more.
  PerInput<Variable> inputs(const Tape& tape, const Batch& batch) const;
  PerInput<Variable> run_stage(Tape& tape, const Batch& batch, int64_t stage,
                               const PerInput<Variable>& before, bool keep_last_edges = false) const;

 private:
  struct Block {
    std::vector<Mlp> edges;
    Mlp nodes;
  };
  PerInput<Variable> encode(Tape& tape, const PerInput<Variable>& features) const;
  PerInput<Variable> run_block(Tape& tape, const Batch& batch, size_t index, const PerInput<Variable>& before,
                               bool keep_edges) const;
  void check_recomputed(const std::vector<RecomputedStages>& recomputed) const;
  EdgeUpdate update_edges(Tape& tape, const Graph& graph, const Mlp& mlp, const Variable& nodes,
                          const Variable& edges, bool keep_edges) const;

  MeshGraphNetOptions options_;
  ParameterSet parameters_;
  std::vector<Mlp> node_encoder_, edge_encoders_, decoder_;  // one node encoder and one decoder
  std::vector<Block> blocks_;
};

}  // namespace meshgrad
#pragma GCC visibility pop
