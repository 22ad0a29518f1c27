// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/memory/caching_allocator.h>

#include "support.h"

#include <algorithm>

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

Variable leaf(Runtime& runtime, double value) {
  Tensor tensor = Tensor::zeros(runtime, {2, 2}, DType::f64, Tag::data);
  for (double& x : tensor.values<double>()) x = value;
  return Variable(tensor, true);
}

/// Sum of squares of all elements, walked back with this seed.
void backward(Tape& tape, const Variable& y, double seed_value) {
  Runtime& runtime = tape.runtime();
  const Tensor target = Tensor::zeros(runtime, y.value().shape(), DType::f64, Tag::data);
  const Tensor mask = Tensor::empty(runtime, {y.value().rows()}, DType::u8, Tag::data);
  for (uint8_t& m : mask.values<uint8_t>()) m = 1;
  const LossSum loss = ops::masked_loss(tape, y, target, mask);
  const Tensor seed = Tensor::zeros(runtime, {1}, DType::f64, Tag::data);
  *seed.data<double>() = seed_value;
  tape.backward(loss.sum, seed);
}

}  // namespace

TEST_CASE("a variable used several times gets the sum of its gradients") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 3.0);
  Tape tape(runtime);
  const Variable y = ops::add(tape, ops::add(tape, x, x), x);  // 3 x
  backward(tape, y, 1.0);                                      // d/dx of 9 x^2
  for (const double g : x.gradient().values<double>()) CHECK(g == doctest::Approx(54.0));
}

TEST_CASE("gradients of leaves accumulate over tapes, as in a window") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 1.0);
  for (int i = 0; i < 3; ++i) {
    Tape tape(runtime);
    backward(tape, ops::add(tape, x, x), 0.25);
  }
  for (const double g : x.gradient().values<double>()) CHECK(g == doctest::Approx(6.0));
}

TEST_CASE("a tape entry frees what it saved when it is done") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 1.0);
  const int64_t before =
      runtime.allocator().stats().by_tag[static_cast<size_t>(Tag::activations)].allocated.current;
  {
    Tape tape(runtime);
    Variable y = x;
    for (int i = 0; i < 5; ++i) y = ops::activation(tape, y, Activation::tanh);
    CHECK(tape.size() == 5);
    backward(tape, y, 1.0);
    CHECK(tape.size() == 0);
  }
  const int64_t gradient = x.gradient().bytes();
  const int64_t after =
      runtime.allocator().stats().by_tag[static_cast<size_t>(Tag::activations)].allocated.current;
  // What is left: the gradient of the leaf, in a block of its own (or adopted from the workspace).
  CHECK(after - before <= std::max<int64_t>(gradient, 64));
}

TEST_CASE("a tape entry saves only what its backward reads") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 1.0);
  const auto kept = [&](const std::function<void(Tape&, const Variable&)>& op) {
    Tape tape(runtime);
    op(tape, ops::add(tape, x, x));
    const auto& tags = runtime.allocator().stats().by_tag;
    return tags[static_cast<size_t>(Tag::activations)].requested.current / x.value().bytes();
  };
  CHECK(kept([](Tape& t, const Variable& y) { ops::add(t, y, y); }) == 0);
  CHECK(kept([](Tape& t, const Variable& y) { ops::concat(t, {{y}, {y}}); }) == 0);
  CHECK(kept([](Tape& t, const Variable& y) { ops::activation(t, y, Activation::tanh); }) == 1);
  // relu: its output, which the next one is its input to.
  CHECK(kept([](Tape& t, const Variable& y) { ops::activation(t, y, Activation::relu); }) == 1);
  CHECK(kept([](Tape& t, const Variable& y) {
          ops::activation(t, ops::activation(t, y, Activation::relu), Activation::tanh);
        }) == 1);
  CHECK(kept([](Tape& t, const Variable& y) {
          ops::activation(t, ops::activation(t, y, Activation::tanh), Activation::relu);
        }) == 2);
}

TEST_CASE("a tape that evaluates saves nothing, and backward throws") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 1.0);
  Tape tape(runtime, Tape::Mode::evaluate);
  const Variable y = ops::activation(tape, x, Activation::relu);
  CHECK(tape.size() == 0);
  CHECK_FALSE(y.needs_gradient());
  CHECK_THROWS_AS(backward(tape, y, 1.0), InvalidArgument);
}

TEST_CASE("a seed of another dtype is an error that says what is needed") {
  Runtime runtime = make_runtime();
  Tape tape(runtime);
  const Variable x = leaf(runtime, 1.0);
  const Tensor mask = Tensor::zeros(runtime, {2}, DType::u8, Tag::data);
  const LossSum loss = ops::masked_loss(tape, x, Tensor::zeros(runtime, {2, 2}, DType::f64, Tag::data), mask);
  CHECK_THROWS_WITH_AS(tape.backward(loss.sum, Tensor::zeros(runtime, {1}, DType::f32, Tag::data)),
                       doctest::Contains("needed a seed like the sum: f64[1], got f32[1]"), InvalidArgument);
}
