// SPDX-License-Identifier: Apache-2.0
// Memory for the node terms of an edge update.
#pragma once
#include <meshgrad/kernels/message_passing.h>

namespace meshgrad::cuda {

/// S = h W_s of all nodes and R = h W_r of the owned ones: halo nodes never receive. In backward, their
/// gradients. [nodes, width] and [owned_nodes, width].
struct NodeTermTensors {
  Tensor sender, receiver;

  NodeTermTensors() = default;
  explicit NodeTermTensors(const NodeTermsAhead& made) : sender(made.sender), receiver(made.receiver) {}
  NodeTermTensors(const Graph& graph, int64_t width, DType dtype, Runtime& runtime)
      : sender(Tensor::empty(runtime, {graph.nodes, width}, dtype, Tag::workspace, "sender terms")),
        receiver(
            Tensor::empty(runtime, {graph.owned_nodes, width}, dtype, Tag::workspace, "receiver terms")) {}
};

}  // namespace meshgrad::cuda
