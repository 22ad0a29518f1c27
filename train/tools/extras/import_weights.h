// SPDX-License-Identifier: Apache-2.0
// Weights that another framework trained, from a safetensors file of its state dict into a checkpoint.
//
// Shapes do not show conventions: weights of one convention compute wrong numbers under another, without an
// error. Each source sets them:
//
//   source       edge MLP's input            node MLP's input            a node sums edges
//   physicsnemo  edge, sender, receiver      sum of edges, node          after the residual
//   deepmind     sender, receiver, edge      node, sum of edges          before the residual
//   pyg          sender, receiver, edge      node, sum of edges          after the residual
//
// Names, of the MLP in front of "node_encoder" and so on:
//   physicsnemo  NAME.model.I.{weight,bias}, blocks processor.processor_layers.{2K,2K+1}.{edge_mlp,node_mlp};
//                with do_concat_trick also edge_mlp.{lin_efeat,lin_src,lin_dst,bias}
//   deepmind     TensorFlow variables, matrices as [in, out]: encoder/mlp{,_1}/linear_I/{w,b},
//                GraphNetBlock_K/{mesh_edges_edge_fn,node_fn}/mlp/linear_I, .../layer_norm/{gamma,beta}
//   pyg          NAME.I.{weight,bias} of nn.Sequential, processor.K.{edge_mlp,node_mlp}, decoder: the form of
//                Stanford CS224W's tutorial, which sums at edge_index[0] (so that is the receiver here)
//                Or torch_geometric.nn.GAT, a graph attention network:
//                convs.K.{lin.weight,att_src,att_dst,bias} of GATConv, convs.K.{lin_l,lin_r}.{weight,bias},
//                .att and .bias of GATv2Conv
//                Or torch_geometric.nn.VGAE with an encoder of GCNConv, a variational graph autoencoder:
//                encoder.{conv1,conv2,...,conv_mu,conv_logstd}.{lin.weight,bias}, also without "encoder."
// Prefixes in front of all names (module., model., state., Model/) are ignored, as are tensors in., out.,
// grad. of a file with reference values.
//
// pyg's relative positions are receiver minus sender, ours sender minus receiver: the import changes the sign
// of those columns of the edge encoder, a check does not, since its inputs are given.
//
// Normalisers: tensors normalizer.{nodes,edges,targets}.{mean,std} (scripts/pt-to-safetensors writes them
// from statistics in JSON), or DeepMind's accumulated sums {node,edge,output}_normalizer/Variable{,_1,_2,_3}.
#pragma once
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/learn/config/config.h>

#include <filesystem>
#include <optional>
#include <string>

namespace meshgrad {

enum class WeightSource : uint8_t { physicsnemo, deepmind, pyg };

struct ImportOptions {
  std::filesystem::path file;
  WeightSource source = WeightSource::physicsnemo;
  std::filesystem::path output;  ///< the checkpoint; its folder is made
};

struct ImportReport {
  int64_t width = 0, blocks = 0, hidden_layers = 0;  ///< 0 hidden layers: no MLPs
  int64_t parameters = 0;                            ///< scalars
  /// Where they are from: "file", "data", or with normalize.mode = "none" nowhere, "none".
  std::string_view normalizers = "data";
};

/// Writes a checkpoint of step 0 for `config`, whose data set gives fields and normalisers; width, blocks,
/// hidden layers, norm and conventions are the file's. Throws DataError for a missing tensor, one without a
/// place in the model, or another shape, with the tensor's name and both shapes; ConfigError for the data.
ImportReport import_weights(Runtime& runtime, const Config& config, const ImportOptions& options);

struct ImportCheck {
  int64_t nodes = 0, edges = 0;
  double difference = 0;  ///< largest of the prediction, over the largest value in the file
  /// 1e-9 for a prediction in f64, of graph convolutions 1e-6, as their coefficients are in f32; else 1e-4.
  double tolerance = 0;
  bool passed() const { return difference <= tolerance; }
};

/// Computes the file's in.{node_features,edge_features,senders,receivers} with its weights in f64, and
/// compares with its out.prediction. Throws DataError when the file has none of these.
ImportCheck check_weights(Runtime& runtime, const std::filesystem::path& file, WeightSource source,
                          Activation activation);

}  // namespace meshgrad
