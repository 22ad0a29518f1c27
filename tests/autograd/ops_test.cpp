// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include "gradcheck.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "paths.h"
#include "support.h"

using namespace meshgrad;
using namespace meshgrad::test;

TEST_CASE("every op's gradients are the finite differences") {
  Runtime runtime = make_runtime();
  for (const uint64_t seed : {1, 2, 3}) {
    // A fresh list for each seed: gradients accumulate.
    for (const OpSample& sample : all_op_samples(runtime, seed)) {
      const GradientCheck check = check_gradients(runtime, sample, seed);
      CAPTURE(seed);
      CAPTURE(sample.op);
      CAPTURE(sample.variant);
      CAPTURE(check.worst);
      CHECK(check.elements > 0);
      CHECK(check.largest_error < 2e-7);
    }
  }
}

// Both start from the same values. A gradient is held against the largest of its sample: a small one is made
// of those that flowed through the op, and carries their errors.
TEST_CASE("gradients of every op in 16 bits are those in f64, rounded") {
  Runtime runtime = make_runtime();
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const uint64_t seed : {1, 2, 3}) {
      const std::vector<OpSample> exact = all_op_samples(runtime, seed);
      const std::vector<OpSample> stored = all_op_samples(runtime, seed, dtype);
      REQUIRE(exact.size() == stored.size());
      for (size_t i = 0; i < exact.size(); ++i) {
        CAPTURE(name_of(dtype));
        CAPTURE(seed);
        CAPTURE(exact[i].op);
        CAPTURE(exact[i].variant);
        const std::vector<Tensor> expected = gradients_of(runtime, exact[i], seed);
        const std::vector<Tensor> actual = gradients_of(runtime, stored[i], seed);
        double largest = 0.0;
        for (const Tensor& gradient : expected) largest = std::max(largest, magnitude(to_matrix(gradient)));
        for (size_t k = 0; k < expected.size(); ++k) {
          CAPTURE(k);
          const size_t inputs = stored[i].inputs.size();
          CHECK(actual[k].dtype() == (k < inputs ? stored[i].inputs[k].value().dtype() : DType::f32));
          CHECK(difference(actual[k], to_matrix(expected[k]), 20, largest, dtype) == "");
        }
      }
    }
  }
}

TEST_CASE("a mean of heads fits 16 bits where their sum does not") {
  Runtime runtime = make_runtime();
  const std::vector<half> heads(4, half(40000.0f));
  const Tensor x = Tensor::from<half>(runtime, heads, Shape{1, 4}, Tag::data);
  Tape tape(runtime, Tape::Mode::evaluate);
  const Variable mean = ops::mean_of_heads(tape, tape.input(x, x.rows()), 4);
  CHECK(to_matrix(mean.value()).v == std::vector<double>{40000.0});
}

TEST_CASE("every op that ops.h declares is in the list") {
  std::ifstream file(test::source_file("autograd/ops.h"));
  REQUIRE(file.good());
  std::set<std::string> declared;
  for (std::string line; std::getline(file, line);) {
    const size_t open = line.find("(Tape& tape");
    const size_t space = line.find(' ');
    if (open != std::string::npos && space < open) declared.insert(line.substr(space + 1, open - space - 1));
  }
  Runtime runtime = make_runtime();
  std::set<std::string> listed;
  for (const OpSample& sample : all_op_samples(runtime, 1)) listed.insert(sample.op);
  CHECK(declared.size() == 29);
  CHECK(declared == listed);
}

TEST_CASE("hidden activations saved or recomputed give the same bits") {
  Runtime runtime = make_runtime(2);
  const auto run = [&](bool keep) {
    std::vector<double> all;
    for (OpSample& sample : all_op_samples(runtime, 9)) {
      const bool kept = sample.variant.find("kept") != std::string::npos;
      if (sample.op != "mlp" || !kept) continue;
      Tape tape(runtime);
      MlpParameters p;
      p.first = {sample.weights[0], sample.weights[1]};
      p.first_bias = sample.weights[2];
      p.weights = {sample.weights[3], sample.weights[4]};
      p.biases = {sample.weights[5], sample.weights[6]};
      p.activation = Activation::tanh;
      const Variable y = ops::mlp(tape, sample.inputs, p, sample.inputs[0], keep);
      const Tensor target = Tensor::zeros(runtime, y.value().shape(), DType::f64, Tag::data);
      const Tensor mask = Tensor::empty(runtime, {y.value().rows()}, DType::u8, Tag::data);
      for (uint8_t& m : mask.values<uint8_t>()) m = 1;
      const LossSum loss = ops::masked_loss(tape, y, target, mask);
      const Tensor seed = Tensor::zeros(runtime, {1}, DType::f64, Tag::data);
      *seed.data<double>() = 0.5;
      tape.backward(loss.sum, seed);
      for (const Weight& weight : sample.weights) {
        for (const double g : weight.gradient.values<double>()) all.push_back(g);
      }
      for (const Variable& input : sample.inputs) {
        for (const double g : input.gradient().values<double>()) all.push_back(g);
      }
    }
    return all;
  };
  const std::vector<double> kept = run(true);
  const std::vector<double> recomputed = run(false);
  CHECK(kept.size() > 100);
  CHECK(kept == recomputed);
}
