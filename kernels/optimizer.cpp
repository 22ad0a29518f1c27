// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/optimizer.h>

namespace meshgrad {

void optimizer_step(const OptimizerStep& args, const Stream& stream) {
  constexpr std::string_view kOp = "optimizer.step";
  check_defined(kOp, "parameters", args.parameters);
  const DType dtype = args.parameters.dtype();
  const Shape flat{args.parameters.elements()};
  check_tensor(kOp, "parameters", args.parameters, dtype, flat);
  check_tensor(kOp, "gradients", args.gradients, dtype, flat);
  const bool adam = args.kind != OptimizerKind::sgd;
  if (adam || args.momentum != 0.0) check_tensor(kOp, "first_moment", args.first_moment, dtype, flat);
  if (adam) check_tensor(kOp, "second_moment", args.second_moment, dtype, flat);
  if (args.clip_norm > 0.0) check_tensor(kOp, "squared_norm", args.squared_norm, DType::f64, {1});
  check_optional(kOp, "non_finite", args.non_finite, DType::i32, {1});
  if (args.step < 1) throw invalid_argument(kOp, "a step of 1 or more", std::to_string(args.step));
  pick_table(args.parameters.device(), cpu::optimizer_kernels, &GpuTables::optimizer).step(args, stream);
}

}  // namespace meshgrad
