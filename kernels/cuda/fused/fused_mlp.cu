// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/fused_layers.h>

#include <algorithm>

namespace meshgrad::cuda {
namespace {

/// True when an input's gradient is the same memory as d_out, as for an input that is also the residual.
bool overwrites_d_out(const MlpBackward& args) {
  return std::any_of(args.d_inputs.begin(), args.d_inputs.end(),
                     [&](const Tensor& d_x) { return d_x.defined() && d_x.raw() == args.d_out.raw(); });
}

}  // namespace

std::string why_not_fused(const MlpForward& args) {
  std::string reason =
      why_unsupported(args.inputs, args.weights, args.saved, [](int64_t, int, bool) { return 0; });
  if (!reason.empty()) return reason;
  const bool wide = args.out.width() == args.inputs.front().weight.width();
  if (!wide && args.residual.defined()) return "a residual of a narrow output";
  const bool fits = fits_int32(args.rows.capacity) && (!wide || aligned(args.out)) && aligned(args.residual);
  return fits ? "" : kUnaligned;
}

std::string why_no_node_terms(const MlpForward& args) {
  const NodeTermsAhead& terms = *args.node_terms;
  const int64_t width = args.inputs.front().weight.width();
  const auto matrices = args.inputs.size() + args.weights.weights.size() + 2;
  if (any_narrow(args.inputs, args.weights))
    return "an input or the output is narrower than the hidden layers";
  if (width == 256) return "width 256, whose weights are streamed";
  if (terms.sender_weight.rows() != width || terms.sender_weight.width() != width)
    return "the edges have another width";
  if (!aligned(terms.sender_weight) || !aligned(terms.receiver_weight)) return kUnaligned;
  if (matrices > kMaxFusedMatrices || args.weights.layers() >= kMaxFusedLayers) {
    return std::to_string(args.weights.layers()) + " layers and " + std::to_string(args.inputs.size()) +
           " inputs leave no place for two more weights";
  }
  // A launch of their own costs less than streamed weights, or one thread block instead of two.
  const int device = args.out.device().index;
  const FusedShape alone = fused_shape(device, args.inputs, args.weights, 0);
  const FusedShape with_terms = fused_shape(device, args.inputs, args.weights, 0, 2);
  if (with_terms.place != alone.place) {
    return "beside them the other weights do not fit into the " + std::to_string(gpu::shared_bytes(device)) +
           " bytes of shared memory of a thread block";
  }
  if (with_terms.blocks_of_multiprocessor == alone.blocks_of_multiprocessor) return {};
  return "with them, " + std::to_string(with_terms.blocks_of_multiprocessor) + " instead of " +
         std::to_string(alone.blocks_of_multiprocessor) + " thread blocks fit into the " +
         std::to_string(gpu::multiprocessor_memory(device).bytes) +
         " bytes of shared memory of a multiprocessor";
}

void fused_mlp_forward(const MlpForward& args, Runtime& runtime, const Stream& stream) {
  if (args.rows.capacity == 0) return;
  if (args.node_terms != nullptr) {
    NodeTermsAhead& terms = *args.node_terms;
    const std::string reason = why_no_node_terms(args);
    if (reason.empty()) {
      const int64_t width = args.out.width();
      const auto terms_of = [&](std::string_view name) {
        return Tensor::empty(runtime, {args.rows.capacity, width}, args.out.dtype(), Tag::workspace, name);
      };
      terms.sender = terms_of("sender terms");
      terms.receiver = terms_of("receiver terms");
      terms.tickets = divided_tickets(most_fused_blocks(stream, width), runtime);
    } else {
      runtime.log_once(LogLevel::info, "node terms have a launch of their own: " + reason);
    }
  }
  if (is_smooth(args.weights)) return launch_mlp_forward<true>(args, stream);
  launch_mlp_forward<false>(args, stream);
}

std::string why_not_fused(const MlpBackward& args) {
  std::string reason = why_unsupported(args.inputs, args.weights, args.saved, layers_warp_words);
  if (!reason.empty()) return reason;
  const int64_t width = args.inputs.front().weight.width();
  const bool wide = args.d_out.width() == width;
  if (!wide && overwrites_d_out(args)) return "an input gradient in the memory of a narrow output's";
  bool fits = fits_int32(args.rows.capacity) && (!wide || aligned(args.d_out));
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    fits = fits && (args.inputs[i].weight.rows() != width || aligned(args.d_inputs[i]));
  }
  return fits ? "" : kUnaligned;
}

void fused_mlp_backward(const MlpBackward& args, Runtime& runtime, const Stream& stream) {
  if (args.rows.capacity == 0) return;
  const int64_t width = args.inputs.front().weight.width();
  const FusedShape shape =
      fused_shape(stream.device().index, args.inputs, args.weights,
                  layers_warp_words(width, args.weights.layers(), is_smooth(args.weights)));
  BackwardWorkspace workspace(args.rows.capacity, width, args.d_out.dtype(), args.weights, args.d_weights,
                              shape.blocks, runtime);
  // Without a norm the last layer's d_z is d_out itself, unless this kernel overwrites d_out.
  const bool d_out_is_d_z = args.weights.norm == Norm::none && !overwrites_d_out(args);
  if (d_out_is_d_z) workspace.d_z.back() = Tensor();
  const auto launch_kernel = is_smooth(args.weights) ? launch_mlp_backward<true> : launch_mlp_backward<false>;
  launch_kernel(args, workspace, shape, stream);
  if (d_out_is_d_z) workspace.d_z.back() = args.d_out;
  std::vector<WeightGradientJob> jobs;
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    if (args.d_first_weights[i].defined())
      jobs.push_back({args.inputs[i].x, workspace.d_z.front(), args.d_first_weights[i], args.rows});
  }
  workspace.add_jobs(jobs, args.d_weights, args.rows);
  weight_gradients(jobs, workspace.column_sums(args.d_weights), runtime, stream);
}

}  // namespace meshgrad::cuda
