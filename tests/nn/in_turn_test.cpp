// SPDX-License-Identifier: Apache-2.0
// A mesh part after part on one device: the whole mesh's gradients in a fraction of its memory.
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/nn/partition/in_turn.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "model_case.h"
#include "partition_case.h"
#include "support.h"

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

struct TurnCase {
  Runtime runtime = make_runtime(1);
  ModelCase options;
  DType dtype;
  MeshCase mesh;
  LossBatch batch;
  double weight = 0.0;

  TurnCase(ModelCase made, DType type, int64_t side)
      : options(std::move(made)), dtype(type), mesh(square_mesh(side)) {
    RandomMatrices from(8);
    const auto random = [&](int64_t rows, int64_t width, DType of) {
      return to_tensor(runtime, stored_as(of, from.normal(rows, width)), of);
    };
    batch.graph.nodes = mesh.nodes;
    for (size_t set = 0; set < options.edge_inputs.size(); ++set) {
      const bool first = set == 0;
      const std::vector<int32_t> senders = first ? mesh.senders : from.indices(50, mesh.nodes);
      const std::vector<int32_t> receivers = first ? mesh.receivers : from.indices(50, mesh.nodes);
      batch.graph.edge_sets.push_back(
          {options.edge_set_names[set], build_graph(runtime, mesh.nodes, senders, receivers),
           random(static_cast<int64_t>(senders.size()), options.edge_inputs[set], dtype)});
    }
    batch.graph.node_features = random(mesh.nodes, options.node_inputs, dtype);
    batch.target = random(mesh.nodes, options.outputs, accumulator_of(dtype));
    std::vector<uint8_t> mask;
    for (int64_t i = 0; i < mesh.nodes; ++i) mask.push_back(i % 3 != 0);
    batch.mask = mask_tensor(runtime, mask);
    for (const uint8_t one : mask) weight += one;
  }
};

struct Turned {
  double loss = 0.0, seconds = 0.0;
  int64_t peak = 0;  ///< of the allocator, beyond parameters and the batch
  int64_t host = 0;  ///< values in host memory
  std::vector<double> gradients;
};

/// The sum of squared errors of `prediction`, and its gradient.
double walk_loss(const TurnCase& of, Runtime& runtime, Tape& tape, const Variable& prediction,
                 const Tensor& target, const Tensor& mask) {
  const LossSum loss = ops::masked_loss(tape, prediction, target, mask);
  const Tensor seed = Tensor::zeros(runtime, {1}, DType::f64, Tag::data);
  *seed.data<double>() = 1.0 / of.weight;
  tape.backward(loss.sum, seed);
  return *loss.sum.value().data<double>();
}

template <class Work>
Turned measured(const TurnCase& of, Work&& work) {
  Runtime runtime = make_runtime(1);
  const Model model = make_model(of.options, runtime, of.dtype, 7);
  Turned turned;
  const auto begin = std::chrono::steady_clock::now();
  work(runtime, model, turned);
  turned.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  turned.gradients = to_matrix(model.parameters.gradients()).v;
  return turned;
}

/// `recomputed`: each stage as a segment.
Turned whole(const TurnCase& of, bool recomputed = false) {
  return measured(of, [&](Runtime& runtime, const Model& model, Turned& turned) {
    const int64_t before = runtime.allocator().stats().allocated.current;
    std::vector<RecomputedStages> segments;
    for (int64_t s = 0; recomputed && s < static_cast<int64_t>(model.stages.size()); ++s)
      segments.push_back({s, s + 1});
    Tape tape(runtime);
    turned.loss = walk_loss(of, runtime, tape, predict(model, tape, of.batch.graph, segments),
                            of.batch.target, of.batch.mask);
    turned.peak = runtime.allocator().stats().allocated.peak - before;
  });
}

std::vector<Part> parts_of(const TurnCase& of, int parts) {
  const std::vector<SortedEdges> sets = sorted_edges(of.batch.graph);
  const std::vector<int32_t> owners =
      bisect_coordinates(of.mesh.positions, 2, node_weights(sets, of.mesh.nodes), parts);
  std::vector<Part> made;
  for (int32_t rank = 0; rank < parts; ++rank) made.push_back(make_part(owners, rank, parts, sets));
  return made;
}

Turned in_turn(const TurnCase& of, int parts) {
  return measured(of, [&](Runtime& runtime, const Model& model, Turned& turned) {
    PartsInTurn turns(runtime, of.batch.graph, parts_of(of, parts));
    const int64_t before = runtime.allocator().stats().allocated.current;
    runtime.allocator().reset_peak();
    turns.add_gradients(model, [&](int64_t number, const Variable& prediction) {
      const Part& part = turns.part(number);
      const auto owned = std::span(part.nodes).first(static_cast<size_t>(part.owned));
      const Tensor target = host_tensor({part.owned, of.options.outputs}, of.batch.target.dtype());
      const Tensor mask = host_tensor({part.owned}, DType::u8);
      copy_rows(of.batch.target, owned, target);
      copy_rows(of.batch.mask, owned, mask);
      Tape tape(runtime);
      turned.loss += walk_loss(of, runtime, tape, prediction, target, mask);
    });
    turned.peak = runtime.allocator().stats().allocated.peak - before;
    turned.host = turns.most_host_bytes();
  });
}

double turn_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0.0, total = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    total += b[i] * b[i];
  }
  return std::sqrt(difference / total);
}

ModelCase model_with_sets() {
  ModelCase options = model_case(4, 2, 24, 3);
  options.edge_inputs = {3, 2};
  options.edge_set_names = {"mesh", "world"};
  return options;
}

}  // namespace

TEST_CASE("gradients of parts in turn are the whole mesh's") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const double allowed = dtype == DType::f64 ? 1e-12 : 1e-5;
    const TurnCase of(model_with_sets(), dtype, 9);
    const Turned expected = whole(of);
    for (const int parts : {1, 2, 3, 8, 100}) {  // 100 parts of 81 nodes: some are empty
      const Turned turned = in_turn(of, parts);
      CAPTURE(parts);
      CHECK(turn_error(turned.gradients, expected.gradients) < allowed);
      CHECK(std::abs(turned.loss - expected.loss) < allowed * expected.loss);
    }
    CHECK(in_turn(of, 3).gradients == in_turn(of, 3).gradients);
  }
}

TEST_CASE("predictions of parts in turn keep the mesh's order") {
  const TurnCase of(model_with_sets(), DType::f32, 9);
  Runtime runtime = make_runtime(1);
  const Model model = make_model(of.options, runtime, of.dtype, 7);
  Tape tape(runtime, Tape::Mode::evaluate);
  const Tensor expected = predict(model, tape, of.batch.graph).value();
  PartsInTurn turns(runtime, of.batch.graph, parts_of(of, 5));
  const Tensor got = turns.predict(model);
  REQUIRE(got.shape() == expected.shape());
  for (int64_t i = 0; i < got.elements(); ++i)
    CHECK(got.data<float>()[i] == doctest::Approx(expected.data<float>()[i]).epsilon(1e-5));
}

TEST_CASE("8 parts in turn take under a quarter of the memory") {
  const TurnCase of(model_case(4, 2, 64, 6), DType::f32, 64);
  const Turned plain = whole(of), recomputed = whole(of, true), turned = in_turn(of, 8);
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  MESSAGE("peak of activations and workspace: whole "
          << mib(plain.peak) << " MiB, whole and recomputed " << mib(recomputed.peak)
          << " MiB, 8 parts in turn " << mib(turned.peak) << " MiB on the device and " << mib(turned.host)
          << " MiB on the host; times " << plain.seconds << " s, " << recomputed.seconds << " s, "
          << turned.seconds << " s");
  CHECK(4 * turned.peak <= recomputed.peak);
  CHECK(4 * turned.peak <= plain.peak);
  CHECK(turned.host + turned.peak < plain.peak);
}

TEST_CASE("a stage that exchanges computed values is refused") {
  const TurnCase of(model_case(4, 2, 8, 1), DType::f32, 5);
  Runtime runtime = make_runtime(1);
  Model model = make_model(of.options, runtime, of.dtype, 7);
  const auto block = model.stages[1].run;
  model.stages[1].run = [block](Tape& tape, const ParameterSet& parameters, const GraphBatch& batch,
                                const Values& before) {
    ops::halo_exchange(tape, before.front(), *batch.halo);
    return block(tape, parameters, batch, before);
  };
  PartsInTurn turns(runtime, of.batch.graph, parts_of(of, 2));
  CHECK_THROWS_WITH_AS(turns.predict(model), doctest::Contains("once"), InvalidArgument);
}
