// SPDX-License-Identifier: Apache-2.0
// Gat: a graph attention network. Each layer maps nodes' values linearly, head by head, and each node takes a
// mean of its senders' values, weighted by a softmax of scores.
// Sources: Velickovic et al., "Graph attention networks" (2018); Brody, Alon, Yahav, "How attentive are graph
// attention networks?" (2022), for gatv2; Xu et al., "Representation learning on graphs with jumping
// knowledge networks" (2018). Parameters are those of PyTorch Geometric's GATConv and GATv2Conv.
#pragma once
#include <meshgrad/kernels/activation.h>
#include <meshgrad/kernels/graph_choices.h>
#include <meshgrad/nn/model.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// What the decoder reads: the last layer, or all of them, side by side or column by column the largest.
enum class Jumping : uint8_t { none, concatenate, max };

/// What makes the prediction: an MLP, or one more attention layer, whose heads' mean it is.
enum class GatDecoder : uint8_t { mlp, attention };

/// With Jumping::concatenate: the values between two stages are at most 8.
inline constexpr int64_t kMostGatBlocksSideBySide = 7;

struct GatOptions {
  int64_t width = 32;         ///< of a head
  int64_t heads = 4;          ///< of a layer
  int64_t blocks = 3;         ///< layers in front of the decoder
  int64_t hidden_layers = 2;  ///< of the decoder's MLP
  Activation activation = Activation::elu;
  AttentionScore score = AttentionScore::gat;  ///< or gatv2
  bool self_edges = true;                      ///< each node attends to itself, too
  bool concatenate = true;                     ///< a layer's heads side by side; false: their mean
  bool edge_features = true;                   ///< of gat: they add to the scores
  GatDecoder decoder = GatDecoder::mlp;
  int64_t output_heads = 1;  ///< of an attention decoder
  Jumping jumping = Jumping::none;
  double dropout = 0.0;            ///< of the inputs of attention layers
  double attention_dropout = 0.0;  ///< of the weights of a softmax
  ComputePath path = ComputePath::fused;
  bool keep_hidden = true;  ///< as of a MeshGraphNet, in the decoder's MLP
};

/// The options that parameter shapes do not show, as ParameterSet::conventions has them.
std::string parameter_conventions(const GatOptions& options);

/// The stages of add_embedding, "layer.0", ..., with sizes.pool "pool", and "decoder", and their parameters,
/// not yet allocated. Of an attention layer NAME: NAME.values.weight (of gatv2 with a bias), of gatv2
/// NAME.queries.weight|bias and NAME.score, of gat NAME.sender_score and NAME.receiver_score, with edge
/// features NAME.edge_scores.weight, and NAME.bias; of an MLP those of Mlp. All are initialised as Glorot and
/// Bengio (2010) do, but biases with 0. Dropout is active on tapes that train alone; a batch then has
/// node_keys. Throws InvalidArgument for sizes that do not fit, another number of edge sets than one, edge
/// features with gatv2, and an attention decoder with jumping or a pool. Stages throw it for a batch that
/// does not fit, such as a part of a mesh.
Model make_gat(const GatOptions& options, const ModelSizes& sizes);

}  // namespace meshgrad
#pragma GCC visibility pop
