// SPDX-License-Identifier: Apache-2.0
// The fused kernels on tensor cores: an MLP over rows, and the edge half of a message-passing block, one
// launch forward; backward one more, and one for all weight gradients together. Hidden activations are never
// kept: backward recomputes them, bit for bit. Contracts are those of mlp.h and message_passing.h.
//
// Sums run in f32, activations are rounded to storage once a layer. Rows are dealt to warps by their real
// count and the device alone: bit-identical from run to run, for any capacity.
#pragma once
#include <meshgrad/kernels/message_passing.h>

namespace meshgrad::cuda {

/// True when the fused kernels take this call: f16 or bf16, a hidden width of 64, 128 or 256, 2 to 4 layers,
/// relu, and nothing to save. MLP: up to 3 inputs, each as wide as the hidden layers or at most 32; an output
/// as wide as the hidden layers, or (without norm and residual) at most 32. Edges: all widths alike.
bool fused_covers(const MlpForward& args);
bool fused_covers(const MlpBackward& args);
bool fused_covers(const EdgeUpdateForward& args);
bool fused_covers(const EdgeUpdateBackward& args);

/// The call has to be covered.
void fused_mlp_forward(const MlpForward& args, Runtime& runtime, const Stream& stream);
void fused_mlp_backward(const MlpBackward& args, Runtime& runtime, const Stream& stream);
void fused_edge_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream);
void fused_edge_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
