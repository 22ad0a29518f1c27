// SPDX-License-Identifier: Apache-2.0
// Weights of another convention, and steps without anything to learn from.
#include <doctest/doctest.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/task/task.h>

#include "support.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

using test::contains;
using test::message_of;

TEST_CASE("a checkpoint is refused by a model of other conventions") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 1;
  config.train.validate_every = 0;
  const auto checkpoint = test::train_here(config).checkpoint;
  Runtime runtime({.device = {}, .threads = 1});
  const Predictor predictor(runtime, checkpoint);
  const auto load = [&](const MeshGraphNetOptions& options) {
    Model model = make_mesh_graph_net(options, predictor.task().sizes());
    model.parameters.allocate(runtime, DType::f32, 0);
    Normalizers normalizers = predictor.task().online_normalizers();
    load_checkpoint(checkpoint, runtime.stream(), model.parameters, nullptr, normalizers);
  };
  MeshGraphNetOptions options = mesh_graph_net_options(config.model);
  CHECK_NOTHROW(load(options));
  options.concat_order = ConcatOrder::edge_sender_receiver;
  CHECK_THROWS_AS(load(options), DataError);
  CHECK(
      contains(message_of([&] { load(options); }),
               "needed weights of a model with concat_order edge_sender_receiver, aggregate before_residual, "
               "activation relu, norm layer, got concat_order sender_receiver_edge"));
  options = mesh_graph_net_options(config.model);
  options.aggregate = AggregateOrder::after_residual;
  CHECK_THROWS_AS(load(options), DataError);
  options = mesh_graph_net_options(config.model);
  options.activation = Activation::tanh;
  CHECK_THROWS_AS(load(options), DataError);
  // What only changes how it is computed is none of the file's business.
  options = mesh_graph_net_options(config.model);
  options.path = ComputePath::op_by_op;
  CHECK_NOTHROW(load(options));
}

TEST_CASE("a step without loss terms is refused") {
  Runtime runtime({.device = {}, .threads = 1});
  ParameterSet parameters;
  parameters.add("w", Shape{3}, Initial::one, 1);
  const auto make = [&] { return Optimizer(runtime, parameters, OptimizerConfig{}, 0.0, {.peak = 1e-3}); };
  CHECK(
      contains(message_of([&] { make(); }), "[Optimizer: parameters] needed allocated parameters, got none"));
  parameters.allocate(runtime, DType::f32, 1);
  const Optimizer optimizer = make();
  const Tensor zero = Tensor::zeros(runtime, {1}, DType::f64, Tag::data);
  CHECK(contains(
      message_of([&] { optimizer.note_loss(runtime, zero, zero); }),
      "[Optimizer::note_loss: window_weight] needed one loss term or more, got 0; fix: the mask must "
      "count at least one row"));
}

}  // namespace
}  // namespace meshgrad
