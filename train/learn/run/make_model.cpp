// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/run/make_model.h>

namespace meshgrad {

Model make_model(const ModelConfig& config, const ModelSizes& sizes) {
  if (config.name == ModelName::gat) return make_gat(gat_options(config), sizes);
  if (config.name == ModelName::vgae) return make_vgae(vgae_options(config), sizes);
  return make_mesh_graph_net(mesh_graph_net_options(config), sizes);
}

Model make_model(Runtime& runtime, const Config& config, const ModelSizes& sizes) {
  Model model = make_model(config.model, sizes);
  model.parameters.allocate(runtime, config.precision, static_cast<uint64_t>(config.run.seed));
  return model;
}

}  // namespace meshgrad
