// SPDX-License-Identifier: Apache-2.0
// The step of a batch whose meshes are cut into parts.
#pragma once
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/task/mesh_parts.h>
#include <meshgrad/train/learn/task/task.h>

#include <optional>

namespace meshgrad {

/// What ranks.partition and ranks.parts_in_turn ask for; nothing where each mesh is computed whole. Throws
/// ConfigError for keys that do not go together, and what mesh_cut throws.
std::optional<MeshParts> make_mesh_parts(Runtime& runtime, const Config& config, Ranks& ranks);
/// The same for training, which also refuses what no step in parts can do.
std::optional<MeshParts> make_parts_to_train_on(Runtime& runtime, const Config& config, Ranks& ranks);

/// The layout of this rank's part of a batch that lies on the host.
BatchLayout part_layout(const Task& task, MeshParts& parts, std::span<const MeshView> meshes,
                        const Batch& whole, DType dtype);

/// Forward, loss and backward of a batch on the host, part after part: adds its gradients, and its loss to
/// the window's.
void run_in_turn(Runtime& runtime, const Task& task, const Model& model, const Optimizer& optimizer,
                 const Batch& whole, std::span<const MeshView> meshes, MeshParts& parts);

struct PartsLoss {
  double loss = 0.0;
  Tensor prediction;  ///< on the host
};
/// The loss of a batch on the device, as Task::loss, with the prediction computed in parts. A collective call
/// where parts belong to ranks.
PartsLoss loss_in_parts(Runtime& runtime, const Task& task, const Model& model, const Batch& batch,
                        const MeshView& mesh, MeshParts& parts);

}  // namespace meshgrad
