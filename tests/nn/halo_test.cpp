// SPDX-License-Identifier: Apache-2.0
// One mesh over several ranks: their gradients together are those of the whole mesh.
#include <doctest/doctest.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/autograd/rank_halo.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/nn/partition/part_batch.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "model_case.h"
#include "partition_case.h"
#include "simulated_ranks.h"
#include "support.h"

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

/// A model and a mesh with a target, in host memory that ranks share.
struct Whole {
  Runtime runtime = make_runtime(1);
  ModelCase options;
  DType dtype;
  LossBatch batch;
  double weight = 0.0;

  /// Edges of each set as `senders` and `receivers` say.
  using Ends = std::pair<std::vector<int32_t>, std::vector<int32_t>>;
  Whole(ModelCase made, DType type, int64_t nodes, const std::vector<Ends>& sets)
      : options(std::move(made)), dtype(type) {
    RandomMatrices from(31);
    const auto random = [&](int64_t rows, int64_t width, DType of) {
      return to_tensor(runtime, stored_as(of, from.normal(rows, width)), of);
    };
    batch.graph.nodes = nodes;
    for (size_t set = 0; set < sets.size(); ++set) {
      const auto& [senders, receivers] = sets[set];
      batch.graph.edge_sets.push_back(
          {options.edge_set_names[set], build_graph(runtime, nodes, senders, receivers),
           random(static_cast<int64_t>(senders.size()), options.edge_inputs[set], dtype)});
    }
    batch.graph.node_features = random(nodes, options.node_inputs, dtype);
    batch.target = random(nodes, options.outputs, accumulator_of(dtype));
    std::vector<uint8_t> mask;
    for (int64_t i = 0; i < nodes; ++i) mask.push_back(i % 3 != 0);
    batch.mask = mask_tensor(runtime, mask);
    for (const uint8_t one : mask) weight += one;
  }
};

struct RanksOutcome {
  double loss = 0.0;
  std::vector<double> gradients;
  std::vector<int64_t> bytes;  ///< that each rank sent in forward and backward
};

/// Gradients of the loss of a batch, with the weight of the whole mesh. Observed, nothing overlaps exchanges
/// in the forward pass.
void add_part_gradients(const Whole& whole, Runtime& runtime, const Model& model, const LossBatch& batch,
                        const std::vector<RecomputedStages>& recomputed, double& loss,
                        bool observed = false) {
  Tape tape(runtime);
  if (observed) tape.observe([](const OpWritten&) {});
  const LossSum sum =
      ops::masked_loss(tape, predict(model, tape, batch.graph, recomputed), batch.target, batch.mask);
  loss = *sum.sum.value().data<double>();
  const Tensor seed = Tensor::zeros(runtime, {1}, DType::f64, Tag::data);
  *seed.data<double>() = 1.0 / whole.weight;
  tape.backward(sum.sum, seed);
}

RanksOutcome whole_outcome(const Whole& whole) {
  Runtime runtime = make_runtime(1);
  const Model model = make_model(whole.options, runtime, whole.dtype, 7);
  RanksOutcome outcome;
  add_part_gradients(whole, runtime, model, whole.batch, {}, outcome.loss);
  outcome.gradients = to_matrix(model.parameters.gradients()).v;
  return outcome;
}

LossBatch part_of(Runtime& runtime, const Whole& whole, const Part& part, Ranks& ranks) {
  const auto owned = std::span(part.nodes).first(static_cast<size_t>(part.owned));
  const auto rows = [&](const Tensor& from) {
    const Tensor to =
        Tensor::empty(runtime, from.shape().rank() == 1 ? Shape{part.owned} : Shape{part.owned, from.width()},
                      from.dtype(), Tag::data);
    copy_rows(from, owned, to);
    return to;
  };
  return {part_batch(runtime, whole.batch.graph, part, std::make_shared<RankHaloExchange>(ranks)),
          rows(whole.batch.target), rows(whole.batch.mask)};
}

RanksOutcome outcome_on_ranks(const Whole& whole, const std::vector<int32_t>& owners, int size,
                              const std::vector<RecomputedStages>& recomputed = {}, bool overlapped = true) {
  RanksOutcome outcome;
  outcome.bytes.resize(static_cast<size_t>(size));
  std::mutex mutex;
  const std::vector<SortedEdges> sets = sorted_edges(whole.batch.graph);
  on_ranks(size, [&](Ranks& ranks) {
    Runtime runtime = make_runtime(1);
    const Model model = make_model(whole.options, runtime, whole.dtype, 7);
    Part part = make_part(owners, ranks.rank(), size, sets);
    if (!overlapped) part.interior = 0;
    const LossBatch batch = part_of(runtime, whole, part, ranks);
    const int64_t before = ranks.bytes_sent();
    double loss = 0.0;
    add_part_gradients(whole, runtime, model, batch, recomputed, loss, !overlapped);
    const int64_t sent = ranks.bytes_sent() - before;
    std::vector<double> gradients = to_matrix(model.parameters.gradients()).v;
    all_reduce(ranks, std::span(gradients), "gradients");
    const std::lock_guard lock(mutex);
    outcome.loss += loss;
    outcome.bytes[static_cast<size_t>(ranks.rank())] = sent;
    if (ranks.first()) outcome.gradients = std::move(gradients);
  });
  return outcome;
}

/// |a - b| / |b|, of all elements together.
double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0.0, total = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    total += b[i] * b[i];
  }
  return std::sqrt(difference / total);
}

std::vector<int32_t> random_owners(int64_t nodes, int ranks, uint64_t seed) {
  std::vector<int32_t> owners;
  for (int64_t i = 0; i < nodes; ++i)
    owners.push_back(
        static_cast<int32_t>(uniform_below(seed, 4, static_cast<uint64_t>(i), static_cast<uint64_t>(ranks))));
  return owners;
}

ModelCase two_sets() {
  ModelCase options = model_case(4, 2, 24, 3);
  options.edge_inputs = {3, 2};
  options.edge_set_names = {"mesh", "world"};
  return options;
}

/// A mesh of triangles and an edge set across it, in which node 5 is a hub and the last nodes are alone.
Whole mesh_with_hub(DType dtype, ModelCase options = two_sets()) {
  const MeshCase mesh = square_mesh(9);
  RandomMatrices random(5);
  std::vector<int32_t> senders = random.indices(60, mesh.nodes), receivers = random.indices(60, mesh.nodes);
  for (size_t i = 0; i < 40; ++i) (i % 2 == 0 ? senders : receivers)[i] = 5;
  return Whole(std::move(options), dtype, mesh.nodes + 3,
               {{mesh.senders, mesh.receivers}, {std::move(senders), std::move(receivers)}});
}

double allowed(DType dtype) { return dtype == DType::f64 ? 1e-12 : 1e-5; }

}  // namespace

TEST_CASE("gradients of 2, 3, 4 and 8 ranks are the whole mesh's") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      ModelCase options = two_sets();
      options.path = path;
      const Whole whole = mesh_with_hub(dtype, options);
      const RanksOutcome expected = whole_outcome(whole);
      for (const int ranks : {2, 3, 4, 8}) {
        for (const uint64_t seed : {1, 2}) {
          const RanksOutcome got =
              outcome_on_ranks(whole, random_owners(whole.batch.graph.nodes, ranks, seed), ranks);
          CAPTURE(name_of(dtype));
          CAPTURE(ranks);
          CHECK(relative_error(got.gradients, expected.gradients) < allowed(dtype));
          CHECK(std::abs(got.loss - expected.loss) < allowed(dtype) * expected.loss);
        }
      }
    }
  }
}

TEST_CASE("ranks without a node, and islands that need no exchange") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Whole whole = mesh_with_hub(dtype);
    const RanksOutcome expected = whole_outcome(whole);
    // All nodes belong to rank 1 of 3; then one node belongs to rank 2, another to rank 0 of 4.
    std::vector<int32_t> owners(static_cast<size_t>(whole.batch.graph.nodes), 1);
    const RanksOutcome alone = outcome_on_ranks(whole, owners, 3);
    CHECK(relative_error(alone.gradients, expected.gradients) < allowed(dtype));
    CHECK(alone.bytes == std::vector<int64_t>{0, 0, 0});
    owners[5] = 2;
    owners[70] = 0;
    CHECK(relative_error(outcome_on_ranks(whole, owners, 4).gradients, expected.gradients) < allowed(dtype));

    // Two squares that no edge connects, a rank each.
    const MeshCase square = square_mesh(5);
    Whole::Ends ends{square.senders, square.receivers};
    const auto nodes = static_cast<int32_t>(square.nodes);
    for (size_t e = 0; e < square.senders.size(); ++e) {
      ends.first.push_back(square.senders[e] + nodes);
      ends.second.push_back(square.receivers[e] + nodes);
    }
    const Whole islands(model_case(4, 2, 24, 3), dtype, 2 * square.nodes, {ends});
    std::vector<int32_t> halves(static_cast<size_t>(2 * nodes), 0);
    std::fill(halves.begin() + nodes, halves.end(), 1);
    const RanksOutcome apart = outcome_on_ranks(islands, halves, 2), at_once = whole_outcome(islands);
    CHECK(relative_error(apart.gradients, at_once.gradients) < allowed(dtype));
    CHECK(apart.bytes == std::vector<int64_t>{0, 0});
    // The same squares cut at random, where half of the ranks own nothing.
    for (const int ranks : {2, 3, 4, 8}) {
      std::vector<int32_t> odd = random_owners(2 * nodes, ranks, 5);
      for (int32_t& owner : odd) owner = std::min(owner | 1, ranks - 1);
      CAPTURE(ranks);
      CHECK(relative_error(outcome_on_ranks(islands, odd, ranks).gradients, at_once.gradients) <
            allowed(dtype));
    }
  }
}

TEST_CASE("interior edges during exchanges have the same bits") {
  const MeshCase mesh = square_mesh(40);
  for (const bool two : {false, true}) {
    ModelCase options = model_case(4, 2, 16, 2);
    std::vector<Whole::Ends> sets{{mesh.senders, mesh.receivers}};
    if (two) {
      options.edge_inputs.push_back(2);
      options.edge_set_names = {"mesh", "again"};
      sets.push_back(sets.front());
    }
    const Whole whole(options, DType::f32, mesh.nodes, sets);
    std::vector<int32_t> bands;  // of rows: most nodes are interior
    for (int64_t i = 0; i < mesh.nodes; ++i) bands.push_back(static_cast<int32_t>(3 * i / mesh.nodes));
    REQUIRE(make_part(bands, 1, 3, sorted_edges(whole.batch.graph)).interior > 300);
    const RanksOutcome apart = outcome_on_ranks(whole, bands, 3, {}, false);
    CHECK(outcome_on_ranks(whole, bands, 3).gradients == apart.gradients);
    CHECK(outcome_on_ranks(whole, bands, 3, {{1, 3, SavePolicy::matmuls}}).gradients == apart.gradients);
    CHECK(relative_error(apart.gradients, whole_outcome(whole).gradients) < allowed(DType::f32));
  }
}

TEST_CASE("ranks in 16 bits learn what the whole mesh does") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    ModelCase options = two_sets();
    options.activation = Activation::silu;
    const Whole whole = mesh_with_hub(dtype, options);
    const RanksOutcome got = outcome_on_ranks(whole, random_owners(whole.batch.graph.nodes, 3, 1), 3);
    CHECK(relative_error(got.gradients, whole_outcome(whole).gradients) <
          6.0 * (dtype == DType::f16 ? 0x1p-11 : 0x1p-8));
  }
}

TEST_CASE("recomputed segments exchange again in the same order") {
  const Whole whole = mesh_with_hub(DType::f32);
  const std::vector<int32_t> owners = random_owners(whole.batch.graph.nodes, 4, 3);
  const RanksOutcome plain = outcome_on_ranks(whole, owners, 4);
  CHECK(outcome_on_ranks(whole, owners, 4).gradients == plain.gradients);
  const std::vector<RecomputedStages> segments[] = {
      {{0, 5}}, {{1, 2}, {2, 4}}, {{1, 4, SavePolicy::matmuls}}, {{0, 2, SavePolicy::outputs_of("mlp")}}};
  for (const auto& recomputed : segments)
    CHECK(outcome_on_ranks(whole, owners, 4, recomputed).gradients == plain.gradients);
}

TEST_CASE("a block exchanges 2 x halo x width x size bytes") {
  for (const DType dtype : {DType::f32, DType::f16}) {
    const Whole whole = mesh_with_hub(dtype);
    const std::vector<int32_t> owners = random_owners(whole.batch.graph.nodes, 3, 1);
    const RanksOutcome plain = outcome_on_ranks(whole, owners, 3);
    const RanksOutcome recomputed = outcome_on_ranks(whole, owners, 3, {{1, 2}, {2, 3}, {3, 4}});
    const std::vector<SortedEdges> sets = sorted_edges(whole.batch.graph);
    int64_t total = 0, halo = 0;
    for (int32_t rank = 0; rank < 3; ++rank) {
      const Part part = make_part(owners, rank, 3, sets);
      const auto sent = static_cast<int64_t>(part.sent.size());
      const int64_t row = whole.options.width * size_of(dtype);
      const int64_t blocks = whole.options.blocks;
      CHECK(plain.bytes[static_cast<size_t>(rank)] == blocks * (sent + part.ghosts()) * row);
      CHECK(recomputed.bytes[static_cast<size_t>(rank)] == blocks * (2 * sent + part.ghosts()) * row);
      // What is sent and received together is twice that.
      CHECK(exchanged_bytes(part, whole.options.width, dtype) == 2 * (sent + part.ghosts()) * row);
      total += plain.bytes[static_cast<size_t>(rank)];
      halo += part.ghosts();
    }
    CHECK(total == whole.options.blocks * 2 * halo * whole.options.width * size_of(dtype));
  }
}

TEST_CASE("a batch whose halo does not fit its graphs is refused") {
  const Whole whole = mesh_with_hub(DType::f32);
  const std::vector<int32_t> owners = random_owners(whole.batch.graph.nodes, 2, 1);
  on_ranks(2, [&](Ranks& ranks) {
    Runtime runtime = make_runtime(1);
    const Model model = make_model(whole.options, runtime, whole.dtype, 7);
    const Part part = make_part(owners, ranks.rank(), 2, sorted_edges(whole.batch.graph));
    LossBatch batch = part_of(runtime, whole, part, ranks);
    Tape tape(runtime);
    batch.graph.halo = nullptr;
    CHECK_THROWS_WITH_AS(predict(model, tape, batch.graph), doctest::Contains("graph of edge set mesh"),
                         InvalidArgument);
  });
}
