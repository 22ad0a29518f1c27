// SPDX-License-Identifier: Apache-2.0
// A first configuration for data of graphs: the classes of nodes, or numbers or classes of whole graphs.
#pragma once
#include <meshgrad/train/tools/extras/first_config.h>

namespace meshgrad {

/// Whether the data are not for a task on meshes: they have no positions in 2 or 3 dimensions, or all
/// `targets` are on graphs.
bool is_for_graphs(const Dataset& dataset, const std::vector<std::string>& targets);

/// Of one graph with a node split, the integer field on its nodes is the target. Of others, it is the fields
/// `targets` on graphs, or without them the integer field on graphs, or the float one where there is no
/// other. Inputs are the float fields on nodes. Throws ConfigError where this leaves a choice, with the
/// candidates.
FirstConfig first_graph_config(const Dataset& dataset, const std::vector<Preset>& chosen,
                               const std::vector<std::string>& targets);

}  // namespace meshgrad
