// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/run/trainer.h>

namespace meshgrad {

MeshGraphNetOptions model_options(const ModelConfig& config, const FrameFeatures& features) {
  return {.node_inputs = features.node_inputs(),
          .edge_inputs = {features.edge_inputs()},
          .edge_set_names = {"mesh"},
          .outputs = features.outputs(),
          .width = config.width,
          .blocks = config.blocks,
          .hidden_layers = config.hidden_layers,
          .activation = config.activation,
          .norm = config.norm,
          .concat_order = config.concat_order,
          .aggregate = config.aggregate,
          .path = config.path,
          .keep_hidden = config.keep_hidden};
}

}  // namespace meshgrad
