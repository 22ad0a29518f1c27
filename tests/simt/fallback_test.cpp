// SPDX-License-Identifier: Apache-2.0
// What the fused kernels do not support runs op by op, and the Runtime's log says so once, with the reason.
#include <doctest/doctest.h>
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/kernels/mlp.h>

#include "support.h"

namespace meshgrad {
namespace {

using Messages = std::vector<std::string>;

struct Case {
  int64_t inputs, width;
  int layers;
  Activation activation = Activation::relu;
  DType dtype = DType::f16;
};

/// The messages of three forward passes, and of three that are captured.
Messages messages_of(const Case& what) {
  Messages messages;
  RuntimeOptions options;
  options.device = {DeviceKind::cuda, 0};
  options.log = [&](LogLevel, std::string_view text) { messages.emplace_back(text); };
  Runtime runtime(options);
  const auto zeros = [&](const Shape& shape, DType dtype) {
    const Tensor tensor = Tensor::empty(runtime, shape, dtype, Tag::data);
    fill_zero(tensor, runtime.stream());
    return tensor;
  };
  constexpr int64_t kRows = 8;
  MlpForward args;
  args.rows.capacity = kRows;
  for (int64_t i = 0; i < what.inputs; ++i)
    args.inputs.push_back(
        {zeros({kRows, what.width}, what.dtype), zeros({what.width, what.width}, what.dtype)});
  args.weights.activation = what.activation;
  args.weights.first_bias = zeros({what.width}, DType::f32);
  for (int layer = 1; layer < what.layers; ++layer) {
    args.weights.weights.push_back(zeros({what.width, what.width}, what.dtype));
    args.weights.biases.push_back(zeros({what.width}, DType::f32));
  }
  args.out = zeros({kRows, what.width}, what.dtype);
  CapturedWork captured(runtime, "mlp", [&](Runtime& own) { kernels::mlp_forward(args, own, own.stream()); });
  for (int i = 0; i < 3; ++i) {
    kernels::mlp_forward(args, runtime, runtime.stream());
    captured.run();
  }
  runtime.stream().synchronize();
  return messages;
}

std::string expected(const std::string& reason) {
  return "MLP forward runs op by op, not as a fused kernel: " + reason;
}

TEST_CASE("calls that no fused kernel supports are logged once, with the reason") {
  CHECK(messages_of({1, 128, 3}).empty());
  CHECK(messages_of({.inputs = 1, .width = 96, .layers = 3, .dtype = DType::f32}).empty());
  CHECK(messages_of({1, 96, 3}) == Messages{expected("hidden width 96, not 64, 128 or 256")});
  CHECK(messages_of({1, 128, 3, Activation::silu}) == Messages{expected("an activation other than relu")});
  CHECK(messages_of({1, 64, 5}) == Messages{expected("5 layers, not 2 to 4")});
}

}  // namespace
}  // namespace meshgrad
