// SPDX-License-Identifier: Apache-2.0
// A linear map is an MLP of one layer without activation and norm. `accumulate` is a residual that aliases
// the output: out = y + x W + b.
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cpu {
namespace {

void forward(const LinearForward& args, Runtime& runtime, const Stream& stream) {
  MlpForward mlp{.rows = args.rows,
                 .inputs = {{args.x, args.weight}},
                 .weights = {},
                 .residual = {},
                 .out = args.y,
                 .saved = {}};
  mlp.weights.first_bias = args.bias;
  if (args.accumulate) mlp.residual = args.y;
  mlp_kernels.forward(mlp, runtime, stream);
}

void backward(const LinearBackward& args, Runtime& runtime, const Stream& stream) {
  MlpBackward mlp{.rows = args.rows,
                  .inputs = {{args.x, args.weight}},
                  .weights = {},
                  .saved = {},
                  .d_out = args.d_y,
                  .d_inputs = {args.d_x},
                  .accumulate = {args.accumulate_d_x},
                  .d_first_weights = {args.d_weight},
                  .d_weights = {}};
  mlp.d_weights.first_bias = args.d_bias;
  mlp_kernels.backward(mlp, runtime, stream);
}

}  // namespace

const LinearKernels linear_kernels{.forward = forward, .backward = backward};

}  // namespace meshgrad::cpu
