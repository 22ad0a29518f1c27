// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "edge_case.h"
#include "ghost_case.h"

namespace meshgrad::test {
namespace {

const std::vector<EdgeShape>& edge_shapes() {
  static const std::vector<EdgeShape> list = {
      {128, {{128}, 128, 3, 128, Activation::relu, Norm::layer}, true, false},
      {128, {{128}, 128, 3, 128, Activation::relu, Norm::layer}, true, true},
      {33, {{33}, 33, 2, 33, Activation::silu, Norm::rms}, true, true},
      {16, {{3}, 16, 3, 11, Activation::gelu, Norm::layer}, false, false},
      {31, {{64}, 64, 4, 64, Activation::tanh, Norm::none}, true, false},
      {1, {{1}, 2, 2, 1, Activation::tanh, Norm::none}, false, true},
      {7, {{129}, 0, 1, 129, Activation::none, Norm::layer}, true, false},
      {33, {{0}, 16, 3, 16, Activation::silu, Norm::layer}, false, false},  // edges without features
      {128, {{0}, 128, 3, 128, Activation::relu, Norm::layer}, false, false}};
  return list;
}

struct GraphSize {
  int64_t nodes, edges;
};
/// Zero edges, one node with self loops only, more nodes than edges, a mesh's ratio, and enough edges for
/// many slabs.
constexpr GraphSize kGraphSizes[] = {
    {0, 0},    {1, 0},   {1, 31},   {33, 0},     {33, 127},
    {211, 33}, {129, 1}, {31, 211}, {407, 2003}, {2, 900}};  // more slabs than receivers

template <class Body>
void for_each_edge_case(Body&& body) {
  uint64_t seed = 400;
  for (const Backend& backend : backends()) {
    for (const EdgeShape& shape : edge_shapes()) {
      for (const DType dtype : backend.storage_types) {
        for (const GraphSize& size : kGraphSizes) {
          if (size.edges > 500 && backend.slow) continue;
          if (size.edges > 1000 && shape.mlp.hidden > 33) continue;  // the reference is slow
          if (backend.slow && size.nodes > 1 && size.edges < 100) continue;
          const std::string text = shape.mlp.text();
          const uint64_t this_seed = seed++;
          if (size.edges > 500 && shape.mlp.hidden > 64) continue;
          CAPTURE(backend.name);
          CAPTURE(text);
          CAPTURE(name_of(dtype));
          CAPTURE(size.nodes);
          CAPTURE(size.edges);
          CAPTURE(this_seed);
          RandomMatrices random(this_seed);
          Runtime runtime = backend.runtime();
          body(backend, runtime, random,
               EdgeCase(runtime, random, shape, random_edges(random, size.nodes, size.edges), dtype));
        }
      }
    }
  }
}

TEST_CASE("edge update agrees with the reference") {
  for_each_edge_case([](const Backend& backend, Runtime& runtime, RandomMatrices&, const EdgeCase& edge) {
    const EdgeUpdateForward args = edge.forward(runtime);
    backend.kernels->message_passing.edge_forward(args, runtime, runtime.stream());
    const auto ref =
        reference::edge_update(edge.update, edge.connectivity, edge.terms, edge.mlp.input_values[0]);
    CHECK(difference(args.edges_out, ref.edges_out, edge.row_terms()) == "");
    CHECK(difference(args.aggregate, ref.aggregate, edge.sum_terms()) == "");
    check_saved(args.saved, edge.mlp.ref, ref.mlp, edge.row_terms());
  });
}

TEST_CASE("edge update's gradients agree with the reference") {
  for_each_edge_case(
      [](const Backend& backend, Runtime& runtime, RandomMatrices& random, const EdgeCase& edge) {
        const EdgeUpdateForward done = edge.forward(runtime);
        backend.kernels->message_passing.edge_forward(done, runtime, runtime.stream());
        const EdgeGradients gradients(runtime, random, edge);
        const EdgeUpdateBackward args = edge.backward(runtime, done, gradients);
        backend.kernels->message_passing.edge_backward(args, runtime, runtime.stream());

        check_backward(edge, args, gradients, edge.reference_gradients());
      });
}

TEST_CASE("edge update recomputes what was not kept, bit for bit") {
  for_each_edge_case(
      [](const Backend& backend, Runtime& runtime, RandomMatrices& random, const EdgeCase& edge) {
        const EdgeUpdateForward kept = edge.forward(runtime, true);
        const EdgeUpdateForward dropped = edge.forward(runtime, false);
        backend.kernels->message_passing.edge_forward(kept, runtime, runtime.stream());
        backend.kernels->message_passing.edge_forward(dropped, runtime, runtime.stream());
        check_equal_bits({{"edges_out", kept.edges_out}, {"aggregate", kept.aggregate}},
                         {{"edges_out", dropped.edges_out}, {"aggregate", dropped.aggregate}});
        EdgeUpdateForward nothing = dropped;
        nothing.saved = MlpSaved{};
        std::vector<NamedTensors> results;
        std::vector<const EdgeUpdateForward*> records = {&kept, &dropped};
        if (!edge.mlp.fused(backend)) records.push_back(&nothing);
        for (const EdgeUpdateForward* done : records) {
          RandomMatrices same_start(random.seed() + 1);
          const EdgeGradients gradients(runtime, same_start, edge);
          const EdgeUpdateBackward args = edge.backward(runtime, *done, gradients);
          backend.kernels->message_passing.edge_backward(args, runtime, runtime.stream());
          results.push_back(gradients.all());
          results.back().emplace_back("d_edges", args.d_edges);
          results.back().emplace_back("d_nodes", args.d_nodes);
        }
        for (size_t i = 1; i < results.size(); ++i) check_equal_bits(results[0], results[i]);
      });
}

TEST_CASE("edge update: d_edges may lie where d_edges_out does") {
  for_each_edge_case(
      [](const Backend& backend, Runtime& runtime, RandomMatrices& random, const EdgeCase& edge) {
        if (edge.mlp.shape.inputs[0] != edge.mlp.shape.out) return;
        const EdgeUpdateForward done = edge.forward(runtime);
        backend.kernels->message_passing.edge_forward(done, runtime, runtime.stream());
        RandomMatrices same_start(random.seed() + 1);
        const EdgeGradients apart(runtime, random, edge);
        const EdgeGradients together(runtime, random, edge);
        const EdgeUpdateBackward a = edge.backward(runtime, done, apart);
        EdgeUpdateBackward b = edge.backward(runtime, done, together);
        b.d_edges = b.d_edges_out;
        backend.kernels->message_passing.edge_backward(a, runtime, runtime.stream());
        backend.kernels->message_passing.edge_backward(b, runtime, runtime.stream());
        CHECK(equal_bits(a.d_edges, b.d_edges));
        CHECK(equal_bits(a.d_nodes, b.d_nodes));
        check_backward(edge, b, together, edge.reference_gradients());
      });
}

TEST_CASE("edge update of the last block has no edges out") {
  for_each_edge_case(
      [](const Backend& backend, Runtime& runtime, RandomMatrices& random, const EdgeCase& edge) {
        EdgeUpdateForward done = edge.forward(runtime);
        EdgeUpdateForward full = edge.forward(runtime);
        done.edges_out = Tensor();
        backend.kernels->message_passing.edge_forward(done, runtime, runtime.stream());
        backend.kernels->message_passing.edge_forward(full, runtime, runtime.stream());
        CHECK(equal_bits(done.aggregate, full.aggregate));

        const EdgeGradients gradients(runtime, random, edge);
        EdgeUpdateBackward args = edge.backward(runtime, done, gradients);
        args.d_edges_out = Tensor();
        const bool wanted = random.seed() % 2 == 0;
        if (!wanted) args.d_edges = Tensor();
        backend.kernels->message_passing.edge_backward(args, runtime, runtime.stream());
        check_backward(edge, args, gradients,
                       reference::edge_update_backward(edge.update, edge.connectivity, edge.terms,
                                                       edge.mlp.input_values[0], {}, edge.d_aggregate));
      });
}

TEST_CASE("edge update adds to the nodes' gradient where asked") {
  for_each_edge_case(
      [](const Backend& backend, Runtime& runtime, RandomMatrices& random, const EdgeCase& edge) {
        const EdgeUpdateForward done = edge.forward(runtime);
        backend.kernels->message_passing.edge_forward(done, runtime, runtime.stream());
        reference::EdgeUpdateGradients ref = edge.reference_gradients();

        const EdgeGradients added(runtime, random, edge);
        EdgeUpdateBackward args = edge.backward(runtime, done, added);
        const Matrix start = edge.mlp.values(random, edge.graph.nodes, edge.terms.nodes.cols);
        args.d_nodes = to_tensor(runtime, start, edge.mlp.dtype);
        args.accumulate_d_nodes = true;
        backend.kernels->message_passing.edge_backward(args, runtime, runtime.stream());
        const Matrix alone = ref.d_nodes;
        ref.d_nodes = sum(alone, start);
        check_backward(edge, args, added, ref);

        const EdgeGradients unused(runtime, random, edge);
        args = edge.backward(runtime, done, unused);
        const Tensor sender_weight = args.d_sender_weight, receiver_weight = args.d_receiver_weight;
        (random.seed() % 2 == 0 ? args.d_sender_weight : args.d_receiver_weight) = Tensor();
        if (random.seed() % 3 == 0) args.d_nodes = Tensor();
        backend.kernels->message_passing.edge_backward(args, runtime, runtime.stream());
        const int64_t terms = 2 * edge.sum_terms();
        const auto check_optional = [&](const Tensor& wanted, const Tensor& memory, const Matrix& began,
                                        const Matrix& gradient) {
          const Matrix expected = wanted.defined() ? sum(began, gradient) : began;
          CHECK(difference(memory, expected, terms, edge.flowing(), edge.mlp.dtype) == "");
        };
        check_optional(args.d_sender_weight, sender_weight, unused.sender_start, ref.d_sender_weight);
        check_optional(args.d_receiver_weight, receiver_weight, unused.receiver_start, ref.d_receiver_weight);
        if (args.d_nodes.defined()) CHECK(difference(args.d_nodes, alone, terms, edge.flowing()) == "");
        check_gradients(unused, in_order(edge.mlp, ref.mlp), terms, edge.flowing());
      });
}

TEST_CASE("edge update with halo nodes, which send and never receive") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      Runtime runtime = backend.runtime();
      RandomMatrices random(12);
      reference::Edges edges = random_edges(random, 61, 203);
      edges.nodes = 83;
      for (size_t e = 0; e < edges.senders.size(); e += 3)
        edges.senders[e] = static_cast<int32_t>(61 + e % 22);
      const EdgeCase edge(runtime, random, edge_shapes()[2], edges, dtype);
      REQUIRE(edge.graph.owned_nodes == 61);
      REQUIRE(edge.graph.nodes == 83);
      const EdgeUpdateForward done = edge.forward(runtime);
      backend.kernels->message_passing.edge_forward(done, runtime, runtime.stream());
      const auto ref = reference::edge_update(edge.update, edges, edge.terms, edge.mlp.input_values[0]);
      CHECK(difference(done.edges_out, ref.edges_out, edge.row_terms()) == "");
      CHECK(difference(done.aggregate, ref.aggregate, edge.sum_terms()) == "");
      const EdgeGradients gradients(runtime, random, edge);
      const EdgeUpdateBackward args = edge.backward(runtime, done, gradients);
      backend.kernels->message_passing.edge_backward(args, runtime, runtime.stream());
      check_backward(edge, args, gradients, edge.reference_gradients());
    }
  }
}

/// Inputs of an edge update in which the first 400 of 500 receivers have no edge from the 80 ghosts.
EdgeCase case_with_border(Runtime& runtime, const EdgeShape& shape, DType dtype) {
  RandomMatrices random(14);
  reference::Edges edges = random_edges(random, 500, 3001);
  edges.nodes = 580;
  for (size_t e = 0; e < edges.senders.size(); ++e)
    if (edges.receivers[e] >= 400 && e % 2 == 0) edges.senders[e] = static_cast<int32_t>(500 + e % 80);
  EdgeCase edge(runtime, random, shape, edges, dtype);
  edge.terms.nodes = random.normal(580, shape.node_width);  // off the grid, as above
  edge.d_aggregate = random.normal(500, shape.mlp.out);
  edge.d_edges_out = random.normal(edge.graph.edges, shape.mlp.out);
  return edge;
}

TEST_CASE("edge update overlaps an exchange with the same bits") {
  REQUIRE_FALSE(backends().empty());
  for (const Backend& backend : backends()) {
    if (backend.device.kind != DeviceKind::cpu) continue;
    for (const DType dtype : backend.storage_types) {
      for (const bool keep : {true, false}) {
        CAPTURE(name_of(dtype));
        Runtime runtime = backend.runtime(3);
        const EdgeShape& shape = edge_shapes()[2];
        const EdgeCase edge = case_with_border(runtime, shape, dtype);
        const auto& kernels = backend.kernels->message_passing;
        const EdgeUpdateForward expected = edge.forward(runtime, keep);
        kernels.edge_forward(expected, runtime, runtime.stream());
        EdgeUpdateForward args = edge.forward(runtime, keep);
        const auto ghosts_of = [](const Tensor& nodes) { return nodes.row_range(500, 580); };
        const auto first_row_equals = [](const Tensor& a, const Tensor& b) {
          return std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.width() * size_of(a.dtype()))) == 0;
        };
        copy(unwritten(runtime, {80, shape.node_width}, dtype), ghosts_of(args.terms.nodes),
             runtime.stream());
        int calls = 0;
        const GhostExchange fetch{.interior = 400, .border_receivers = {}, .border_offsets = {}, .call = [&] {
                                    ++calls;
                                    CHECK(first_row_equals(args.edges_out, expected.edges_out));
                                    copy(ghosts_of(expected.terms.nodes), ghosts_of(args.terms.nodes),
                                         runtime.stream());
                                  }};
        args.ghosts = &fetch;
        kernels.edge_forward(args, runtime, runtime.stream());
        CHECK(calls == 1);
        check_equal_bits({{"edges_out", expected.edges_out}, {"aggregate", expected.aggregate}},
                         {{"edges_out", args.edges_out}, {"aggregate", args.aggregate}});

        RandomMatrices first(15), second(15);
        const EdgeGradients whole(runtime, first, edge), split(runtime, second, edge);
        const EdgeUpdateBackward at_once = edge.backward(runtime, expected, whole);
        kernels.edge_backward(at_once, runtime, runtime.stream());
        EdgeUpdateBackward back = edge.backward(runtime, args, split);
        const GhostExchange send{.interior = 400, .border_receivers = {}, .border_offsets = {}, .call = [&] {
                                   ++calls;
                                   check_equal_bits({{"ghosts", ghosts_of(at_once.d_nodes)}},
                                                    {{"ghosts", ghosts_of(back.d_nodes)}});
                                   CHECK_FALSE(first_row_equals(back.d_edges, at_once.d_edges));
                                 }};
        back.ghosts = &send;
        kernels.edge_backward(back, runtime, runtime.stream());
        CHECK(calls == 2);
        check_equal_bits(whole.all(), split.all());
        check_equal_bits({{"d_edges", at_once.d_edges}, {"d_nodes", at_once.d_nodes}},
                         {{"d_edges", back.d_edges}, {"d_nodes", back.d_nodes}});
      }
    }
  }
}

TEST_CASE("edge update on a GPU exchanges ghosts between launches") {
  REQUIRE_FALSE(backends().empty());
  for (const Backend& backend : backends()) {
    if (backend.device.kind == DeviceKind::cpu) continue;
    for (const DType dtype : backend.storage_types) {
      for (const EdgeShape& shape : {edge_shapes()[0], edge_shapes()[1], edge_shapes()[2]}) {
        for (const int64_t interior : {40, 0, 61}) {
          if (interior != 40 && shape.mlp.hidden == 33) continue;
          const std::string text = shape.mlp.text();
          CAPTURE(text);
          CAPTURE(name_of(dtype));
          CAPTURE(interior);
          Runtime runtime = backend.runtime();
          RandomMatrices random(17);
          reference::Edges edges = random_edges(random, 61, 203);
          edges.nodes = interior == 61 ? 61 : 83;
          for (size_t e = 0; e < edges.senders.size(); ++e)
            if (edges.receivers[e] >= interior && e % 2 == 0)
              edges.senders[e] = static_cast<int32_t>(61 + e % 22);
          const EdgeCase edge(runtime, random, shape, edges, dtype);
          const auto& kernels = backend.kernels->message_passing;
          const bool keep = dtype == DType::f32 && shape.mlp.hidden == 33;
          const EdgeUpdateForward expected = edge.forward(runtime, keep);
          kernels.edge_forward(expected, runtime, runtime.stream());
          EdgeUpdateForward args = edge.forward(runtime, keep);
          const auto ghosts_of = [&](const Tensor& nodes) { return nodes.row_range(61, edges.nodes); };
          copy(unwritten(runtime, {edges.nodes - 61, shape.node_width}, dtype), ghosts_of(args.terms.nodes),
               runtime.stream());
          int calls = 0;
          GhostExchange exchange = exchange_of(runtime, edges, interior);
          exchange.call = [&] {
            ++calls;
            copy(ghosts_of(expected.terms.nodes), ghosts_of(args.terms.nodes), runtime.stream());
          };
          args.ghosts = &exchange;
          kernels.edge_forward(args, runtime, runtime.stream());
          CHECK(calls == 1);
          if (edge.mlp.fused(backend) || backend.slow) {
            check_equal_bits({{"edges_out", expected.edges_out}, {"aggregate", expected.aggregate}},
                             {{"edges_out", args.edges_out}, {"aggregate", args.aggregate}});
          } else {  // a GPU's cuBLASLt chooses its algorithm by the number of rows
            const auto ref =
                reference::edge_update(edge.update, edge.connectivity, edge.terms, edge.mlp.input_values[0]);
            CHECK(difference(args.edges_out, ref.edges_out, edge.row_terms()) == "");
            CHECK(difference(args.aggregate, ref.aggregate, edge.sum_terms()) == "");
          }

          const EdgeGradients gradients(runtime, random, edge);
          EdgeUpdateBackward back = edge.backward(runtime, args, gradients);
          Tensor sent;
          exchange.call = [&] {
            ++calls;
            sent = to_host(ghosts_of(back.d_nodes), runtime.stream());
          };
          back.ghosts = &exchange;
          kernels.edge_backward(back, runtime, runtime.stream());
          CHECK(calls == 2);
          check_equal_bits({{"ghosts", sent}}, {{"ghosts", ghosts_of(back.d_nodes)}});
          check_backward(edge, back, gradients, edge.reference_gradients());
        }
      }
    }
  }
}

TEST_CASE("edge update has the same bits for any number of threads") {
  for (const Backend& backend : backends()) {
    for (const DType dtype : backend.storage_types) {
      for (const EdgeShape& shape : {edge_shapes()[0], edge_shapes()[2]}) {
        const std::string text = shape.mlp.text();
        CAPTURE(text);
        CAPTURE(name_of(dtype));
        std::vector<NamedTensors> results;
        for (const int threads : backend.thread_counts()) {
          Runtime runtime = backend.runtime(threads);
          RandomMatrices random(13);
          EdgeCase edge(runtime, random, shape, random_edges(random, backend.many(907), backend.many(5003)),
                        dtype);
          // Values off the grid: exact sums would hide a change of order.
          edge.terms.nodes = random.normal(edge.graph.nodes, shape.node_width);
          edge.d_aggregate = random.normal(edge.graph.nodes, shape.mlp.out);
          edge.d_edges_out = random.normal(edge.graph.edges, shape.mlp.out);
          const EdgeUpdateForward done = edge.forward(runtime, threads != 3);
          backend.kernels->message_passing.edge_forward(done, runtime, runtime.stream());
          const EdgeGradients gradients(runtime, random, edge);
          const EdgeUpdateBackward args = edge.backward(runtime, done, gradients);
          backend.kernels->message_passing.edge_backward(args, runtime, runtime.stream());
          NamedTensors all = gradients.all();
          all.insert(all.end(), {{"edges_out", done.edges_out},
                                 {"aggregate", done.aggregate},
                                 {"pre_norm", done.saved.pre_norm},
                                 {"d_edges", args.d_edges},
                                 {"d_nodes", args.d_nodes}});
          results.push_back(std::move(all));
        }
        for (size_t i = 1; i < results.size(); ++i) check_equal_bits(results[0], results[i]);
      }
    }
  }
}

TEST_CASE("edge update says which argument does not fit") {
  Runtime runtime = make_runtime();
  RandomMatrices random(14);
  const EdgeShape shape{5, {{6}, 8, 2, 6, Activation::relu, Norm::none}, true, false};
  const EdgeCase edge(runtime, random, shape, random_edges(random, 7, 19), DType::f32);
  const auto forward_error = [&](auto&& change) {
    EdgeUpdateForward args = edge.forward(runtime);
    change(args);
    return invalid_argument_text([&] { kernels::edge_update_forward(args, runtime, runtime.stream()); });
  };
  CHECK(forward_error([](EdgeUpdateForward&) {}) == "");
  std::string text = forward_error([](EdgeUpdateForward& a) { a.graph = nullptr; });
  CHECK_MESSAGE((contains(text, "edge_update.forward") && contains(text, "graph")), text);
  text = forward_error([&](EdgeUpdateForward& a) { a.terms.nodes = unwritten(runtime, {6, 5}, DType::f32); });
  CHECK_MESSAGE((contains(text, "nodes") && contains(text, "[7, 5]") && contains(text, "[6, 5]")), text);
  text = forward_error([&](EdgeUpdateForward& a) {
    a.terms.receiver_weight = unwritten(runtime, {5, 8}, DType::f64);
  });
  CHECK_MESSAGE((contains(text, "receiver_weight") && contains(text, "f32") && contains(text, "f64")), text);
  text = forward_error([&](EdgeUpdateForward& a) { a.edges.x = unwritten(runtime, {18, 6}, DType::f32); });
  CHECK_MESSAGE((contains(text, "[19, 6]") && contains(text, "[18, 6]")), text);
  text = forward_error([&](EdgeUpdateForward& a) {
    a.edges = {unwritten(runtime, {19, 5}, DType::f32), unwritten(runtime, {5, 8}, DType::f32)};
  });
  CHECK_MESSAGE((contains(text, "residual") && contains(text, "5 and 6")), text);
  text = forward_error([&](EdgeUpdateForward& a) { a.aggregate = unwritten(runtime, {19, 6}, DType::f32); });
  CHECK_MESSAGE((contains(text, "aggregate") && contains(text, "[7, 6]") && contains(text, "[19, 6]")), text);

  const EdgeGradients gradients(runtime, random, edge);
  const auto backward_error = [&](auto&& change) {
    EdgeUpdateBackward args = edge.backward(runtime, edge.forward(runtime, false), gradients);
    change(args);
    return invalid_argument_text([&] { kernels::edge_update_backward(args, runtime, runtime.stream()); });
  };
  CHECK(backward_error([](EdgeUpdateBackward&) {}) == "");
  text = backward_error([&](EdgeUpdateBackward& a) {
    a.d_sender_weight = unwritten(runtime, {5, 7}, DType::f32);
  });
  CHECK_MESSAGE((contains(text, "edge_update.backward: d_sender_weight") && contains(text, "[5, 7]")), text);
  text = backward_error([&](EdgeUpdateBackward& a) {
    a.d_edges_out = unwritten(runtime, {7, 6}, DType::f32);
  });
  CHECK_MESSAGE((contains(text, "d_edges_out") && contains(text, "[19, 6]")), text);
  text = backward_error([&](EdgeUpdateBackward& a) { a.d_weights.weights.clear(); });
  CHECK_MESSAGE(contains(text, "gradients"), text);
}

}  // namespace
}  // namespace meshgrad::test
