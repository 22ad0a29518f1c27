// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/nn/mesh_graph_net.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model_case.h"
#include "support.h"
#include "weight_check.h"

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

ModelCase small_options() { return model_case(4, 2, 24, 3); }

/// A slice layer after every block but the last.
ModelCase with_slices(ModelCase options) {
  options.slices = 4;
  options.slices_every = 1;
  options.slice_heads = 2;
  return options;
}

Tensor random_tensor(Runtime& runtime, const Shape& shape, DType dtype, uint64_t purpose) {
  Tensor tensor = Tensor::empty(runtime, shape, dtype, Tag::data);
  dispatch_cpu_storage(dtype, [&]<class S>() {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const double value = normal(3, purpose, static_cast<uint64_t>(i));
      tensor.data<S>()[i] = S(static_cast<Accumulator<S>>(value));
    }
  });
  return tensor;
}

LossBatch random_batch(Runtime& runtime, const ModelCase& options, int64_t nodes, int64_t edges,
                       DType dtype) {
  LossBatch batch;
  batch.graph.nodes = nodes;
  for (size_t set = 0; set < options.edge_inputs.size(); ++set) {
    RandomMatrices random(11 + set);
    EdgeSet edge_set{options.edge_set_names[set],
                     build_graph(runtime, nodes, random.indices(edges, nodes), random.indices(edges, nodes)),
                     {}};
    edge_set.features = random_tensor(runtime, {edges, options.edge_inputs[set]}, dtype, 100 + set);
    batch.graph.edge_sets.push_back(std::move(edge_set));
  }
  batch.graph.node_features = random_tensor(runtime, {nodes, options.node_inputs}, dtype, 1);
  if (options.slices > 0) batch.graph.graph_starts = three_graphs(runtime, nodes);
  batch.target = random_tensor(runtime, {nodes, options.outputs}, accumulator_of(dtype), 2);
  batch.mask = Tensor::empty(runtime, {nodes}, DType::u8, Tag::data);
  for (int64_t i = 0; i < nodes; ++i) batch.mask.data<uint8_t>()[i] = i % 3 != 0;
  return batch;
}

struct Outcome {
  std::vector<double> prediction, gradients;
  int64_t activation_bytes = 0;  ///< kept by forward
};

Outcome run(const ModelCase& options, int threads, DType dtype, int64_t nodes, int64_t edges) {
  Runtime runtime = make_runtime(threads);
  const Model model = make_model(options, runtime, dtype, 7);
  const LossBatch batch = random_batch(runtime, options, nodes, edges, dtype);
  Tape tape(runtime);
  const Variable prediction = predict(model, tape, batch.graph);
  Outcome outcome;
  outcome.activation_bytes =
      runtime.allocator().stats().by_tag[static_cast<size_t>(Tag::activations)].requested.current;
  const LossSum loss = ops::masked_loss(tape, prediction, batch.target, batch.mask);
  const Tensor seed = Tensor::zeros(runtime, {1}, DType::f64, Tag::data);
  *seed.data<double>() = 1.0 / *loss.weight.data<double>();
  const Matrix predicted = to_matrix(prediction.value());
  outcome.prediction = predicted.v;
  tape.backward(loss.sum, seed);
  dispatch_storage(accumulator_of(dtype), [&]<class T>() {
    const auto values = model.parameters.gradients().values<T>();
    outcome.gradients.assign(values.begin(), values.end());
  });
  return outcome;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// |a - b| / |b|, of all elements together.
double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0.0, total = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    total += b[i] * b[i];
  }
  return std::sqrt(difference / total);
}

}  // namespace

TEST_CASE("the fused and the op-by-op path agree in f64") {
  for (const Norm norm : {Norm::none, Norm::layer, Norm::rms}) {
    for (const Activation activation :
         {Activation::relu, Activation::silu, Activation::gelu, Activation::tanh, Activation::elu}) {
      for (const ConcatOrder order : {ConcatOrder::sender_receiver_edge, ConcatOrder::edge_sender_receiver}) {
        for (const AggregateOrder aggregate :
             {AggregateOrder::before_residual, AggregateOrder::after_residual}) {
          ModelCase options = small_options();
          options.norm = norm;
          options.activation = activation;
          options.concat_order = order;
          options.aggregate = aggregate;
          options.hidden_layers = norm == Norm::rms ? 1 : 2;
          if (norm == Norm::layer) {
            options.edge_inputs = {3, 2};
            options.edge_set_names = {"mesh", "world"};
          }
          const Outcome fused = run(options, 1, DType::f64, 40, 150);
          options.keep_hidden = false;
          const Outcome recomputed = run(options, 1, DType::f64, 40, 150);
          options.path = ComputePath::op_by_op;
          const Outcome plain = run(options, 1, DType::f64, 40, 150);
          CAPTURE(name_of(norm));
          CAPTURE(name_of(activation));
          CHECK(largest_difference(fused.prediction, plain.prediction) < 1e-11);
          CHECK(largest_difference(fused.gradients, plain.gradients) < 1e-11);
          CHECK(fused.prediction == recomputed.prediction);
          CHECK(fused.gradients == recomputed.gradients);
        }
      }
    }
  }
}

/// With an edge set that has no features: alone, or beside one that has.
ModelCase without_features(bool beside_others) {
  ModelCase options = model_case(3, 2, 5, 2);
  options.hidden_layers = 1;
  options.activation = Activation::silu;
  options.edge_inputs = beside_others ? std::vector<int64_t>{3, 0} : std::vector<int64_t>{0};
  options.edge_set_names =
      beside_others ? std::vector<std::string>{"mesh", "world"} : std::vector<std::string>{"mesh"};
  return options;
}

TEST_CASE("models without edge features have the right gradients") {
  for (const bool beside_others : {false, true}) {
    for (const ConcatOrder order : {ConcatOrder::sender_receiver_edge, ConcatOrder::edge_sender_receiver}) {
      for (const AggregateOrder aggregate :
           {AggregateOrder::before_residual, AggregateOrder::after_residual}) {
        ModelCase options = without_features(beside_others);
        options.concat_order = order;
        options.aggregate = aggregate;
        const Outcome fused = run(options, 1, DType::f64, 40, 150);
        options.keep_hidden = false;
        const Outcome recomputed = run(options, 1, DType::f64, 40, 150);
        options.path = ComputePath::op_by_op;
        const Outcome plain = run(options, 1, DType::f64, 40, 150);
        CHECK(largest_difference(fused.prediction, plain.prediction) < 1e-11);
        CHECK(largest_difference(fused.gradients, plain.gradients) < 1e-11);
        CHECK(fused.prediction == recomputed.prediction);
        CHECK(fused.gradients == recomputed.gradients);
        for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
          options.path = path;
          Runtime runtime = make_runtime();
          const Model model = make_model(options, runtime, DType::f64, 7);
          CHECK(largest_gradient_error(runtime, model, random_batch(runtime, options, 9, 20, DType::f64)) <
                1e-7);
        }
      }
    }
  }
}

TEST_CASE("a mean or maximum of edges has the right gradients") {
  for (const EdgeReduce reduce : {EdgeReduce::mean, EdgeReduce::max}) {
    for (const AggregateOrder aggregate : {AggregateOrder::before_residual, AggregateOrder::after_residual}) {
      ModelCase options = without_features(true);
      options.aggregate = aggregate;
      const Outcome sum = run(options, 1, DType::f64, 40, 150);
      options.reduce = reduce;
      const Outcome fused = run(options, 1, DType::f64, 40, 150);
      options.path = ComputePath::op_by_op;
      const Outcome plain = run(options, 1, DType::f64, 40, 150);
      CAPTURE(name_of(reduce));
      CHECK(largest_difference(fused.prediction, plain.prediction) < 1e-11);
      CHECK(largest_difference(fused.gradients, plain.gradients) < 1e-11);
      CHECK(largest_difference(fused.prediction, sum.prediction) > 1e-3);
      for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
        options.path = path;
        Runtime runtime = make_runtime();
        const Model model = make_model(options, runtime, DType::f64, 7);
        CHECK(largest_gradient_error(runtime, model, random_batch(runtime, options, 9, 20, DType::f64)) <
              1e-7);
      }
    }
  }
}

// Nodes with one edge each, of which the sum, the mean and the maximum are the same.
TEST_CASE("a node with one edge has its value, however reduced") {
  ModelCase options = model_case(3, 2, 5, 2);
  std::vector<std::vector<double>> predictions;
  for (const EdgeReduce reduce : {EdgeReduce::sum, EdgeReduce::mean, EdgeReduce::max}) {
    options.reduce = reduce;
    Runtime runtime = make_runtime();
    const Model model = make_model(options, runtime, DType::f64, 7);
    CHECK(contains(model.parameters.conventions(), "reduce") == (reduce != EdgeReduce::sum));
    LossBatch batch = random_batch(runtime, options, 4, 4, DType::f64);
    batch.graph.edge_sets[0].graph =
        build_graph(runtime, 4, std::vector<int32_t>{1, 2, 3, 0}, std::vector<int32_t>{0, 1, 2, 3});
    Tape tape(runtime, Tape::Mode::evaluate);
    predictions.push_back(to_matrix(predict(model, tape, batch.graph).value()).v);
  }
  CHECK(largest_difference(predictions[0], predictions[1]) < 1e-12);
  CHECK(largest_difference(predictions[0], predictions[2]) < 1e-12);
}

TEST_CASE("models of whole graphs have the right gradients") {
  for (const GraphPool pool : {GraphPool::sum, GraphPool::mean, GraphPool::max}) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      ModelCase options = without_features(false);
      options.pool = pool;
      options.path = path;
      Runtime runtime = make_runtime();
      const Model model = make_model(options, runtime, DType::f64, 7);
      CHECK(model.stages[model.stages.size() - 2].name == "pool");
      LossBatch batch = random_batch(runtime, options, 9, 20, DType::f64);
      batch.graph.graph_starts = make_graph_starts(runtime, std::vector<int64_t>{4, 0, 3, 2});
      batch.target = random_tensor(runtime, {4, options.outputs}, DType::f64, 2);
      batch.mask = Tensor::from<uint8_t>(runtime, std::vector<uint8_t>{1, 1, 0, 1}, {4}, Tag::data);
      CAPTURE(name_of(pool));
      CHECK(largest_gradient_error(runtime, model, batch) < 1e-7);
      Tape tape(runtime, Tape::Mode::evaluate);
      CHECK(predict(model, tape, batch.graph).value().shape() == Shape{4, options.outputs});
      batch.graph.graph_starts = {};
      CHECK_THROWS_WITH_AS(predict(model, tape, batch.graph), doctest::Contains("needed graph_starts"),
                           InvalidArgument);
    }
  }
}

TEST_CASE("models of nodes and graphs have the right gradients") {
  for (const GraphPool pool : {GraphPool::sum, GraphPool::mean, GraphPool::max}) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      ModelCase options = without_features(false);
      options.path = path;
      Runtime runtime = make_runtime();
      LossBatch batch = random_batch(runtime, options, 9, 20, DType::f64);
      batch.graph.graph_starts = make_graph_starts(runtime, std::vector<int64_t>{4, 0, 3, 2});
      const auto prediction_of = [&](size_t value) {
        const Model model = make_model(options, runtime, DType::f64, 7);
        Tape tape(runtime, Tape::Mode::evaluate);
        return to_matrix(forward(model, tape, batch.graph)[value].value()).v;
      };
      const std::vector<double> nodes_alone = prediction_of(0);
      options.graph_outputs = 3;
      options.graph_pool = pool;
      CHECK(prediction_of(0) == nodes_alone);
      CHECK(prediction_of(1).size() == 4 * 3);
      const Model model = make_model(options, runtime, DType::f64, 7);
      CHECK(model.parameters.find("graph_decoder.linear_1.weight") >= 0);
      batch.graph_target = random_tensor(runtime, {4, 3}, DType::f64, 5);
      CAPTURE(name_of(pool));
      CHECK(largest_gradient_error(runtime, model, batch) < 1e-7);
      options.outputs = 0;
      CHECK(prediction_of(0).empty());
      const Model alone = make_model(options, runtime, DType::f64, 7);
      CHECK(alone.parameters.find("node_decoder.linear_0.weight") < 0);
      batch.target = random_tensor(runtime, {9, 0}, DType::f64, 2);
      CHECK(largest_gradient_error(runtime, alone, batch) < 1e-7);
      batch.graph.graph_starts = {};
      Tape tape(runtime, Tape::Mode::evaluate);
      for (const Model& one : {model, alone})
        CHECK_THROWS_WITH_AS(predict(one, tape, batch.graph), doctest::Contains("needed graph_starts"),
                             InvalidArgument);
    }
  }
  ModelCase none = model_case(3, 2, 5, 2);
  none.outputs = 0;
  CHECK_THROWS_WITH_AS(make_model(none), doctest::Contains("outputs] needed 1 or more, got 0"),
                       InvalidArgument);
  ModelCase both = model_case(3, 2, 5, 2);
  both.graph_outputs = 1;
  both.pool = GraphPool::sum;
  CHECK_THROWS_WITH_AS(make_model(both), doctest::Contains("sizes with pool] needed graph_outputs 0, got 1"),
                       InvalidArgument);
}

TEST_CASE("models with slices have the right gradients") {
  for (const Norm norm : {Norm::layer, Norm::rms, Norm::none}) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      ModelCase options = with_slices(model_case(3, 2, 6, 3));
      options.activation = Activation::silu;
      options.norm = norm;
      options.path = path;
      Runtime runtime = make_runtime();
      const Model model = make_model(options, runtime, DType::f64, 7);
      CHECK((model.parameters.find("slices.0.norm.weight") >= 0) == (norm != Norm::none));
      CAPTURE(name_of(norm));
      CHECK(largest_gradient_error(runtime, model, random_batch(runtime, options, 9, 20, DType::f64)) < 1e-7);
    }
  }
}

TEST_CASE("slices join all nodes of a graph, and no others") {
  Runtime runtime = make_runtime();
  const ModelCase options = with_slices(model_case(3, 2, 6, 3));
  const Model model = make_model(options, runtime, DType::f64, 7);
  std::vector<std::string> names;
  for (const Stage& stage : model.stages) names.push_back(stage.name);
  CHECK(names == std::vector<std::string>{"encoder", "processor.0", "slices.0", "processor.1", "slices.1",
                                          "processor.2", "decoder"});
  LossBatch batch = random_batch(runtime, options, 9, 0, DType::f64);  // graphs of 3, 0 and 6 nodes
  const auto prediction = [&] {
    Tape tape(runtime, Tape::Mode::evaluate);
    return to_matrix(predict(model, tape, batch.graph).value());
  };
  const Matrix before = prediction();
  batch.graph.node_features.data<double>()[0] += 1.0;
  const Matrix after = prediction();
  for (int64_t node = 0; node < 9; ++node) CHECK((before.at(node, 0) != after.at(node, 0)) == (node < 3));
  batch.graph.graph_starts = {};
  CHECK_THROWS_WITH_AS(prediction(), doctest::Contains("needed whole graphs with graph_starts, for slices"),
                       InvalidArgument);
}

TEST_CASE("slices that do not fit are refused") {
  const auto error = [](auto&& change) {
    ModelCase options = with_slices(model_case(3, 2, 6, 3));
    change(options);
    return invalid_argument_text([&] { make_model(options); });
  };
  CHECK(error([](ModelCase&) {}) == "");
  CHECK(contains(error([](ModelCase& o) { o.slice_heads = 4; }), "heads that divide the width, 6, got 4"));
  CHECK(contains(error([](ModelCase& o) { o.slices = 129; }), "got 129 slices of 3 columns"));
  CHECK(contains(error([](ModelCase& o) { o.slices_every = 0; }), "slices_every] needed 1 or more, got 0"));
  ModelSizes sizes = with_slices(model_case(3, 2, 6, 3)).sizes();
  sizes.graph_starts = false;
  CHECK(contains(
      invalid_argument_text([&] { make_mesh_graph_net(with_slices(model_case(3, 2, 6, 3)), sizes); }),
      "needed graph_starts, with slices"));
}

TEST_CASE("slices in 16 bits, and for any number of threads") {
  ModelCase options = with_slices(small_options());
  options.activation = Activation::silu;
  const Outcome exact = run(options, 1, DType::f64, 1000, 4001);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const double unit = dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
    const Outcome stored = run(options, 1, dtype, 1000, 4001);
    CAPTURE(name_of(dtype));
    CHECK(relative_difference(stored.prediction, exact.prediction) < 8.0 * unit);
    CHECK(relative_difference(stored.gradients, exact.gradients) < 16.0 * unit);
    const Outcome threads = run(options, 3, dtype, 1000, 4001);
    CHECK(stored.prediction == threads.prediction);
    CHECK(stored.gradients == threads.gradients);
  }
}

TEST_CASE("edges without features have no encoder") {
  Runtime runtime = make_runtime();
  const Model model = make_model(without_features(true), runtime, DType::f32, 1);
  const auto shape_of = [&](const char* name) {
    const int64_t index = model.parameters.find(name);
    return index < 0 ? Shape{0} : model.parameters.value(static_cast<size_t>(index)).shape();
  };
  CHECK(shape_of("edge_encoder.mesh.linear_0.weight") == Shape{3, 5});
  CHECK(shape_of("edge_encoder.world.linear_0.weight") == Shape{0});
  CHECK(shape_of("processor.0.edge_mlp.mesh.linear_0.weight") == Shape{15, 5});
  CHECK(shape_of("processor.0.edge_mlp.world.linear_0.weight") == Shape{10, 5});
  CHECK(shape_of("processor.1.edge_mlp.world.linear_0.weight") == Shape{15, 5});
}

TEST_CASE("a step's bits do not depend on threads or on the run") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      ModelCase options = small_options();
      options.path = path;
      const Outcome one = run(options, 1, dtype, 2000, 9001);
      for (const int threads : {1, 2, 3, 5, 8}) {
        const Outcome other = run(options, threads, dtype, 2000, 9001);
        CAPTURE(threads);
        CAPTURE(name_of(dtype));
        CHECK(one.prediction == other.prediction);
        CHECK(one.gradients == other.gradients);
      }
    }
  }
}

// Independent roundings nearly cancel in a norm over all elements: a few units. But relu's slope jumps, and
// of all pre-activations a share in the order of the unit is so near 0 that rounding moves it across: the
// gradients then differ by the root of that share.
TEST_CASE("a model in 16 bits predicts and learns as in f64") {
  for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
    for (const Activation activation : {Activation::relu, Activation::silu}) {
      ModelCase options = small_options();
      options.path = path;
      options.activation = activation;
      const Outcome exact = run(options, 1, DType::f64, 300, 1501);
      const Outcome single = run(options, 1, DType::f32, 300, 1501);
      for (const DType dtype : {DType::f16, DType::bf16}) {
        const double unit = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
        const Outcome stored = run(options, 1, dtype, 300, 1501);
        CAPTURE(name_of(dtype));
        CAPTURE(name_of(activation));
        CHECK(relative_difference(stored.prediction, exact.prediction) < 4.0 * unit);
        CHECK(relative_difference(stored.gradients, exact.gradients) <
              (activation == Activation::relu ? std::sqrt(unit) : 6.0 * unit));
        CHECK(2 * stored.activation_bytes == single.activation_bytes);
        options.keep_hidden = false;
        const Outcome recomputed = run(options, 1, dtype, 300, 1501);
        options.keep_hidden = true;
        CHECK(stored.prediction == recomputed.prediction);
        CHECK(stored.gradients == recomputed.gradients);
      }
    }
  }
}

TEST_CASE("parameters have the names and shapes of files") {
  Runtime runtime = make_runtime();
  const Model model = make_model(small_options(), runtime, DType::f32, 1);
  const ParameterSet& set = model.parameters;
  REQUIRE(set.find("processor.2.edge_mlp.linear_0.weight") >= 0);
  const auto index = static_cast<size_t>(set.find("processor.2.edge_mlp.linear_0.weight"));
  CHECK(set.value(index).shape() == Shape{72, 24});
  CHECK(to_file_order(set.parameters()[index], set.value(index)).shape() == Shape{24, 72});
  CHECK(set.find("node_decoder.norm.weight") < 0);
  CHECK(set.find("edge_encoder.norm.bias") >= 0);
  ModelCase deeper = small_options();
  deeper.blocks = 5;
  const Model other = make_model(deeper, runtime, DType::f32, 1);
  CHECK(equal_bits(set.value(index), other.parameters.value(static_cast<size_t>(
                                         other.parameters.find("processor.2.edge_mlp.linear_0.weight")))));
  const Model reseeded = make_model(small_options(), runtime, DType::f32, 2);
  CHECK_FALSE(equal_bits(set.value(index), reseeded.parameters.value(index)));
}

TEST_CASE("file order is the transpose, both ways") {
  Runtime runtime = make_runtime();
  const ParameterInfo info{"w", Shape{2, 3}, 0, Initial::zero, 2};
  const std::vector<double> values{1, 2, 3, 4, 5, 6};
  const Tensor tensor = Tensor::from<double>(runtime, values, {2, 3}, Tag::data);
  const Tensor file = to_file_order(info, tensor);
  const auto transposed = file.values<double>();
  CHECK(std::vector<double>(transposed.begin(), transposed.end()) == std::vector<double>{1, 4, 2, 5, 3, 6});
  const Tensor back = Tensor::zeros(runtime, {2, 3}, DType::f64, Tag::data);
  from_file_order(info, file, back);
  CHECK(equal_bits(tensor, back));
  CHECK_THROWS_WITH_AS(from_file_order(info, tensor, back), doctest::Contains("shape [3, 2], got [2, 3]"),
                       DataError);
}

TEST_CASE("bad sizes are errors that name the size") {
  ModelCase options = small_options();
  options.width = 0;
  CHECK_THROWS_WITH_AS(make_model(options), doctest::Contains("MeshGraphNet: width] needed 1 or more, got 0"),
                       InvalidArgument);
  options = small_options();
  options.edge_set_names = {};
  CHECK_THROWS_AS(make_model(options), InvalidArgument);
}

TEST_CASE("a graph without edges, and nodes without any, still train") {
  const Outcome outcome = run(small_options(), 1, DType::f64, 5, 0);
  CHECK(outcome.prediction.size() == 10);
  CHECK(std::all_of(outcome.gradients.begin(), outcome.gradients.end(),
                    [](double g) { return std::isfinite(g); }));
}
