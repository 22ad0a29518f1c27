// SPDX-License-Identifier: Apache-2.0
// MeshGraphNet: encode, `blocks` rounds of message passing with unshared weights, decode. For a prediction of
// whole graphs the nodes of each graph are pooled in front of the decoder; beside one of nodes, in front of a
// decoder of its own.
// Source: Pfaff et al., "Learning mesh-based simulation with graph networks" (2021), section 3.2 and appendix
// A.1.
#pragma once
#include <meshgrad/nn/model.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// The order of the concatenation in front of an edge MLP. Weights trained under one are silently wrong under
/// the other, so a file of weights must say which it holds.
enum class ConcatOrder : uint8_t {
  sender_receiver_edge,  ///< DeepMind
  edge_sender_receiver   ///< PhysicsNeMo
};
/// What the node MLP reads the sum of: the edge MLP's output (DeepMind), or that plus the residual
/// (PhysicsNeMo).
enum class AggregateOrder : uint8_t { before_residual, after_residual };
/// What a node makes of the values of its edges, column by column.
using EdgeReduce = GraphPool;

struct MeshGraphNetOptions {
  int64_t width = 128;        ///< of latents and hidden layers
  int64_t blocks = 15;        ///< message-passing blocks
  int64_t hidden_layers = 2;  ///< of each MLP
  Activation activation = Activation::relu;
  Norm norm = Norm::layer;  ///< after each MLP but the decoder
  ConcatOrder concat_order = ConcatOrder::sender_receiver_edge;
  AggregateOrder aggregate = AggregateOrder::before_residual;
  EdgeReduce reduce = EdgeReduce::sum;     ///< mean, max: edges op by op, also where fused
  GraphPool graph_pool = GraphPool::mean;  ///< of nodes, for graph_outputs
  int64_t slices = 0;        ///< of a slice layer between blocks (slice_layer.h); 0: there is none
  int64_t slices_every = 5;  ///< blocks from one slice layer to the next
  int64_t slice_heads = 8;   ///< that divide the width
  ComputePath path = ComputePath::fused;
  bool keep_hidden = true;  ///< fused path: false recomputes hidden activations in the backward pass
  bool keep_last_edges =
      false;  ///< the last block writes edge latents too, which no stage reads: for observers
};

/// The options that parameter shapes do not show, as ParameterSet::conventions has them.
std::string parameter_conventions(const MeshGraphNetOptions& options);

/// The stages of add_embedding, "encoder", "processor.0", ..., with sizes.pool "pool", "decoder" and their
/// parameters, not yet allocated. With slices a stage "slices.K" follows each slices_every-th block K but the
/// last block, with the parameters of a SliceLayer of that name; it needs sizes.graph_starts. Parameters:
/// node_encoder, edge_encoder, processor.K.edge_mlp, processor.K.node_mlp, node_decoder and with
/// graph_outputs graph_decoder, each an Mlp; with several edge sets the names of those of edges end with the
/// set's. An edge set without features (0 edge_inputs) has no encoder: the first block's edge MLP reads only
/// sender and receiver, and its output is the edges' first latents. Without outputs, beside graph_outputs,
/// there is no node_decoder. Throws InvalidArgument for other sizes below 1, more than 7 hidden layers or
/// edge sets, edge sets without a name each, and slices that do not fit (kernels/slice_attention.h). Stages
/// throw it for a batch whose edge sets are others; those of slices for a part of a mesh.
Model make_mesh_graph_net(const MeshGraphNetOptions& options, const ModelSizes& sizes);

}  // namespace meshgrad
#pragma GCC visibility pop
