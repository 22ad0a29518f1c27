// SPDX-License-Identifier: Apache-2.0
// One row per kernel family and direction, at the sizes of one block of the standard step.
#include "benchmark.h"

#include <meshgrad/kernels/elementwise.h>
#include <meshgrad/kernels/linear.h>
#include <meshgrad/kernels/optimizer.h>
#include <meshgrad/kernels/reduction.h>
#include <meshgrad/kernels/segment_sum.h>

#include <fmt/format.h>

namespace meshgrad::bench {
namespace {

constexpr int64_t kRows = 10752;
constexpr int64_t kNodes = 1849;
constexpr int64_t kWidth = 128;

Tensor ones(Runtime& runtime, const Shape& shape) {
  Tensor tensor = Tensor::empty(runtime, shape, DType::f32, Tag::data, "benchmark input");
  for (float& value : tensor.values<float>()) value = 1.0f;
  return tensor;
}

std::string sizes() { return fmt::format("{} rows of {}", kRows, kWidth); }

Workload linear_forward_work(Runtime& runtime) {
  const LinearForward args{.rows = kRows,
                           .x = ones(runtime, {kRows, kWidth}),
                           .weight = ones(runtime, {kWidth, kWidth}),
                           .bias = ones(runtime, {kWidth}),
                           .y = ones(runtime, {kRows, kWidth})};
  return {[&runtime, args] { linear_forward(args, runtime, runtime.stream()); },
          2.0 * kRows * kWidth * kWidth, 4.0 * 2.0 * kRows * kWidth, sizes()};
}

Workload linear_backward_work(Runtime& runtime) {
  const LinearBackward args{.rows = kRows,
                            .d_y = ones(runtime, {kRows, kWidth}),
                            .x = ones(runtime, {kRows, kWidth}),
                            .weight = ones(runtime, {kWidth, kWidth}),
                            .d_x = ones(runtime, {kRows, kWidth}),
                            .d_weight = ones(runtime, {kWidth, kWidth}),
                            .d_bias = ones(runtime, {kWidth})};
  return {[&runtime, args] { linear_backward(args, runtime, runtime.stream()); },
          4.0 * kRows * kWidth * kWidth, 4.0 * 3.0 * kRows * kWidth, sizes()};
}

Workload segment_sum_work(Runtime& runtime) {
  std::vector<int32_t> offsets;
  for (int64_t i = 0; i <= kNodes; ++i) offsets.push_back(static_cast<int32_t>(kRows * i / kNodes));
  const SegmentSum args{.segments = kNodes,
                        .offsets = Tensor::from<int32_t>(runtime, offsets, {kNodes + 1}, Tag::data),
                        .order = {},
                        .x = ones(runtime, {kRows, kWidth}),
                        .out = ones(runtime, {kNodes, kWidth})};
  return {[&runtime, args] { segment_sum(args, runtime.stream()); }, 1.0 * kRows * kWidth,
          4.0 * (kRows + kNodes) * kWidth, sizes()};
}

Workload gather_work(Runtime& runtime) {
  std::vector<int32_t> index;
  for (int64_t i = 0; i < kRows; ++i) index.push_back(static_cast<int32_t>(i * 7 % kNodes));
  const Gather args{.rows = kRows,
                    .index = Tensor::from<int32_t>(runtime, index, {kRows}, Tag::data),
                    .x = ones(runtime, {kNodes, kWidth}),
                    .out = ones(runtime, {kRows, kWidth})};
  return {[&runtime, args] { gather(args, runtime.stream()); }, 0.0, 4.0 * 2.0 * kRows * kWidth, sizes()};
}

Workload activation_work(Runtime& runtime) {
  const ActivationForward args{.activation = Activation::relu,
                               .x = ones(runtime, {kRows, kWidth}),
                               .y = ones(runtime, {kRows, kWidth})};
  return {[&runtime, args] { activation_forward(args, runtime.stream()); }, 0.0, 4.0 * 2.0 * kRows * kWidth,
          sizes()};
}

Workload norm_work(Runtime& runtime) {
  const NormForward args{.norm = Norm::layer,
                         .rows = kRows,
                         .x = ones(runtime, {kRows, kWidth}),
                         .gain = ones(runtime, {kWidth}),
                         .bias = ones(runtime, {kWidth}),
                         .y = ones(runtime, {kRows, kWidth})};
  return {[&runtime, args] { norm_forward(args, runtime.stream()); }, 8.0 * kRows * kWidth,
          4.0 * 2.0 * kRows * kWidth, sizes()};
}

Workload sum_of_squares_work(Runtime& runtime) {
  const SumOfSquares args{.x = ones(runtime, {kRows * kWidth}),
                          .sum = Tensor::zeros(runtime, {1}, DType::f64, Tag::data),
                          .non_finite = {}};
  return {[&runtime, args] { sum_of_squares(args, runtime.stream()); }, 2.0 * kRows * kWidth,
          4.0 * kRows * kWidth, sizes()};
}

Workload adam_work(Runtime& runtime) {
  const Shape flat{kRows * kWidth};
  const OptimizerStep args{.parameters = ones(runtime, flat),
                           .gradients = ones(runtime, flat),
                           .first_moment = ones(runtime, flat),
                           .second_moment = ones(runtime, flat),
                           .learning_rate = 1e-9,
                           .squared_norm = {},
                           .non_finite = {}};
  return {[&runtime, args] { optimizer_step(args, runtime.stream()); }, 0.0, 4.0 * 7.0 * kRows * kWidth,
          sizes()};
}

}  // namespace

std::vector<Benchmark> family_benchmarks() {
  return {{"kernel/linear/forward/f32", linear_forward_work},
          {"kernel/linear/backward/f32", linear_backward_work},
          {"kernel/segment_sum/f32", segment_sum_work},
          {"kernel/gather/f32", gather_work},
          {"kernel/activation/relu/f32", activation_work},
          {"kernel/norm/layer/f32", norm_work},
          {"kernel/sum_of_squares/f32", sum_of_squares_work},
          {"kernel/adam/f32", adam_work}};
}

}  // namespace meshgrad::bench
