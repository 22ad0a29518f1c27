// SPDX-License-Identifier: Apache-2.0
// What the fused kernels do not support runs op by op, and the Runtime's log says so once, with the reason.
#include <doctest/doctest.h>
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/kernels/mlp.h>

#include "device.h"
#include "edge_case.h"
#include "support.h"

namespace meshgrad {
namespace {

using Messages = std::vector<std::string>;

struct Case {
  int64_t inputs, width;
  int layers;
  Activation activation = Activation::relu;
  DType dtype = DType::f16;
  bool backward = false;
  int64_t in = 0, out = 0;  ///< widths of inputs and output; 0: the hidden layers'
};

/// The messages, but those on GEMMs, of three forward or backward passes, and of three that are captured.
Messages messages_of(const Case& what) {
  Messages messages;
  RuntimeOptions options;
  options.device = {DeviceKind::cuda, 0};
  options.log = [&](LogLevel, std::string_view text) {
    if (!test::contains(text, "cuBLASLt")) messages.emplace_back(text);  // it has nothing for some widths
  };
  Runtime runtime(options);
  const auto zeros = [&](const Shape& shape, DType dtype) {
    const Tensor tensor = Tensor::empty(runtime, shape, dtype, Tag::data);
    fill_zero(tensor, runtime.stream());
    return tensor;
  };
  constexpr int64_t kRows = 8;
  const int64_t in = what.in > 0 ? what.in : what.width, out = what.out > 0 ? what.out : what.width;
  MlpForward args;
  args.rows.capacity = kRows;
  for (int64_t i = 0; i < what.inputs; ++i)
    args.inputs.push_back({zeros({kRows, in}, what.dtype), zeros({in, what.width}, what.dtype)});
  args.weights.activation = what.activation;
  args.weights.first_bias = zeros({what.width}, DType::f32);
  for (int layer = 1; layer < what.layers; ++layer) {
    const int64_t width = layer + 1 < what.layers ? what.width : out;
    args.weights.weights.push_back(zeros({what.width, width}, what.dtype));
    args.weights.biases.push_back(zeros({width}, DType::f32));
  }
  args.out = zeros({kRows, out}, what.dtype);
  MlpBackward back{.rows = args.rows,
                   .inputs = args.inputs,
                   .weights = args.weights,
                   .saved = {},
                   .d_out = args.out,
                   .d_weights = {}};
  for (int64_t i = 0; i < what.inputs; ++i) {
    back.d_inputs.push_back(zeros({kRows, in}, what.dtype));
    back.accumulate.push_back(false);
    back.d_first_weights.push_back({});
  }
  for (int layer = 1; layer < what.layers; ++layer) {
    back.d_weights.weights.push_back({});
    back.d_weights.biases.push_back({});
  }
  const auto work = [&](Runtime& own) {
    if (what.backward) return kernels::mlp_backward(back, own, own.stream());
    kernels::mlp_forward(args, own, own.stream());
  };
  CapturedWork captured(runtime, "mlp", work);
  for (int i = 0; i < 3; ++i) {
    work(runtime);
    captured.run();
  }
  runtime.stream().synchronize();
  return messages;
}

std::string expected(const std::string& reason) {
  return "MLP forward runs op by op, not as a fused kernel: " + reason;
}

TEST_CASE("too little shared memory is a reason with bytes") {
  const auto with_bytes = [](int bytes, const Case& what) {
    simt::set_shared_bytes(bytes);
    const Messages messages = messages_of(what);
    simt::set_shared_bytes(0);
    return messages;
  };
  // Of 128 x 128 in 16 bits, 32 KiB each. An A100 has 163 KiB for a block: five matrices fit, six do not.
  constexpr int kA100 = 163 * 1024;
  CHECK(with_bytes(kA100, {3, 128, 3}).empty());
  const Messages forward = with_bytes(kA100, {3, 128, 4});
  REQUIRE(forward.size() == 1);
  CHECK(test::contains(forward.front(), "MLP forward runs op by op, not as a fused kernel: "));
  CHECK(
      test::contains(forward.front(), " bytes of shared memory per thread block, and the device has 166912"));
  // Backward needs more for each warp: five matrices fit an A100 only in forward. An H100 takes all six.
  CHECK(messages_of({3, 128, 4}).empty());
  CHECK(messages_of({.inputs = 3, .width = 128, .layers = 4, .backward = true}).empty());
  CHECK(with_bytes(kA100, {.inputs = 2, .width = 128, .layers = 3, .backward = true}).empty());
  const Messages five = with_bytes(kA100, {.inputs = 3, .width = 128, .layers = 3, .backward = true});
  REQUIRE(five.size() == 1);
  CHECK(test::contains(five.front(), "MLP backward runs op by op, not as a fused kernel: "));
  CHECK(test::contains(five.front(), "and the device has 166912"));
  // Exactly what a device has is enough.
  CHECK(with_bytes(99 * 1024, {.inputs = 1, .width = 128, .layers = 3, .backward = true, .in = 11}).empty());
}

TEST_CASE("edge updates of three layers fit an A100 at width 128") {
  const auto messages_with = [](int bytes) {
    simt::set_shared_bytes(bytes);
    Messages messages;
    RuntimeOptions options;
    options.device = {DeviceKind::cuda, 0};
    options.log = [&](LogLevel, std::string_view text) { messages.emplace_back(text); };
    Runtime runtime(options);
    test::RandomMatrices random(17);
    const test::EdgeShape shape{128, {{128}, 128, 3, 128, Activation::relu, Norm::layer}, true, false};
    const test::EdgeCase edge(runtime, random, shape, test::random_edges(random, 4, 9), DType::f16);
    EdgeUpdateForward done = edge.forward(runtime);
    done.saved = {};
    kernels::edge_update_forward(done, runtime, runtime.stream());
    const test::EdgeGradients gradients(runtime, random, edge);
    kernels::edge_update_backward(edge.backward(runtime, done, gradients), runtime, runtime.stream());
    runtime.stream().synchronize();
    simt::set_shared_bytes(0);
    return messages;
  };
  CHECK(messages_with(163 * 1024) == Messages{});
  const Messages less = messages_with(163'327);
  REQUIRE(less.size() == 1);
  CHECK(test::contains(less.front(),
                       "edge update backward runs op by op, not as a fused kernel: 163328 bytes"));
}

TEST_CASE("unsupported fused calls are logged once") {
  for (const Activation activation : {Activation::relu, Activation::silu, Activation::gelu, Activation::tanh})
    CHECK(messages_of({1, 128, 3, activation}).empty());
  CHECK(messages_of({.inputs = 1, .width = 96, .layers = 3, .dtype = DType::f32}).empty());
  CHECK(messages_of({1, 96, 3}) == Messages{expected("hidden width 96, not 64, 128 or 256")});
  CHECK(messages_of({1, 128, 3, Activation::none}) == Messages{expected("no activation")});
  CHECK(messages_of({1, 128, 3, Activation::elu}) == Messages{expected("activation elu")});
  CHECK(messages_of({1, 128, 3, Activation::leaky_relu}) == Messages{expected("activation leaky_relu")});
  CHECK(messages_of({1, 64, 5}) == Messages{expected("5 layers, not 2 to 4")});
  // The least that is supported: two layers, one feature, one output.
  for (const bool backward : {false, true})
    CHECK(messages_of({.inputs = 1, .width = 64, .layers = 2, .backward = backward, .in = 1, .out = 1})
              .empty());
  CHECK(messages_of({.inputs = 1, .width = 64, .layers = 2, .in = 33}) ==
        Messages{expected("an input of width 33, neither the hidden width nor at most 32")});
  CHECK(messages_of({.inputs = 1, .width = 64, .layers = 2, .out = 33}) ==
        Messages{expected("an output of width 33, neither the hidden width nor at most 32")});
}

}  // namespace
}  // namespace meshgrad
