// SPDX-License-Identifier: Apache-2.0
// What a block keeps for its backward pass, byte by byte: as many rows as a careful hand would keep.
#include <doctest/doctest.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/nn/mesh_graph_net.h>

#include "model_case.h"
#include "support.h"

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

constexpr int64_t kNodes = 70, kEdges = 400;

/// Bytes of activations between forward and backward.
int64_t kept_bytes(const ModelCase& options, DType dtype) {
  Runtime runtime = make_runtime();
  const Model model = make_model(options, runtime, dtype, 1);
  RandomMatrices random(3);
  LossBatch batch;
  batch.graph.nodes = kNodes;
  batch.graph.node_features = to_tensor(runtime, random.normal(kNodes, 2), dtype);
  batch.graph.edge_sets.push_back(
      {"mesh", build_graph(runtime, kNodes, random.indices(kEdges, kNodes), random.indices(kEdges, kNodes)),
       to_tensor(runtime, random.normal(kEdges, 3), dtype)});
  Tape tape(runtime);
  predict(model, tape, batch.graph);
  return runtime.allocator().stats().by_tag[static_cast<size_t>(Tag::activations)].requested.current;
}

/// Rows of the model's width that one block more keeps, all edges and all nodes together.
double rows_of_a_block(ModelCase options, DType dtype) {
  const int64_t before = kept_bytes(options, dtype);
  ++options.blocks;
  return static_cast<double>(kept_bytes(options, dtype) - before) /
         static_cast<double>(options.width * size_of(dtype));
}

}  // namespace

TEST_CASE("an op-by-op block saves only what its backward reads") {
  ModelCase options = model_case(2, 2, 16, 1);
  options.path = ComputePath::op_by_op;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t blocks : {1, 4}) {
      for (const int64_t hidden : {1, 2, 3}) {
        for (const Norm norm : {Norm::none, Norm::layer, Norm::rms}) {
          for (const Activation kind : {Activation::relu, Activation::silu}) {
            for (const AggregateOrder order :
                 {AggregateOrder::before_residual, AggregateOrder::after_residual}) {
              options.blocks = blocks;
              options.hidden_layers = hidden;
              options.norm = norm;
              options.activation = kind;
              options.aggregate = order;
              CAPTURE(name_of(dtype));
              CAPTURE(name_of(norm));
              CAPTURE(name_of(kind));
              CAPTURE(hidden);
              // What every linear reads: the concatenation, [edge, sender, receiver] or [node, aggregate],
              // and the hidden activations. What the norm reads. And what relu can do without.
              const int64_t same = hidden * (kind == Activation::relu ? 1 : 2) + (norm == Norm::none ? 0 : 1);
              CHECK(rows_of_a_block(options, dtype) == (3 + same) * kEdges + (2 + same) * kNodes);
            }
          }
        }
      }
    }
  }
}
