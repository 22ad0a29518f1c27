// SPDX-License-Identifier: Apache-2.0
// What a model's errors are on the validation split, while it trains.
#pragma once
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/task/frame_features.h>

namespace meshgrad {

/// Mean over samples' predicted nodes of the squared normalised error, without noise; the same samples every
/// time.
double validation_loss(Runtime& runtime, const MeshGraphNet& model, const FrameFeatures& features,
                       Normalizers& normalizers, const Dataset& dataset, const Config& config);

}  // namespace meshgrad
