// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <limits>

#include "attention_case.h"
#include "edge_case.h"

namespace meshgrad::test {
namespace {

/// The matrix followed by rows of NaN.
Matrix with_spare_rows(Matrix matrix, int64_t spare) {
  matrix.rows += spare;
  matrix.v.resize(static_cast<size_t>(matrix.rows * matrix.cols), std::numeric_limits<double>::quiet_NaN());
  return matrix;
}

/// The graph with capacity for `spare` more nodes and edges, and its real sizes in device memory.
Graph with_spare_rows(Runtime& runtime, const Graph& graph, int64_t spare) {
  Graph roomy = graph;
  const std::vector<int64_t> sizes = {graph.nodes, graph.owned_nodes, graph.edges};
  roomy.counts = Tensor::from<int64_t>(runtime, sizes, {3}, Tag::data);
  for (Tensor* tensor : {&roomy.senders, &roomy.receivers, &roomy.receiver_offsets, &roomy.sender_offsets,
                         &roomy.sender_order}) {
    const Tensor host = to_host(*tensor, runtime.stream());
    std::vector<int32_t> all(host.data<int32_t>(), host.data<int32_t>() + host.elements());
    all.resize(all.size() + static_cast<size_t>(spare), 0x40000000);  // no such node
    *tensor = to_index(runtime, all);
  }
  roomy.nodes += spare;
  roomy.owned_nodes += spare;
  roomy.edges += spare;
  return roomy;
}

const std::vector<EdgeShape> kShapes = {
    {128, {{128}, 128, 3, 128, Activation::relu, Norm::layer}, true, true},
    {33, {{33}, 33, 2, 33, Activation::silu, Norm::rms}, true, false},
    {31, {{64}, 64, 4, 64, Activation::tanh, Norm::none}, true, false}};

// Only a device has sizes that its host does not know.
TEST_CASE("edge update keeps the rows after the graph's real sizes" * doctest::skip(cuda_devices().empty())) {
  constexpr int64_t kSpare = 45;
  for (const Backend& backend : backends()) {
    if (backend.device.kind == DeviceKind::cpu) continue;
    for (const DType dtype : backend.storage_types) {
      for (const EdgeShape& shape : kShapes) {
        for (const bool keep : {true, false}) {
          const std::string text = shape.mlp.text();
          CAPTURE(text);
          CAPTURE(name_of(dtype));
          Runtime runtime = backend.runtime();
          RandomMatrices random(15);
          reference::Edges edges = random_edges(random, 61, 203);
          edges.nodes = 83;  // halo nodes lie where the spare rows of owned nodes do
          for (size_t e = 0; e < edges.senders.size(); e += 3)
            edges.senders[e] = static_cast<int32_t>(61 + e % 22);
          const EdgeCase edge(runtime, random, shape, edges, dtype);
          const Graph roomy = with_spare_rows(runtime, edge.graph, kSpare);
          const auto spacious = [&](const Matrix& matrix) {
            return to_tensor(runtime, with_spare_rows(matrix, kSpare), dtype);
          };
          const auto check = [&](const Tensor& tensor, const Matrix& expected, int64_t terms) {
            CHECK(difference(tensor.row_range(0, expected.rows), expected, terms, edge.flowing()) == "");
            const Tensor rest = tensor.row_range(expected.rows, tensor.rows());
            CHECK(equal_bits(rest, unwritten(runtime, rest.shape(), dtype)));
          };
          EdgeUpdateForward done = edge.forward(runtime, keep);
          done.graph = &roomy;
          done.terms.nodes = spacious(edge.terms.nodes);
          done.edges.x = spacious(edge.mlp.input_values[0]);
          for (Tensor* tensor : {&done.edges_out, &done.aggregate, &done.saved.pre_norm}) {
            if (tensor->defined())
              *tensor = unwritten(runtime, {tensor->rows() + kSpare, tensor->width()}, dtype);
          }
          for (Tensor& z : done.saved.pre_activations)
            z = unwritten(runtime, {z.rows() + kSpare, z.width()}, dtype);
          if (!keep) done.saved = MlpSaved{};
          backend.kernels->message_passing.edge_forward(done, runtime, runtime.stream());
          const auto ref = reference::edge_update(edge.update, edges, edge.terms, edge.mlp.input_values[0]);
          check(done.edges_out, ref.edges_out, edge.row_terms());
          check(done.aggregate, ref.aggregate, edge.sum_terms());
          for (size_t layer = 0; layer < done.saved.pre_activations.size(); ++layer)
            check(done.saved.pre_activations[layer], ref.mlp.pre_activations[layer], edge.row_terms());

          const EdgeGradients gradients(runtime, random, edge);
          EdgeUpdateBackward args = edge.backward(runtime, done, gradients);
          args.graph = &roomy;
          args.d_edges_out = spacious(edge.d_edges_out);
          args.d_aggregate = spacious(edge.d_aggregate);
          args.d_edges = unwritten(runtime, done.edges.x.shape(), dtype);
          args.d_nodes = unwritten(runtime, done.terms.nodes.shape(), dtype);
          backend.kernels->message_passing.edge_backward(args, runtime, runtime.stream());
          const auto checked = edge.reference_gradients();
          check(args.d_edges, checked.d_edges, 2 * edge.sum_terms());
          check(args.d_nodes, checked.d_nodes, 2 * edge.sum_terms());
          args.d_edges = args.d_edges.row_range(0, edge.graph.edges);
          args.d_nodes = args.d_nodes.row_range(0, edge.graph.nodes);
          check_backward(edge, args, gradients, checked);
        }
      }
    }
  }
}

TEST_CASE("attention keeps the rows after the graph's real sizes") {
  constexpr int64_t kSpare = 45;
  for (const Backend& backend : backends()) {
    for (const AttentionShape& shape : attention_shapes()) {
      const std::string text = shape.text();
      CAPTURE(text);
      const DType dtype = shape.heads % 2 == 0 ? DType::f16 : DType::f32, sums = accumulator_of(dtype);
      Runtime runtime = backend.runtime();
      RandomMatrices random(16);
      reference::Edges edges = random_edges(random, 61, 203);
      edges.nodes = 83;  // halo nodes lie where the spare rows of owned nodes do
      for (size_t e = 0; e < edges.senders.size(); e += 3)
        edges.senders[e] = static_cast<int32_t>(61 + e % 22);
      AttentionCase c(runtime, random, shape, edges, dtype);
      const EdgeAttentionForward tight = c.forward(runtime);
      backend.kernels->attention.edge_attention_forward(tight, runtime.stream());
      const EdgeAttentionBackward tight_back = c.backward(runtime, tight, false);
      backend.kernels->attention.edge_attention_backward(tight_back, runtime, runtime.stream());

      const Graph roomy = with_spare_rows(runtime, c.graph, kSpare);
      EdgeAttentionForward done = tight;
      done.inputs.graph = &roomy;
      const auto spacious = [&](Tensor& tensor, const Matrix& matrix) {
        if (tensor.defined()) tensor = to_tensor(runtime, with_spare_rows(matrix, kSpare), tensor.dtype());
      };
      spacious(done.inputs.values, c.ref.values);
      spacious(done.inputs.sender_scores, c.ref.sender_scores);
      spacious(done.inputs.receiver_scores, c.ref.receiver_scores);
      spacious(done.inputs.keys, c.ref.keys);
      spacious(done.inputs.queries, c.ref.queries);
      spacious(done.inputs.edge_scores, c.ref.edge_scores);
      done.out = unwritten(runtime, {tight.out.rows() + kSpare, tight.out.width()}, dtype);
      done.log_sums = unwritten(runtime, {tight.log_sums.rows() + kSpare, shape.heads}, sums);
      backend.kernels->attention.edge_attention_forward(done, runtime.stream());
      EdgeAttentionBackward back = tight_back;
      back.inputs = done.inputs;
      back.out = done.out;
      back.log_sums = done.log_sums;
      spacious(back.d_out, c.d_out);
      for (Tensor* const tensor : {&back.d_values, &back.d_sender_scores, &back.d_receiver_scores,
                                   &back.d_keys, &back.d_queries, &back.d_edge_scores}) {
        if (tensor->defined())
          *tensor = unwritten(runtime, {tensor->rows() + kSpare, tensor->width()}, tensor->dtype());
      }
      if (back.d_weight.defined())
        back.d_weight = to_vector(runtime, Matrix(1, back.d_weight.elements(), kGradientStart), sums);
      backend.kernels->attention.edge_attention_backward(back, runtime, runtime.stream());
      // The same bits as without spare rows, which keep theirs.
      const auto check = [&](const Tensor& tensor, const Tensor& expected) {
        CHECK(equal_bits(tensor.row_range(0, expected.rows()), expected));
        const Tensor rest = tensor.row_range(expected.rows(), tensor.rows());
        CHECK(equal_bits(rest, unwritten(runtime, rest.shape(), rest.dtype())));
      };
      check(done.out, tight.out);
      check(done.log_sums, tight.log_sums);
      const NamedTensors expected = AttentionCase::gradients(tight_back);
      size_t i = 0;
      for (const auto& [name, tensor] : AttentionCase::gradients(back)) {
        const Tensor& of = expected[i++].second;
        if (!of.defined()) continue;
        if (name == "d_weight") {
          CHECK(equal_bits(tensor, of));
        } else {
          check(tensor, of);
        }
      }
    }
  }
}

}  // namespace
}  // namespace meshgrad::test
