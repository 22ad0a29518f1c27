// SPDX-License-Identifier: Apache-2.0
// The reference implementations themselves: cases of three nodes worked out by hand, and every backward
// function against central differences of its forward function.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "reference/attention.h"
#include "reference/message_passing.h"
#include "reference/training.h"
#include "support.h"

namespace meshgrad::test {
namespace {

using reference::Edges;
using reference::EdgeUpdate;
using reference::Mlp;

constexpr Activation kEveryActivation[] = {Activation::none,      Activation::relu, Activation::silu,
                                           Activation::gelu,      Activation::tanh, Activation::elu,
                                           Activation::leaky_relu};
constexpr Norm kNorms[] = {Norm::none, Norm::layer, Norm::rms};

/// Edges 1 -> 0, 2 -> 0 and 0 -> 1; nothing arrives at node 2.
const Edges kThreeNodes{3, 3, {1, 2, 0}, {0, 0, 1}};

/// Hidden width 2, edge width 1, relu, no norm.
EdgeUpdate hand_update() {
  EdgeUpdate update;
  update.mlp.first_weights = {Matrix(1, 2, {1, -1})};
  update.mlp.first_bias = Matrix(1, 2, {0, 1});
  update.mlp.weights = {Matrix(2, 1, {2, 3})};
  update.mlp.biases = {Matrix(1, 1, std::vector<double>{1})};
  return update;
}
const Matrix kSenderTerms(3, 2, {1, 0, 0, 1, 2, -1});
const Matrix kReceiverTerms(3, 2, {0, 0, 1, 1, 5, 5});
const Matrix kEdgeFeatures(3, 1, {1, 2, -1});

double dot(const Matrix& a, const Matrix& b) {
  REQUIRE(a.v.size() == b.v.size());
  double total = 0.0;
  for (size_t i = 0; i < a.v.size(); ++i) total += a.v[i] * b.v[i];
  return total;
}

/// Compares `gradient` with central differences of `objective`, moving one element of `at` at a time. The
/// step of 1e-5 leaves errors near 1e-10 of curvature and 1e-11 of cancellation, each times values of order 1
/// to 10.
void check_gradient(const std::string& what, Matrix& at, const Matrix& gradient,
                    const std::function<double()>& objective) {
  REQUIRE_MESSAGE(at.v.size() == gradient.v.size(), what);
  for (size_t i = 0; i < at.v.size(); ++i) {
    const double value = at.v[i];
    constexpr double kStep = 1e-5;
    at.v[i] = value + kStep;
    const double above = objective();
    at.v[i] = value - kStep;
    const double below = objective();
    at.v[i] = value;
    const double slope = (above - below) / (2.0 * kStep);
    CHECK_MESSAGE(std::abs(slope - gradient.v[i]) < 1e-7 * (1.0 + std::abs(slope)), what, " element ", i,
                  ": ", gradient.v[i], " instead of ", slope);
  }
}

Mlp random_mlp(RandomMatrices& random, const std::vector<int64_t>& inputs, int64_t hidden, int64_t layers,
               int64_t out, Activation activation, Norm norm) {
  Mlp mlp;
  const int64_t first = layers == 1 ? out : hidden;
  for (const int64_t width : inputs) mlp.first_weights.push_back(random.normal(width, first, 0.5));
  mlp.first_bias = random.normal(1, first);
  for (int64_t layer = 1; layer < layers; ++layer) {
    const int64_t next = layer == layers - 1 ? out : hidden;
    mlp.weights.push_back(random.normal(hidden, next, 0.5));
    mlp.biases.push_back(random.normal(1, next));
  }
  mlp.activation = activation;
  mlp.norm = norm;
  mlp.epsilon = 1e-3;
  if (norm != Norm::none) mlp.gain = random.normal(1, out);
  if (norm == Norm::layer) mlp.norm_bias = random.normal(1, out);
  return mlp;
}

void check_mlp_parameters(Mlp& mlp, const reference::MlpGradients& g,
                          const std::function<double()>& objective) {
  for (size_t i = 0; i < mlp.first_weights.size(); ++i) {
    check_gradient("first weight", mlp.first_weights[i], g.d_first_weights[i], objective);
  }
  check_gradient("first bias", mlp.first_bias, g.d_first_bias, objective);
  for (size_t i = 0; i < mlp.weights.size(); ++i) {
    check_gradient("weight", mlp.weights[i], g.d_weights[i], objective);
    check_gradient("bias", mlp.biases[i], g.d_biases[i], objective);
  }
  if (mlp.gain.given()) check_gradient("gain", mlp.gain, g.d_gain, objective);
  if (mlp.norm_bias.given()) check_gradient("norm bias", mlp.norm_bias, g.d_norm_bias, objective);
}

TEST_CASE("reference: an edge update of three nodes, by hand") {
  const auto result =
      reference::edge_update(hand_update(), kThreeNodes, kSenderTerms, kReceiverTerms, kEdgeFeatures);
  CHECK(result.mlp.pre_activations[0].v == std::vector<double>{1, 1, 4, -2, 1, 3});
  CHECK(result.mlp.out.v == std::vector<double>{6, 9, 12});
  CHECK(result.edges_out.v == std::vector<double>{7, 11, 11});
  CHECK(result.aggregate.v == std::vector<double>{15, 12, 0});

  EdgeUpdate after = hand_update();
  after.aggregate_after_residual = true;
  const auto summed = reference::edge_update(after, kThreeNodes, kSenderTerms, kReceiverTerms, kEdgeFeatures);
  CHECK(summed.edges_out.v == std::vector<double>{7, 11, 11});
  CHECK(summed.aggregate.v == std::vector<double>{18, 11, 0});

  EdgeUpdate plain = hand_update();
  plain.residual = false;
  const auto bare = reference::edge_update(plain, kThreeNodes, kSenderTerms, kReceiverTerms, kEdgeFeatures);
  CHECK(bare.edges_out.v == std::vector<double>{6, 9, 12});
}

TEST_CASE("reference: the gradients of that update, by hand") {
  const Matrix d_edges_out(3, 1, {1, 0, 2});
  const Matrix d_aggregate(3, 1, {1, 10, 100});
  EdgeUpdate update = hand_update();
  const auto g = reference::edge_update_backward(update, kThreeNodes, kSenderTerms, kReceiverTerms,
                                                 kEdgeFeatures, d_edges_out, d_aggregate);
  CHECK(g.d_edges.v == std::vector<double>{-1, 2, -10});
  CHECK(g.d_sender_terms.v == std::vector<double>{24, 36, 4, 6, 2, 0});
  CHECK(g.d_receiver_terms.v == std::vector<double>{6, 6, 24, 36, 0, 0});
  CHECK(g.d_edge_weight.v == std::vector<double>{-16, -30});
  CHECK(g.mlp.d_first_bias.v == std::vector<double>{30, 42});
  CHECK(g.mlp.d_weights[0].v == std::vector<double>{18, 38});
  CHECK(g.mlp.d_biases[0].v == std::vector<double>{15});

  update.aggregate_after_residual = true;
  const auto after = reference::edge_update_backward(update, kThreeNodes, kSenderTerms, kReceiverTerms,
                                                     kEdgeFeatures, d_edges_out, d_aggregate);
  CHECK(after.d_edges.v == std::vector<double>{0, 3, 0});
  CHECK(after.d_sender_terms.v == g.d_sender_terms.v);
}

TEST_CASE("reference: gather and scatter_add, by hand") {
  const Matrix x(3, 2, {1, 2, 3, 4, 5, 6});
  CHECK(reference::gather(x, {2, 0, 2}).v == std::vector<double>{5, 6, 1, 2, 5, 6});
  CHECK(reference::scatter_add(x, {1, 1, 3}, 4).v == std::vector<double>{0, 0, 4, 6, 0, 0, 5, 6});
}

TEST_CASE("reference: linear, by hand") {
  const Matrix x(3, 2, {1, 2, 3, 4, 5, 6});
  const Matrix weight(2, 1, {10, 1});
  CHECK(reference::linear(x, weight, Matrix(1, 1, std::vector<double>{100})).v ==
        std::vector<double>{112, 134, 156});
  CHECK(reference::linear(x, weight).v == std::vector<double>{12, 34, 56});
  const auto g = reference::linear_backward(x, weight, Matrix(3, 1, {1, 0, -1}));
  CHECK(g.d_x.v == std::vector<double>{10, 1, 0, 0, -10, -1});
  CHECK(g.d_weight.v == std::vector<double>{-4, -4});
  CHECK(g.d_bias.v == std::vector<double>{0});
}

TEST_CASE("reference: norms of a row, by hand") {
  const Matrix x(1, 2, {1, 3});
  const Matrix gain(1, 2, {2, 4});
  const Matrix bias(1, 2, {1, 0});
  // Mean 2, variance 1; with epsilon 3 the scale is 1/2.
  CHECK(reference::norm(Norm::layer, x, gain, bias, 3.0).v == std::vector<double>{0, 2});
  const auto g = reference::norm_backward(Norm::layer, x, gain, Matrix(1, 2, {1, 1}), 3.0);
  CHECK(g.d_x.v == std::vector<double>{-0.375, 0.375});
  CHECK(g.d_gain.v == std::vector<double>{-0.5, 0.5});
  CHECK(g.d_bias.v == std::vector<double>{1, 1});
  // Mean square 5; with epsilon 4 the scale is 1/3.
  const Matrix rms = reference::norm(Norm::rms, x, Matrix(1, 2, {3, 2}), {}, 4.0);
  CHECK(rms.at(0, 0) == doctest::Approx(1.0).epsilon(1e-15));
  CHECK(rms.at(0, 1) == doctest::Approx(2.0).epsilon(1e-15));
  CHECK(reference::norm(Norm::none, x, {}, {}, 0.0).v == x.v);
}

TEST_CASE("reference: activations at known points") {
  using reference::activate;
  CHECK(activate(Activation::none, -3.0) == -3.0);
  CHECK(activate(Activation::relu, -3.0) == 0.0);
  CHECK(activate(Activation::relu, 3.0) == 3.0);
  CHECK(activate(Activation::silu, std::log(3.0)) == doctest::Approx(0.75 * std::log(3.0)));
  // The normal distribution function at 1 is 0.8413447460685429.
  CHECK(activate(Activation::gelu, 1.0) == doctest::Approx(0.8413447460685429).epsilon(1e-14));
  CHECK(activate(Activation::gelu, -1.0) == doctest::Approx(-0.1586552539314571).epsilon(1e-14));
  CHECK(activate(Activation::tanh, std::log(2.0)) == doctest::Approx(0.6).epsilon(1e-14));
  CHECK(activate(Activation::elu, 3.0) == 3.0);
  CHECK(activate(Activation::elu, -std::log(2.0)) == doctest::Approx(-0.5).epsilon(1e-14));
  CHECK(activate(Activation::leaky_relu, 3.0) == 3.0);
  CHECK(activate(Activation::leaky_relu, -3.0) == doctest::Approx(-0.6).epsilon(1e-14));
  CHECK(reference::activation_slope(Activation::relu, 0.0) == 0.0);
  CHECK(reference::activation_slope(Activation::elu, 0.0) == 1.0);
  CHECK(reference::activation_slope(Activation::leaky_relu, 0.0) == 0.2);
}

TEST_CASE("reference: activation slopes match differences") {
  RandomMatrices random(1);
  for (const Activation activation : kEveryActivation) {
    Matrix x = random.normal(3, 5);
    const Matrix d_y = random.normal(3, 5);
    check_gradient(std::string(name_of(activation)), x, reference::activation_backward(activation, x, d_y),
                   [&] { return dot(d_y, reference::activation(activation, x)); });
  }
}

TEST_CASE("reference: mlp gradients are differences of the mlp") {
  RandomMatrices random(2);
  for (const Activation activation : kEveryActivation) {
    for (const Norm norm : kNorms) {
      for (const int64_t layers : {1, 2, 3}) {
        CAPTURE(name_of(activation));
        CAPTURE(name_of(norm));
        CAPTURE(layers);
        Mlp mlp = random_mlp(random, {2, 3}, 4, layers, 3, activation, norm);
        std::vector<Matrix> inputs = {random.normal(3, 2), random.normal(3, 3)};
        Matrix terms = random.normal(3, layers == 1 ? 3 : 4);
        const Matrix d_out = random.normal(3, 3);
        const auto objective = [&] { return dot(d_out, reference::mlp(mlp, inputs, terms).out); };
        const auto g = reference::mlp_backward(mlp, inputs, terms, d_out);
        check_mlp_parameters(mlp, g, objective);
        check_gradient("first terms", terms, g.d_first_terms, objective);
        for (size_t i = 0; i < 2; ++i) check_gradient("input", inputs[i], g.d_inputs[i], objective);
      }
    }
  }
}

TEST_CASE("reference: several inputs are one concatenated input") {
  RandomMatrices random(3);
  const Mlp split = random_mlp(random, {2, 1}, 4, 2, 3, Activation::tanh, Norm::layer);
  const std::vector<Matrix> inputs = {random.normal(3, 2), random.normal(3, 1)};
  Mlp whole = split;
  Matrix weight(3, 4), input(3, 3);
  for (int64_t j = 0; j < 4; ++j) {
    for (int64_t k = 0; k < 3; ++k) weight.at(k, j) = split.first_weights[k < 2 ? 0 : 1].at(k < 2 ? k : 0, j);
  }
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t k = 0; k < 3; ++k) input.at(i, k) = inputs[k < 2 ? 0 : 1].at(i, k < 2 ? k : 0);
  }
  whole.first_weights = {weight};
  const Matrix a = reference::mlp(split, inputs).out;
  const Matrix b = reference::mlp(whole, {input}).out;
  for (size_t i = 0; i < a.v.size(); ++i) CHECK(a.v[i] == doctest::Approx(b.v[i]).epsilon(1e-13));
}

TEST_CASE("reference: edge update gradients match differences") {
  RandomMatrices random(4);
  for (const bool residual : {true, false}) {
    for (const bool after : {true, false}) {
      CAPTURE(residual);
      CAPTURE(after);
      EdgeUpdate update;
      update.mlp = random_mlp(random, {3}, 4, 2, 3, Activation::silu, Norm::layer);
      update.residual = residual;
      update.aggregate_after_residual = after;
      // Node 3 is a halo node: it sends and never receives.
      const Edges graph{4, 3, {1, 2, 3, 0, 2}, {0, 0, 1, 2, 2}};
      Matrix senders = random.normal(4, 4), receivers = random.normal(3, 4), edges = random.normal(5, 3);
      const Matrix d_edges_out = random.normal(5, 3), d_aggregate = random.normal(3, 3);
      const auto objective = [&] {
        const auto out = reference::edge_update(update, graph, senders, receivers, edges);
        return dot(d_edges_out, out.edges_out) + dot(d_aggregate, out.aggregate);
      };
      const auto g =
          reference::edge_update_backward(update, graph, senders, receivers, edges, d_edges_out, d_aggregate);
      check_gradient("edges", edges, g.d_edges, objective);
      check_gradient("sender terms", senders, g.d_sender_terms, objective);
      check_gradient("receiver terms", receivers, g.d_receiver_terms, objective);
      check_mlp_parameters(update.mlp, g.mlp, objective);
    }
  }
}

TEST_CASE("reference: the masked loss, by hand and by differences") {
  Matrix prediction(3, 2, {1, 2, 3, 4, 5, 6});
  const Matrix target(3, 2, {0, 0, 0, 0, 4, 8});
  const std::vector<uint8_t> mask = {1, 0, 1};
  const auto loss = reference::masked_loss(prediction, target, mask);
  CHECK(loss.sum == 10.0);
  CHECK(loss.weight == 2.0);
  const Matrix d = reference::masked_loss_backward(prediction, target, mask, 0.5);
  CHECK(d.v == std::vector<double>{1, 2, 0, 0, 1, -2});
  check_gradient("prediction", prediction, d,
                 [&] { return 0.5 * reference::masked_loss(prediction, target, mask).sum; });
  CHECK(reference::sum_of_squares({3, -4}) == 25.0);
}

TEST_CASE("reference: the class loss, by hand and by differences") {
  Matrix logits(3, 2, {0, std::log(3.0), 5, 4, 1, 1});
  const std::vector<int32_t> labels = {1, 0, 0};
  const std::vector<uint8_t> mask = {1, 0, 1};
  const auto loss = [&] { return reference::class_loss(logits, labels, mask); };
  CHECK(loss().sum == doctest::Approx(std::log(4.0 / 3.0) + std::log(2.0)));
  CHECK(loss().weight == 2.0);
  const Matrix d = reference::class_loss_backward(logits, labels, mask, 0.5);
  CHECK(d.at(0, 0) == doctest::Approx(0.125));
  CHECK(d.at(2, 0) == doctest::Approx(-0.25));
  CHECK(d.at(1, 0) == 0.0);
  check_gradient("logits", logits, d, [&] { return 0.5 * loss().sum; });
}

TEST_CASE("reference: state errors by hand and by differences") {
  Matrix before(3, 1, {1, 2, 3}), prediction(3, 1, {10, 20, 30});
  const Matrix target(3, 1, {4, 5, 6});
  const std::vector<uint8_t> mask = {1, 0, 7};
  const auto after = [&] { return reference::accumulate_error(before, prediction, target, mask); };
  CHECK(after().v == std::vector<double>{7, 0, 27});
  const Matrix weights(3, 1, {0.5, 2, -1});
  const auto weighted = [](const Matrix& matrix, const Matrix& by) {
    double sum = 0.0;
    for (size_t i = 0; i < matrix.v.size(); ++i) sum += matrix.v[i] * by.v[i];
    return sum;
  };
  const auto objective = [&] { return weighted(after(), weights); };
  check_gradient("before", before, reference::masked(weights, mask), objective);
  check_gradient("prediction", prediction, reference::masked(weights, mask), objective);

  const Matrix given(2, 4, {1, 2, 3, 4, 5, 6, 7, 8});
  Matrix shift(2, 2, {10, 20, 30, 40});
  const Matrix ratio(1, 4, {2, 3, 0.5, 9});
  const std::vector<int32_t> source = {1, 0, 0, -1};
  const auto shifted = [&] { return reference::add_columns(given, shift, source, ratio); };
  CHECK(shifted().v == std::vector<double>{41, 32, 8, 4, 85, 96, 22, 8});
  const Matrix d_shifted(2, 4, {1, -1, 2, 3, 4, 5, -6, 7});
  check_gradient("shift", shift, reference::add_columns_backward(d_shifted, 2, source, ratio),
                 [&] { return weighted(shifted(), d_shifted); });
}

TEST_CASE("reference: sgd by hand") {
  reference::OptimizerStep s;
  s.kind = OptimizerKind::sgd;
  s.learning_rate = 0.5;
  reference::OptimizerState state{{1.0}, {}, {}};
  reference::optimizer_step(s, {2.0}, state);
  CHECK(state.parameters[0] == 0.0);

  s.momentum = 0.5;
  s.weight_decay = 0.25;
  state = {{4.0}, {8.0}, {}};
  reference::optimizer_step(s, {2.0}, state);  // gradient 2 + 1, buffer 4 + 3
  CHECK(state.first_moment[0] == 7.0);
  CHECK(state.parameters[0] == 0.5);

  s = reference::OptimizerStep{};
  s.kind = OptimizerKind::sgd;
  s.learning_rate = 1.0;
  s.gradient_scale = 0.5;
  s.clip_norm = 1.25;
  state = {{0.0, 0.0}, {}, {}};
  reference::optimizer_step(s, {3.0, 4.0}, state);  // scaled norm 2.5, cut to 1.25
  const double added = 2.5 / (2.5 + 1e-6);          // see the reference
  CHECK(state.parameters[0] == doctest::Approx(-0.75 * added).epsilon(1e-14));
  CHECK(state.parameters[1] == doctest::Approx(-1.0 * added).epsilon(1e-14));
  s.clip_norm = 2.75;
  state = {{0.0, 0.0}, {}, {}};
  reference::optimizer_step(s, {3.0, 4.0}, state);
  CHECK(state.parameters == std::vector<double>{-1.5, -2.0});
}

TEST_CASE("reference: two steps of adam and adamw by hand") {
  reference::OptimizerStep s;
  s.learning_rate = 0.5;
  s.beta1 = 0.5;
  s.beta2 = 0.75;
  s.epsilon = 0.0;
  reference::OptimizerState state{{1.0}, {0.0}, {0.0}};
  reference::optimizer_step(s, {2.0}, state);  // corrected moments 2 and 4
  CHECK(state.first_moment[0] == 1.0);
  CHECK(state.second_moment[0] == 1.0);
  CHECK(state.parameters[0] == 0.5);
  s.step = 2;
  reference::optimizer_step(s, {4.0}, state);  // moments 2.5 and 4.75, corrected by 3/4 and 7/16
  CHECK(state.first_moment[0] == 2.5);
  CHECK(state.second_moment[0] == 4.75);
  CHECK(state.parameters[0] ==
        doctest::Approx(0.5 - 0.5 * (10.0 / 3.0) / std::sqrt(76.0 / 7.0)).epsilon(1e-14));

  s.step = 1;
  s.weight_decay = 0.5;
  state = {{1.0}, {0.0}, {0.0}};
  reference::optimizer_step(s, {2.0}, state);  // the gradient becomes 2.5
  CHECK(state.first_moment[0] == 1.25);
  CHECK(state.parameters[0] == 0.5);
  s.kind = OptimizerKind::adamw;
  state = {{1.0}, {0.0}, {0.0}};
  reference::optimizer_step(s, {2.0}, state);  // the gradient stays 2; the parameter loses a quarter
  CHECK(state.first_moment[0] == 1.0);
  CHECK(state.parameters[0] == 0.25);

  s = reference::OptimizerStep{};
  s.learning_rate = 0.5;
  s.beta1 = s.beta2 = 0.0;
  s.epsilon = 2.0;
  state = {{1.0}, {0.0}, {0.0}};
  reference::optimizer_step(s, {2.0}, state);  // epsilon is added to the root, not under it
  CHECK(state.parameters[0] == 0.75);
}

TEST_CASE("reference attention: weights by hand") {
  reference::Attention a;
  a.values = Matrix(3, 1, {1, 2, 4});
  a.sender_scores = Matrix(3, 1, {0, std::log(3.0), -5});
  a.receiver_scores = Matrix(3, 1, {2, 0, 7});
  // Node 0 receives from 1 and 2, which differ by log 3 and, after leaky, 0.2 (2 - 5).
  const auto result = reference::attention(a, kThreeNodes);
  const double second = std::exp(-0.6), first = 3.0 * std::exp(2.0);
  CHECK(result.out.at(0, 0) == doctest::Approx((2.0 * first + 4.0 * second) / (first + second)));
  CHECK(result.out.at(1, 0) == doctest::Approx(1.0));
  CHECK(result.out.at(2, 0) == 0.0);
  CHECK(result.log_sums.at(0, 0) == doctest::Approx(std::log(first + second)));
  a.self_edges = true;
  CHECK(reference::attention(a, kThreeNodes).out.at(2, 0) == doctest::Approx(4.0));
}

TEST_CASE("reference attention: backward is the derivative of forward") {
  const Edges edges{4, 3, {1, 2, 0, 3, 2}, {0, 0, 1, 1, 1}};
  for (const AttentionScore score : {AttentionScore::gat, AttentionScore::gatv2, AttentionScore::dot}) {
    for (const bool own_keys : {false, true}) {
      RandomMatrices random(71);
      reference::Attention a;
      a.score = score;
      a.heads = 2;
      a.self_edges = own_keys;
      a.values = random.normal(4, 6);
      if (score == AttentionScore::gat) {
        a.sender_scores = random.normal(4, 2);
        a.receiver_scores = random.normal(3, 2);
      } else {
        if (own_keys) a.keys = random.normal(4, 6);
        a.queries = random.normal(3, 6);
      }
      if (score == AttentionScore::gatv2) a.weight = random.normal(1, 6);
      if (score != AttentionScore::gatv2) a.edge_scores = random.normal(5, 2);
      if (own_keys) a.keep = [](int64_t r, int64_t column) { return (r + column) % 3 == 0 ? 0.0 : 1.5; };
      const Matrix d_out = random.normal(3, 6);
      const auto objective = [&] { return dot(d_out, reference::attention(a, edges).out); };
      const auto g = reference::attention_backward(a, edges, d_out);
      check_gradient("values", a.values, g.d_values, objective);
      check_gradient("sender_scores", a.sender_scores, g.d_sender_scores, objective);
      check_gradient("receiver_scores", a.receiver_scores, g.d_receiver_scores, objective);
      check_gradient("keys", a.keys, g.d_keys, objective);
      check_gradient("queries", a.queries, g.d_queries, objective);
      check_gradient("weight", a.weight, g.d_weight, objective);
      check_gradient("edge_scores", a.edge_scores, g.d_edge_scores, objective);
    }
  }
  RandomMatrices random(72);
  Matrix x = random.normal(5, 6), weight = random.normal(1, 6);
  const Matrix d_scores = random.normal(5, 3);
  const auto objective = [&] { return dot(d_scores, reference::head_scores(x, weight, 3)); };
  const auto g = reference::head_scores_backward(x, weight, d_scores);
  check_gradient("x", x, g.d_x, objective);
  check_gradient("weight", weight, g.d_weight, objective);
}

}  // namespace
}  // namespace meshgrad::test
