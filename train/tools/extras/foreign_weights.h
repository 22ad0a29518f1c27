// SPDX-License-Identifier: Apache-2.0
// The names, conventions and normalisers of other frameworks' files (import_weights.h).
#pragma once
#include <meshgrad/nn/gat.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/nn/vgae.h>
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/tools/extras/import_weights.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace meshgrad {

/// A parameter in file order: matrices as [out, in].
struct ForeignParameter {
  std::string name;  ///< in the file
  std::vector<int64_t> shape;
  std::vector<double> values;
};

struct ForeignModel {
  MeshGraphNetOptions options;      ///< those that the file shows, and the source's conventions
  std::optional<GatOptions> gat;    ///< of a graph attention network, instead; what the file shows
  std::optional<VgaeOptions> vgae;  ///< of a variational graph autoencoder, likewise
  ModelSizes sizes;
  std::map<std::string, ForeignParameter> parameters;  ///< by our names
  std::optional<Normalizers> normalizers;
};

/// Throws DataError for missing tensors, and for those that no name of the source explains.
ForeignModel read_foreign_model(const SafetensorsView& view, WeightSource source);

/// Changes a MeshGraphNet's encoder of edges, and their normaliser, for relative positions of the opposite
/// sign: pyg's are receiver minus sender, ours sender minus receiver.
void reverse_relative_positions(ForeignModel& model);

/// Sets all parameters of an allocated model; `file` stands for the file in errors.
void set_parameters(const ForeignModel& foreign, const std::string& file, const ParameterSet& parameters,
                    const Stream& stream);

}  // namespace meshgrad
