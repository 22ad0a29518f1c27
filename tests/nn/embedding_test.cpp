// SPDX-License-Identifier: Apache-2.0
// Tables of identifiers in front of both models.
#include <doctest/doctest.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/nn/embedding.h>
#include <meshgrad/nn/gat.h>
#include <meshgrad/nn/mesh_graph_net.h>

#include <algorithm>

#include "support.h"
#include "weight_check.h"

namespace meshgrad::embedding_test {
namespace {

using namespace meshgrad::test;

constexpr int64_t kNodes = 9;

ModelSizes sizes_with_tables(int64_t node_inputs) {
  return {.node_inputs = node_inputs,
          .edge_inputs = {0},
          .edge_set_names = {"mesh"},
          .outputs = 2,
          .tables = {{"id", 5, 3}, {"kind", 3, 2}}};
}

Model model_with_tables(bool gat, const ModelSizes& sizes, ComputePath path = ComputePath::fused) {
  if (gat) {
    return make_gat({.width = 4, .heads = 2, .blocks = 1, .hidden_layers = 1, .activation = Activation::silu},
                    sizes);
  }
  return make_mesh_graph_net(
      {.width = 5, .blocks = 1, .hidden_layers = 1, .activation = Activation::silu, .path = path}, sizes);
}

Graph rows_of(Runtime& runtime, int64_t rows, const std::vector<int32_t>& identifiers) {
  std::vector<int32_t> nodes;
  for (int32_t i = 0; i < std::ssize(identifiers); ++i) nodes.push_back(i);
  return build_bipartite_graph(runtime, rows, std::ssize(identifiers), identifiers, nodes);
}

/// Row 4 of the first table belongs to no node.
LossBatch batch_with_tables(Runtime& runtime, const ModelSizes& sizes, DType dtype) {
  RandomMatrices random(17);
  LossBatch batch;
  batch.graph.nodes = kNodes;
  batch.graph.node_features = to_tensor(runtime, random.normal(kNodes, sizes.node_inputs), dtype);
  EdgeSet edges{
      "mesh", build_graph(runtime, kNodes, random.indices(20, kNodes), random.indices(20, kNodes)), {}};
  edges.features = Tensor::zeros(runtime, {20, 0}, dtype, Tag::data);
  batch.graph.edge_sets.push_back(std::move(edges));
  batch.graph.identifiers = {rows_of(runtime, 5, {0, 1, 2, 3, 0, 1, 2, 3, 0}),
                             rows_of(runtime, 3, {2, 2, 2, 0, 0, 0, 1, 1, 1})};
  batch.target = to_tensor(runtime, random.normal(kNodes, 2), accumulator_of(dtype));
  batch.mask = Tensor::from<uint8_t>(runtime, std::vector<uint8_t>(kNodes, 1), {kNodes}, Tag::data);
  return batch;
}

/// Rows begin as 0.
void fill_tables(const Model& model, double scale) {
  RandomMatrices random(18);
  for (size_t p = 0; p < 2; ++p)
    for (double& value : model.parameters.value(p).values<double>()) value = scale * random.normal(1, 1).v[0];
}

std::vector<double> gradients_of(const Model& model) {
  const std::span<const double> all = model.parameters.gradients().values<double>();
  return {all.begin(), all.end()};
}

std::vector<double> prediction_of(Runtime& runtime, const Model& model, const GraphBatch& batch,
                                  std::span<const RecomputedStages> recomputed = {}) {
  Tape tape(runtime, Tape::Mode::evaluate);
  return to_matrix(predict(model, tape, batch, recomputed).value()).v;
}

TEST_CASE("tables of identifiers have the right gradients") {
  for (const bool gat : {false, true}) {
    for (const int64_t node_inputs : {3, 0}) {
      for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
        Runtime runtime = make_runtime();
        const ModelSizes sizes = sizes_with_tables(node_inputs);
        Model model = model_with_tables(gat, sizes, path);
        CHECK(model.stages.front().name == "embedding");
        model.parameters.allocate(runtime, DType::f64, 7);
        const MemoryStats stats = runtime.allocator().stats();
        CHECK(stats.by_tag[static_cast<size_t>(Tag::embed)].allocated.current == 256 * 8);
        CHECK(stats.by_tag[static_cast<size_t>(Tag::parameters)].requested.current ==
              (model.parameters.arena_elements() - 256) * 8);
        CHECK(model.parameters.parameters()[1].name == "embedding.kind.weight");
        fill_tables(model, 1.0);
        const LossBatch batch = batch_with_tables(runtime, sizes, DType::f64);
        CAPTURE(gat);
        CAPTURE(node_inputs);
        CHECK(largest_gradient_error(runtime, model, batch) < 1e-7);
        // Nothing reaches the row that no node has; gradients are those of a run that recomputes all stages.
        const std::span<const double> rows = model.parameters.gradient(0).values<double>();
        CHECK(std::ranges::all_of(rows.subspan(12), [](double g) { return g == 0.0; }));
        CHECK(std::ranges::any_of(rows.first(12), [](double g) { return g != 0.0; }));
        const auto plain = gradients_of(model);
        fill_zero(model.parameters.gradients(), runtime.stream());
        const RecomputedStages all[] = {{0, std::ssize(model.stages) - 1}};
        loss_of(runtime, model, batch, true, all);
        CHECK(plain == gradients_of(model));
      }
    }
  }
}

TEST_CASE("nodes of one identifier differ by their features alone") {
  Runtime runtime = make_runtime();
  const ModelSizes sizes = sizes_with_tables(0);
  Model model = model_with_tables(false, sizes);
  model.parameters.allocate(runtime, DType::f64, 7);
  LossBatch batch = batch_with_tables(runtime, sizes, DType::f64);
  batch.graph.edge_sets[0].graph = build_graph(runtime, kNodes, {}, {});
  batch.graph.edge_sets[0].features = Tensor::zeros(runtime, {0, 0}, DType::f64, Tag::data);
  const auto row = [](const std::vector<double>& all, size_t node) {
    return std::vector(all.begin() + static_cast<std::ptrdiff_t>(2 * node),
                       all.begin() + static_cast<std::ptrdiff_t>(2 * node + 2));
  };
  std::vector<double> all = prediction_of(runtime, model, batch.graph);
  CHECK(row(all, 0) == row(all, 5));  // no row is trained: all are 0
  fill_tables(model, 1.0);
  all = prediction_of(runtime, model, batch.graph);
  batch.graph.identifiers = {rows_of(runtime, 5, {3, 3, 3, 4, 4, 4, 0, 0, 0}),
                             rows_of(runtime, 3, {1, 1, 1, 1, 1, 1, 1, 1, 1})};
  all = prediction_of(runtime, model, batch.graph);
  CHECK(row(all, 0) == row(all, 2));
  CHECK(row(all, 0) != row(all, 3));
}

TEST_CASE("identifiers that do not fit a model are refused") {
  Runtime runtime = make_runtime();
  const ModelSizes sizes = sizes_with_tables(3);
  Model model = model_with_tables(false, sizes);
  model.parameters.allocate(runtime, DType::f32, 7);
  LossBatch batch = batch_with_tables(runtime, sizes, DType::f32);
  const auto refused = [&] {
    return invalid_argument_text([&] { prediction_of(runtime, model, batch.graph); });
  };
  CHECK(refused() == "");
  std::swap(batch.graph.identifiers[0].nodes, batch.graph.identifiers[1].nodes);
  CHECK(contains(refused(), "[embedding: batch] needed 5 rows of a table, got 3"));
  std::swap(batch.graph.identifiers[0].nodes, batch.graph.identifiers[1].nodes);
  batch.graph.identifiers.pop_back();
  CHECK(contains(refused(), "[embedding: batch] needed identifiers of 2 tables, got 1"));
  batch.graph.identifiers.push_back(rows_of(runtime, 3, {1}));
  CHECK(contains(refused(), "[batch: identifiers] needed 9, one for each of batch.nodes, got 1"));
  ModelSizes wrong = sizes;
  wrong.tables[0].width = 0;
  CHECK(contains(invalid_argument_text([&] { model_with_tables(true, wrong); }), "table id] needed 1 row"));
}

}  // namespace
}  // namespace meshgrad::embedding_test
