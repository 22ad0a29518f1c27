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
      why_unsupported(args.inputs, args.weights, args.saved, [](int64_t, bool) { return 0; });
  if (!reason.empty()) return reason;
  const bool wide = args.out.width() == args.inputs.front().weight.width();
  if (!wide && args.residual.defined()) return "a residual of a narrow output";
  const bool fits = fits_int32(args.rows.capacity) && (!wide || aligned(args.out)) && aligned(args.residual);
  return fits ? "" : kUnaligned;
}

void fused_mlp_forward(const MlpForward& args, Runtime&, const Stream& stream) {
  if (args.rows.capacity == 0) return;
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
  const int64_t blocks = fused_blocks(stream, width);
  BackwardWorkspace workspace(args.rows.capacity, width, args.d_out.dtype(), args.weights, args.d_weights,
                              blocks, runtime);
  // Without a norm the last layer's d_z is d_out itself, unless this kernel overwrites d_out.
  const bool d_out_is_d_z = args.weights.norm == Norm::none && !overwrites_d_out(args);
  if (d_out_is_d_z) workspace.d_z.back() = Tensor();
  const auto launch_kernel = is_smooth(args.weights) ? launch_mlp_backward<true> : launch_mlp_backward<false>;
  launch_kernel(args, workspace, stream);
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
