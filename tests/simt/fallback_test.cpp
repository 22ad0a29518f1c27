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
  // Width 64 keeps its weights in shared memory: six of 64 x 64 in 16 bits, 8 KiB each, and biases.
  CHECK(with_bytes(50'688, {3, 64, 4}).empty());  // exactly what a device has is enough
  CHECK(with_bytes(50'687, {3, 64, 4}) ==
        Messages{expected("50688 bytes of shared memory per thread block, and the device has 50687")});
  // At width 128 weights are streamed where six of 32 KiB do not fit. An H100 has 227 KiB, an A100 163, a GPU
  // of compute capability 8.6, 8.9 or 12.0 has 99.
  const Case backward{.inputs = 3, .width = 128, .layers = 4, .backward = true};
  for (const int kibibytes : {227, 163, 99}) {
    CHECK(with_bytes(1024 * kibibytes, {3, 128, 4}).empty());
    CHECK(with_bytes(1024 * kibibytes, backward).empty());
  }
  CHECK(with_bytes(50'176, backward).empty());
  CHECK(with_bytes(50'175, backward) ==
        Messages{"MLP backward runs op by op, not as a fused kernel: 50176 bytes of shared memory per thread "
                 "block, and the device has 50175"});
}

TEST_CASE("before compute capability 8.0 everything runs op by op") {
  for (const bool backward : {false, true}) {
    simt::set_compute_capability(75);
    const Messages before = messages_of({.inputs = 1, .width = 128, .layers = 3, .backward = backward});
    simt::set_compute_capability(80);
    const Messages from = messages_of({.inputs = 1, .width = 128, .layers = 3, .backward = backward});
    simt::set_compute_capability(0);
    CHECK(before == Messages{std::string(backward ? "MLP backward" : "MLP forward") +
                             " runs op by op, not as a fused kernel: compute capability 7.5, less than 8.0"});
    CHECK(from.empty());
  }
}

TEST_CASE("edge updates of three layers stream what does not fit") {
  /// Messages and, if there are none, the shared memory of the kernels of the edges, static one included.
  const auto outcome_with = [](int bytes) {
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
    const bool fell = !messages.empty();
    for (const simt::LaunchReport& report : simt::take_reports()) {
      if (!fell && (report.name == "edge_forward" || report.name == "edge_backward"))
        messages.push_back(report.name + " " + std::to_string(report.shared_bytes));
    }
    return messages;
  };
  for (const int bytes : {163 * 1024, 163'328})
    CHECK(outcome_with(bytes) == Messages{"edge_forward 134656", "edge_backward 163328"});
  CHECK(outcome_with(163'327) == Messages{"edge_forward 134656", "edge_backward 81408"});
  for (const int bytes : {99 * 1024, 81'408})
    CHECK(outcome_with(bytes) == Messages{"edge_forward 52736", "edge_backward 81408"});
  const Messages less = outcome_with(81'407);
  REQUIRE(less.size() == 1);
  CHECK(
      test::contains(less.front(), "edge update backward runs op by op, not as a fused kernel: 81408 bytes"));
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
