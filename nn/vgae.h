// SPDX-License-Identifier: Apache-2.0
// Vgae: a variational graph autoencoder. Graph convolutions, or attention layers, give each node a normal
// distribution, from which its latent values are drawn in training; links between nodes are told from inner
// products of them (ops::pair_loss), and the nodes' inputs by a decoder.
// Sources: Kipf, Welling, "Variational graph auto-encoders" (2016), and "Semi-supervised classification with
// graph convolutional networks" (2017) for the layers, whose parameters are those of PyTorch Geometric's
// GCNConv; for attention layers see gat.h.
#pragma once
#include <meshgrad/kernels/activation.h>
#include <meshgrad/nn/model.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// What the layers in front of the decoder are. An attention layer's heads lie side by side; the last one has
/// a head of the means and one of the logarithms.
enum class VgaeEncoder : uint8_t { convolution, attention };

struct VgaeOptions {
  VgaeEncoder encoder = VgaeEncoder::convolution;
  int64_t heads = 4;   ///< of an attention layer
  int64_t width = 32;  ///< of a layer
  int64_t blocks = 1;  ///< layers in front of the one that gives the distributions
  Activation activation = Activation::relu;
  bool features = false;      ///< a decoder predicts the nodes' inputs
  int64_t hidden_layers = 1;  ///< of that decoder, an MLP
  ComputePath path = ComputePath::fused;
  bool keep_hidden = true;  ///< as of a MeshGraphNet, in that decoder
};

/// The options that parameter shapes do not show, as ParameterSet::conventions has them.
std::string parameter_conventions(const VgaeOptions& options);

/// The stages "encoder.0", ..., "latent" and with features "features", and their parameters, not yet
/// allocated: NAME.weight and NAME.bias of the first ones, or those of make_gat's layers with the score gat,
/// and those of Mlp of the last. The columns of "latent" are the means, then the logarithms of the standard
/// deviations. Weights are initialised as Glorot and Bengio (2010) do, biases with 0. The graph has an edge
/// from each node to itself. The model gives three values: the latent ones, [nodes, sizes.outputs], on
/// tapes that train drawn by the batch's node_keys, else the means; means and logarithms, [nodes, 2
/// sizes.outputs]; and with features [nodes, sizes.node_inputs]. Throws InvalidArgument for sizes that do not
/// fit: one edge set, for convolutions with weights (ModelSizes::edge_weights), and no pool. Stages throw it
/// for a batch that does not fit.
Model make_vgae(const VgaeOptions& options, const ModelSizes& sizes);

}  // namespace meshgrad
#pragma GCC visibility pop
