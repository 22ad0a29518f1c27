// SPDX-License-Identifier: Apache-2.0
// Activation recomputation: bit-identical gradients, no op recomputed that is not needed, and memory that is
// freed.
#include <doctest/doctest.h>
#include <meshgrad/autograd/recompute/checkpoint.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include "gradcheck.h"

#include "support.h"

#include <algorithm>

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

constexpr uint64_t kSeed = 5;

/// Gradients of c . run(tape) for the inputs and the weights.
std::vector<Tensor> gradients(Runtime& runtime, OpSample sample,
                              const std::function<std::vector<Variable>(Tape&)>& run) {
  sample.run = run;
  std::vector<Tensor> copies;
  for (const Tensor& gradient : gradients_of(runtime, sample, kSeed)) {
    Tensor& copied = copies.emplace_back();
    if (!gradient.defined()) continue;
    copied = Tensor::empty(runtime, gradient.shape(), gradient.dtype(), Tag::data);
    copy(gradient, copied, runtime.stream());
  }
  return copies;
}

bool equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (a[i].defined() && !equal_bits(a[i], b[i])) return false;
  }
  return true;
}

Variable leaf(Runtime& runtime, int64_t rows, int64_t width, uint64_t seed, bool needs_gradient = true) {
  return Variable(to_tensor(runtime, RandomMatrices(seed).normal(rows, width), DType::f64), needs_gradient);
}

/// y = tanh(x) n times.
Variable tanhs(Tape& tape, Variable x, int n) {
  for (int i = 0; i < n; ++i) x = ops::activation(tape, x, Activation::tanh);
  return x;
}

/// Sum of squares of y, walked back.
void backward(Tape& tape, const Variable& y) {
  Runtime& runtime = tape.runtime();
  const Tensor mask = Tensor::empty(runtime, {y.value().rows()}, DType::u8, Tag::data);
  for (uint8_t& m : mask.values<uint8_t>()) m = 1;
  const LossSum loss =
      ops::masked_loss(tape, y, Tensor::zeros(runtime, y.value().shape(), DType::f64, Tag::data), mask);
  const Tensor seed = Tensor::zeros(runtime, {1}, DType::f64, Tag::data);
  *seed.data<double>() = 0.5;
  tape.backward(loss.sum, seed);
}

/// The gradient of sum(run(x)^2) / 2 by x, and what was counted.
struct Outcome {
  std::vector<double> gradient;
  OpCounts counts;
};
Outcome outcome(const std::function<Variable(Tape&, const Variable&)>& run) {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 5, 3, 1);
  Tape tape(runtime);
  backward(tape, run(tape, x));
  return {to_matrix(x.gradient()).v, tape.counts()};
}

int64_t bytes_now(Runtime& runtime, Tag tag) {
  return runtime.allocator().stats().by_tag[static_cast<size_t>(tag)].requested.current;
}

}  // namespace

TEST_CASE("ops in a segment have the gradients that they have outside") {
  Runtime runtime = make_runtime();
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const OpSample& sample : all_op_samples(runtime, 3, dtype)) {
      CAPTURE(name_of(dtype));
      CAPTURE(sample.op);
      CAPTURE(sample.variant);
      const auto once = [&](Tape& tape, const Variables&) { return sample.run(tape); };
      const auto plain = gradients(runtime, sample, [&](Tape& tape) { return once(tape, {}); });
      const bool named = std::ranges::count(SavePolicy::names(), sample.op) == 1;
      for (const SavePolicy keep : {SavePolicy::inputs, SavePolicy::matmuls, SavePolicy::outputs_of("concat"),
                                    SavePolicy::outputs_of("norm") | SavePolicy::outputs_of("edge_update"),
                                    SavePolicy::outputs_of(named ? sample.op : "mlp")}) {
        CHECK(equal(plain, gradients(runtime, sample, [&](Tape& tape) {
                      return checkpoint(tape, "one", once, sample.inputs, keep);
                    })));
        const auto inner = [&](Tape& tape, const Variables& inputs) {
          return checkpoint(tape, "inner", once, inputs, keep);
        };
        CHECK(equal(plain, gradients(runtime, sample, [&](Tape& tape) {
                      return checkpoint(tape, "outer", inner, sample.inputs, keep);
                    })));
      }
    }
  }
}

TEST_CASE("unused outputs of a recomputed op are skipped") {
  Runtime runtime = make_runtime();
  for (const OpSample& sample : all_op_samples(runtime, 3, DType::f32)) {
    const auto both = [&](Tape& tape, const Variables&) {
      std::vector<Variable> outputs = sample.run(tape);
      for (Variable& output : outputs) output = ops::activation(tape, output, Activation::tanh);
      return outputs;
    };
    if (sample.op != "edge_update") continue;
    const size_t count = both(*std::make_unique<Tape>(runtime), {}).size();
    for (size_t read = 0; read < count; ++read) {
      const auto one = [&](Tape& tape, const Variables&) {
        return Variables{ops::activation(tape, sample.run(tape)[read], Activation::tanh)};
      };
      CAPTURE(sample.variant);
      CAPTURE(read);
      const auto plain = gradients(runtime, sample, [&](Tape& tape) { return one(tape, {}); });
      CHECK(equal(plain, gradients(runtime, sample,
                                   [&](Tape& tape) { return checkpoint(tape, "one", one, sample.inputs); })));
    }
    CHECK(equal(gradients(runtime, sample, [&](Tape& tape) { return both(tape, {}); }),
                gradients(runtime, sample,
                          [&](Tape& tape) { return checkpoint(tape, "both", both, sample.inputs); })));
  }
}

TEST_CASE("a segment may read a value of another tape") {
  for (const int ops : {1, 2000}) {  // the number of one of the segment's own, and one far beyond
    CAPTURE(ops);
    Runtime runtime = make_runtime();
    const Variable x = leaf(runtime, 5, 3, 1);
    Tape earlier(runtime);
    const auto many = [ops](Tape& tape, const Variables& in) { return Variables{tanhs(tape, in[0], ops)}; };
    const Variable made = checkpoint(earlier, "many", many, {x})[0];
    Tape tape(runtime);
    const auto reads = [&](Tape& inner, const Variables& in) {
      return Variables{tanhs(inner, ops::add(inner, in[0], made), 1)};
    };
    const Variable z = leaf(runtime, 5, 3, 2);
    backward(tape, checkpoint(tape, "reads", reads, {z})[0]);
    const Variable alone = leaf(runtime, 5, 3, 2);
    backward(tape, tanhs(tape, ops::add(tape, alone, made), 1));
    CHECK(equal_bits(z.gradient(), alone.gradient()));
  }
}

TEST_CASE("ops whose values are not needed are not recomputed") {
  const auto plain = outcome([](Tape& tape, const Variable& x) { return tanhs(tape, x, 12); });
  CHECK(plain.counts.forwards == 13);  // and the loss
  CHECK(plain.counts.recomputed == 0);
  const auto segments = outcome([](Tape& tape, Variable x) {
    for (int i = 0; i < 3; ++i) {
      x = checkpoint(tape, "four",
                     [](Tape& inner, const Variables& in) { return Variables{tanhs(inner, in[0], 4)}; }, {x})
              .front();
    }
    return x;
  });
  CHECK(segments.gradient == plain.gradient);
  CHECK(segments.counts.forwards == 13);
  CHECK(segments.counts.segments == 3);
  CHECK(segments.counts.recomputed == 9);  // of four activations the last one's output is not needed
}

TEST_CASE("a segment saves only its inputs") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 1000, 64, 1);
  const int64_t bytes = x.value().bytes();
  const auto run = [&](bool recompute) {
    Tape tape(runtime);
    Variable y = x;
    for (int i = 0; i < 4; ++i) {
      const auto four = [](Tape& inner, const Variables& in) { return Variables{tanhs(inner, in[0], 4)}; };
      y = recompute ? checkpoint(tape, "four", four, {y})[0] : four(tape, {y})[0];
    }
    CHECK(bytes_now(runtime, Tag::activations) == (recompute ? 4 : 16) * bytes);
    runtime.allocator().reset_peak();
    backward(tape, y);
    const auto again = runtime.allocator().stats().by_tag[static_cast<size_t>(Tag::recompute)].requested;
    CHECK(again.current == 0);
    CHECK(again.peak == (recompute ? 3 * bytes : 0));
    tape.take_gradient(x.slot());
  };
  run(false);
  run(true);
}

TEST_CASE("nested segments give the same gradients") {
  const auto plain = outcome([](Tape& tape, const Variable& x) { return tanhs(tape, x, 12); });
  const auto three = [](Tape& tape, const Variables& in) { return Variables{tanhs(tape, in[0], 3)}; };
  const auto six = [&](Tape& tape, const Variables& in) {
    return checkpoint(tape, "second", three, checkpoint(tape, "first", three, in));
  };
  const auto nested = outcome([&](Tape& tape, const Variable& x) {
    return checkpoint(tape, "b", six, checkpoint(tape, "a", six, {x}))[0];
  });
  CHECK(nested.gradient == plain.gradient);
  CHECK(nested.counts.segments == 2 + 4);
  // Of each outer segment the first inner one runs to give the second its input; the second does not run.
  // Then each inner segment is recomputed except for its last op.
  CHECK(nested.counts.recomputed == 2 * 3 + 4 * 2);
}

TEST_CASE("a segment takes absent inputs and variables from outside") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 4, 3, 1), fixed = leaf(runtime, 4, 3, 2, false),
                 outer = leaf(runtime, 4, 3, 3);
  const Weight weight{to_tensor(runtime, RandomMatrices(4).normal(3, 3), DType::f64),
                      Tensor::zeros(runtime, {3, 3}, DType::f64, Tag::gradients)};
  const Weight frozen{to_tensor(runtime, RandomMatrices(5).normal(3, 3), DType::f64), {}};
  const auto run = [&](bool recompute) {
    fill_zero(weight.gradient, runtime.stream());
    Tape tape(runtime);
    const Variable made = ops::activation(tape, outer, Activation::silu);
    const auto segment = [&](Tape& inner, const Variables& in) {
      CHECK_FALSE(in[2]);
      const Variable a = ops::linear(inner, ops::add(inner, in[0], in[1]), weight, {});
      const Variable b = ops::linear(inner, ops::add(inner, a, made), frozen, {});
      const Variable unused = ops::activation(inner, a, Activation::gelu);
      return Variables{b, in[0], Variable(), b, unused, made};
    };
    const Variables inputs{x, fixed, Variable()};
    const Variables out = recompute ? checkpoint(tape, "all kinds", segment, inputs) : segment(tape, inputs);
    REQUIRE(out.size() == 6);
    CHECK_FALSE(out[2]);
    Variable y = ops::add(tape, out[0], out[1]);
    y = ops::add(tape, ops::activation(tape, out[3], Activation::tanh), y);
    backward(tape, ops::add(tape, y, out[5]));
    CHECK_FALSE(fixed.gradient().defined());
    std::vector<std::vector<double>> all{to_matrix(tape.take_gradient(x.slot())).v,
                                         to_matrix(tape.take_gradient(outer.slot())).v,
                                         to_matrix(weight.gradient).v};
    return all;
  };
  const auto plain = run(false);
  CHECK(magnitude(to_matrix(weight.gradient)) > 0.1);
  CHECK(run(true) == plain);
  CHECK(run(true) == plain);
  CHECK(run(false) == plain);
}

TEST_CASE("an inner segment may read values of the outer one") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 4, 3, 1);
  const auto run = [&](bool recompute) {
    Tape tape(runtime);
    const auto call = [&](Tape& on, const auto& segment, const Variables& in) {
      return recompute ? checkpoint(on, "segment", segment, in) : segment(on, in);
    };
    const auto outer = [&](Tape& on, const Variables& in) {
      const Variable made = tanhs(on, in[0], 2);
      const auto inner = [made](Tape& innermost, const Variables& i) {
        return Variables{ops::add(innermost, tanhs(innermost, i[0], 2), made), i[0]};
      };
      const Variables out = call(on, inner, {ops::activation(on, in[0], Activation::silu)});
      return Variables{ops::add(on, out[0], out[1])};
    };
    backward(tape, call(tape, outer, {tanhs(tape, x, 1)})[0]);
    return to_matrix(tape.take_gradient(x.slot())).v;
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("an inner segment may return one value twice") {
  const auto run = [](bool segments) {
    return outcome([segments](Tape& tape, const Variable& x) {
      const auto twice = [](Tape& inner, const Variables& inputs) {
        const Variable y = tanhs(inner, inputs[0], 1);
        return Variables{y, y};
      };
      const auto sum = [=](Tape& outer, const Variables& inputs) {
        const auto both = segments ? checkpoint(outer, "inner", twice, inputs) : twice(outer, inputs);
        return Variables{ops::add(outer, both[0], both[1])};
      };
      return segments ? checkpoint(tape, "outer", sum, {x})[0] : sum(tape, {x})[0];
    });
  };
  CHECK(run(true).gradient == run(false).gradient);
}

TEST_CASE("a tape that evaluates runs a segment plainly") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 5, 3, 1);
  Tape tape(runtime, Tape::Mode::evaluate);
  int calls = 0;
  const auto segment = [&](Tape& inner, const Variables& in) {
    ++calls;
    CHECK(&inner == &tape);
    return Variables{tanhs(inner, in[0], 4)};
  };
  const Variable y = checkpoint(tape, "segment", segment, {x})[0];
  CHECK(calls == 1);
  CHECK(tape.size() == 0);
  CHECK_FALSE(y.needs_gradient());
  CHECK(bytes_now(runtime, Tag::activations) == y.value().bytes());
}

TEST_CASE("a segment that no gradient reaches is not recomputed") {
  const auto counted = outcome([](Tape& tape, const Variable& x) {
    checkpoint(tape, "unused",
               [](Tape& inner, const Variables& in) { return Variables{tanhs(inner, in[0], 4)}; }, {x});
    return tanhs(tape, x, 1);
  });
  CHECK(counted.counts.segments == 0);
  CHECK(counted.counts.recomputed == 0);
}

TEST_CASE("with matrix multiplications saved, the rest is recomputed") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 6, 4, 1);
  std::vector<Weight> weights;
  for (uint64_t i = 0; i < 3; ++i) {
    weights.push_back({to_tensor(runtime, RandomMatrices(10 + i).normal(4, 4), DType::f64),
                       Tensor::zeros(runtime, {4, 4}, DType::f64, Tag::gradients)});
  }
  const auto layers = [&](Tape& tape, const Variables& in) {
    Variable z = in[0];
    for (const Weight& weight : weights)
      z = ops::activation(tape, ops::linear(tape, z, weight, {}), Activation::silu);
    return Variables{z};
  };
  const auto counts = [&](SavePolicy keep) {
    Tape tape(runtime);
    backward(tape, checkpoint(tape, "layers", layers, {x}, keep)[0]);
    tape.take_gradient(x.slot());
    return tape.counts();
  };
  CHECK(counts(SavePolicy::inputs).recomputed == 5);
  CHECK(counts(SavePolicy::matmuls).recomputed == 2);
}

TEST_CASE("outputs of named ops are saved") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 6, 4, 1);
  const Weight weight{to_tensor(runtime, RandomMatrices(10).normal(4, 4), DType::f64),
                      Tensor::zeros(runtime, {4, 4}, DType::f64, Tag::gradients)};
  const auto layers = [&](Tape& tape, const Variables& in) {
    Variable z = in[0];
    for (int i = 0; i < 3; ++i) z = ops::activation(tape, ops::linear(tape, z, weight, {}), Activation::silu);
    return Variables{z};
  };
  struct Cost {
    int64_t recomputed, kept;
  };
  const auto cost = [&](SavePolicy keep) {
    Tape tape(runtime);
    const Variable y = checkpoint(tape, "layers", layers, {x}, keep)[0];
    const int64_t bytes = bytes_now(runtime, Tag::activations) / x.value().bytes();
    backward(tape, y);
    tape.take_gradient(x.slot());
    return Cost{tape.counts().recomputed, bytes - 1};  // beside the output
  };
  CHECK(cost(SavePolicy::outputs_of("linear")).recomputed == 2);
  CHECK(cost(SavePolicy::outputs_of("linear")).kept == 3);
  // The last activation's output is not read again, so it is not kept beside the others.
  CHECK(cost(SavePolicy::outputs_of("activation")).recomputed == 3);
  CHECK(cost(SavePolicy::outputs_of("activation")).kept == 2);
  const SavePolicy both = SavePolicy::outputs_of("activation") | SavePolicy::outputs_of("linear");
  CHECK(cost(both).recomputed == 0);
  CHECK(cost(both).kept == 5);
  CHECK(cost(SavePolicy::outputs_of("norm")).recomputed == 5);
  CHECK(contains(invalid_argument_text([] { SavePolicy::outputs_of("gemm"); }),
                 "needed an op: linear, activation, norm, add, concat, segment_sum, mlp, edge_update, "
                 "halo_exchange, weighted_sum, graph_pool, add_bias, dropout, mean_of_heads, embedding, "
                 "maximum, edge_attention, head_scores, sample_latent, slice_tokens, "
                 "slice_spread, token_attention, got gemm"));
  CHECK_FALSE(SavePolicy::matmuls == SavePolicy::inputs);
  CHECK_FALSE(SavePolicy::matmuls == SavePolicy::outputs_of("linear"));
}

TEST_CASE("an output of a named op that is not needed is not saved") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 6, 4, 1);
  const auto bytes = [&](SavePolicy keep) {
    Tape tape(runtime);
    const Variable y = checkpoint(
        tape, "sums",
        [](Tape& inner, const Variables& in) {
          return Variables{ops::add(inner, ops::add(inner, in[0], in[0]), in[0])};
        },
        {x}, keep)[0];
    return bytes_now(runtime, Tag::activations);
  };
  CHECK(bytes(SavePolicy::outputs_of("add")) == bytes(SavePolicy::inputs));
}

TEST_CASE("all ops that a model is made of can be named") {
  Runtime runtime = make_runtime();
  const std::vector<std::string> after_models{"masked_loss", "class_loss",  "accumulate_error",
                                              "add_columns", "latent_loss", "pair_loss"};
  for (const OpSample& sample : all_op_samples(runtime, 3, DType::f64)) {
    const std::string op = sample.op == "edge_pool" ? "graph_pool" : sample.op;  // as a tape records it
    const bool named = std::count(SavePolicy::names().begin(), SavePolicy::names().end(), op) == 1;
    CAPTURE(op);
    CHECK(named == (std::count(after_models.begin(), after_models.end(), op) == 0));
  }
}

TEST_CASE("a check compares the third run of nested segments") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 5, 3, 1);
  const Weight weight{to_tensor(runtime, RandomMatrices(4).normal(3, 3), DType::f64), {}};
  int runs = 0, changed_in = 0;
  const auto inner = [&](Tape& tape, const Variables& in) {
    double& element = weight.value.values<double>()[0];
    const double before = element;
    // From the second run on another value, the same in both: only the first tells that it is wrong.
    if (++runs >= changed_in) element = std::nextafter(element, 10.0);
    const Variable y = tanhs(tape, ops::linear(tape, in[0], weight, {}), 2);
    element = before;
    return Variables{y};
  };
  const auto outer = [&](Tape& tape, const Variables& in) {
    return Variables{tanhs(tape, checkpoint(tape, "inner", inner, in)[0], 2)};
  };
  for (const int change : {100, 2, 3}) {
    runs = 0;
    changed_in = change;
    Tape tape(runtime);
    tape.check_recomputation();
    const Variable y = checkpoint(tape, "outer", outer, {x})[0];
    if (change == 100) {
      backward(tape, y);
      CHECK(runs == 3);
      continue;
    }
    CHECK_THROWS_WITH_AS(backward(tape, y), doctest::Contains("segment inner, op 0, linear"), InternalError);
    CHECK(runs == change);
  }
}

TEST_CASE("the check of recomputation names segment and op") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 5, 3, 1);
  const Weight weight{to_tensor(runtime, RandomMatrices(4).normal(3, 3), DType::f64), {}};
  const auto segment = [&](Tape& tape, const Variables& in) {
    return Variables{tanhs(tape, ops::linear(tape, tanhs(tape, in[0], 1), weight, {}), 2)};
  };
  for (const bool change : {false, true}) {
    Tape tape(runtime);
    tape.check_recomputation();
    const Variable y = checkpoint(tape, "processor.3", segment, {x})[0];
    if (!change) {
      backward(tape, y);
      CHECK(tape.counts().recomputed == 3);
      continue;
    }
    double& element = weight.value.values<double>()[0];
    element = std::nextafter(element, 10.0);
    CHECK_THROWS_WITH_AS(backward(tape, y), doctest::Contains("segment processor.3, op 1, linear"),
                         InternalError);
  }
}

TEST_CASE("a segment whose second run differs throws the difference") {
  Runtime runtime = make_runtime();
  const Variable x = leaf(runtime, 5, 3, 1);
  const auto message = [&](const std::function<Variable(Tape&, const Variable&)>& second) {
    Tape tape(runtime);
    int calls = 0;
    const auto segment = [&](Tape& inner, const Variables& in) {
      return Variables{calls++ == 0 ? tanhs(inner, in[0], 2) : second(inner, in[0])};
    };
    const Variable y = checkpoint(tape, "fickle", segment, {x})[0];
    return invalid_argument_text([&] { backward(tape, y); });
  };
  CHECK(contains(message([](Tape& t, const Variable& v) { return tanhs(t, v, 3); }), "needed 2 ops"));
  CHECK(contains(message([](Tape& t, const Variable& v) { return tanhs(t, v, 1); }), "got 1 ops"));
  CHECK(contains(message([](Tape& t, const Variable& v) { return ops::add(t, tanhs(t, v, 1), v); }),
                 "needed activation with 1 outputs in its second run, as in its first, got add"));
}
