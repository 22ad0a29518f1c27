// SPDX-License-Identifier: Apache-2.0
// The fused tensor-core kernels: an MLP over rows, and the edge half of a message-passing block. Hidden
// activations are never saved: backward recomputes them, bit for bit. Contracts are those of mlp.h and
// message_passing.h. Launches:
//
//   MLP forward     mlp_forward (of a block's nodes, with the next block's node terms)
//   MLP backward    mlp_backward, weight_gradients
//   edges forward   node_terms_forward, if they are not there; edge_forward
//   edges backward  node_terms_forward, edge_backward, node_terms_backward (with all weight gradients)
//
// Accumulation is in f32; activations are rounded to storage once per layer. The assignment of rows to warps
// depends on the real counts and the device alone: bit-identical from run to run, for any capacity.
#pragma once
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/message_passing.h>

#include <cstdint>
#include <string>

namespace meshgrad::cuda {

/// Where a thread block of a fused kernel has its weights.
enum class WeightPlace : uint8_t {
  none,      ///< not on this device: the call runs op by op
  resident,  ///< all of them in shared memory
  streamed,  ///< two slices at a time in shared memory, the others in the L2 cache; the same bits
};
/// Shared memory of a thread block with its weights in either place, in bytes.
struct FusedBytes {
  int resident, streamed;
};
inline constexpr int kFusedCapability = 80;  ///< the least, as gpu::compute_capability
/// Which of a fused kernel's variants a device runs, if any; launches and plans ask nothing else. The device
/// lets a thread block have `available` bytes (gpu::shared_bytes). Width 64 has resident weights only, 256
/// streamed ones only; width 128 streams where they do not fit.
WeightPlace weight_place(int64_t width, const FusedBytes& needed, int available, int capability);

/// The fused kernels support a call with f16 or bf16, hidden width 64, 128 or 256, 2 to 4 layers, an
/// activation (not elu or leaky_relu), and no saved activations. MLP: up to 3 inputs, each as wide as the
/// hidden layers or at most 32; an output as wide as the hidden layers, or (without norm and residual) at
/// most 32. Edges: all widths equal. The device must have a place for the weights (weight_place). Other calls
/// take the general path. Returns why not, empty when it is supported.
std::string why_not_fused(const MlpForward& args);
std::string why_not_fused(const MlpBackward& args);
std::string why_not_fused(const EdgeUpdateForward& args);
std::string why_not_fused(const EdgeUpdateBackward& args);
/// Whether a call is supported; if not, and its values have 16 bits, the Runtime's log says once why.
template <class Args>
bool fused_supports(const Args& args) {
  return why_not_fused(args).empty();
}
template <class Args>
bool fused_supports(const Args& args, std::string_view op, DType dtype, Runtime& runtime) {
  const std::string reason = why_not_fused(args);
  if (!reason.empty() && dtype != DType::f32) {
    runtime.log_once(LogLevel::info, std::string(op) + " runs op by op, not as a fused kernel: " + reason);
  }
  return reason.empty();
}

/// Why mlp_forward does not make the node terms that the call wants: they need a width of 64 or 128, that of
/// the hidden layers and edges, at most three layers, and shared memory in which two more weights have the
/// same place and as many thread blocks fit a multiprocessor as without. Empty when it does.
std::string why_no_node_terms(const MlpForward& args);

/// fused_supports(args) must be true.
void fused_mlp_forward(const MlpForward& args, Runtime& runtime, const Stream& stream);
void fused_mlp_backward(const MlpBackward& args, Runtime& runtime, const Stream& stream);
void fused_edge_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream);
void fused_edge_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
