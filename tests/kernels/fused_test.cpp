// SPDX-License-Identifier: Apache-2.0
// The fused kernels on tensor cores against the reference, with the rounding of 16-bit storage followed step
// by step (bounded.h). Inputs and weights are on a grid on which every sum of the forward pass is exact in
// f32, so that the reference's hidden activations, rounded as they are stored, are the kernels' own.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/kernels/tables.h>

#include "fused_case.h"
#include "ghost_case.h"

#include <algorithm>

namespace meshgrad::test {
namespace {

/// simt/kernels_132: many simulated multiprocessors, each of which loads all weights. What is new there is
/// that a warp has one tile or none, and a divided receiver hundreds of parts; what differs in types and
/// layers alone is left to the run with few.
bool many_multiprocessors() { return gpu::tested_multiprocessors(0, 1000) > 100; }
std::vector<DType> storage_types() {
  return many_multiprocessors() ? std::vector{DType::f16} : std::vector{DType::f16, DType::bf16};
}

using reference::Edges;

struct MlpShapeOf {
  std::vector<int64_t> inputs;
  int64_t width, layers, out;
  Norm norm;
  bool residual;
};

void check_mlp(const MlpShapeOf& shape, DType dtype, int64_t rows, int64_t capacity, uint64_t seed) {
  const std::string text =
      fmt::format("inputs {} width {} layers {} out {} {} rows {} of {} seed {}", shape.inputs.size(),
                  shape.width, shape.layers, shape.out, name_of(shape.norm), rows, capacity, seed);
  CAPTURE(text);
  CAPTURE(name_of(dtype));
  Gpu gpu;
  RandomMatrices random(seed);
  const FusedMlp mlp(gpu, random, shape.inputs, shape.width, shape.layers, shape.out, shape.norm, dtype);
  const std::vector<int64_t> counts{rows};
  const Tensor count = Tensor::from<int64_t>(gpu.runtime, counts, Shape{1}, Tag::data);
  MlpForward forward;
  forward.rows = capacity == rows ? Rows(rows) : Rows(capacity, count.data<int64_t>());
  std::vector<Matrix> x;
  for (size_t i = 0; i < shape.inputs.size(); ++i) {
    x.push_back(random.grid(rows, shape.inputs[i], 0.125, 1.0));
    forward.inputs.push_back(
        {gpu.tensor(x[i], dtype, capacity), gpu.tensor(mlp.ref.first_weights[i], dtype)});
  }
  forward.weights = mlp.weights;
  if (shape.residual) forward.residual = forward.inputs[0].x;
  forward.out = gpu.unwritten(capacity, shape.out, dtype);
  const int64_t launches = gpu::counters().launches;
  kernels::gpu_tables().mlp.forward(forward, gpu.runtime, gpu.stream());
  CHECK(gpu::counters().launches - launches == (capacity == 0 ? 0 : 1));

  Matrix z = reference::linear(x[0], mlp.ref.first_weights[0], mlp.ref.first_bias);
  for (size_t i = 1; i < x.size(); ++i)
    z = reference::sum(z, reference::linear(x[i], mlp.ref.first_weights[i]));
  const std::vector<Matrix> sums = mlp.sums(z);
  Bounded y = mlp.finished(sums.back());
  if (shape.residual) y = sum(y, Bounded(x[0]));
  CHECK(outside(gpu.download(forward.out, rows), stored(dtype, y)) == "");

  MlpBackward backward;
  backward.rows = forward.rows;
  backward.inputs = forward.inputs;
  backward.weights = forward.weights;
  const Matrix d_y = random.grid(rows, shape.out, 0.125, 1.0);
  backward.d_out = gpu.tensor(d_y, dtype, capacity);
  Started started;
  backward.d_weights = started.of(gpu, random, mlp);
  std::vector<Matrix> d_x_before;
  for (size_t i = 0; i < shape.inputs.size(); ++i) {
    const bool in_place = shape.residual && i == 0;
    d_x_before.push_back(in_place ? d_y : random.grid(rows, shape.inputs[i], 0.125, 1.0));
    backward.d_inputs.push_back(in_place ? backward.d_out : gpu.tensor(d_x_before[i], dtype, capacity));
    backward.accumulate.push_back(i % 2 == 0);
    backward.d_first_weights.push_back(started.add(gpu, random, shape.inputs[i], shape.width));
  }
  kernels::gpu_tables().mlp.backward(backward, gpu.runtime, gpu.stream());

  FusedGradients ref(mlp, sums, d_y);
  const Bounded d_first = stored(dtype, ref.d_first);
  for (const Matrix& input : x) ref.of_weights.push_back(weight_gradient(input, d_first));
  started.check(gpu, ref.of_weights);
  for (size_t i = 0; i < x.size(); ++i) {
    Bounded d_x = product(d_first, transposed(mlp.ref.first_weights[i]));
    if (backward.accumulate[i]) d_x = sum(d_x, Bounded(d_x_before[i]));
    CAPTURE(i);
    CHECK(outside(gpu.download(backward.d_inputs[i], rows), stored(dtype, d_x)) == "");
  }
}

TEST_CASE("fused mlp agrees with the reference" * doctest::skip(cuda_devices().empty())) {
  const std::vector<MlpShapeOf> shapes = {
      {{128, 128}, 128, 3, 128, Norm::layer, true}, {{64, 64, 64}, 64, 3, 64, Norm::layer, false},
      {{3}, 128, 3, 128, Norm::layer, false},       {{11, 64}, 64, 2, 64, Norm::rms, false},
      {{128}, 128, 3, 2, Norm::none, false},        {{64}, 64, 4, 64, Norm::none, true},
      {{32, 1}, 64, 4, 32, Norm::none, false},      {{8, 24}, 64, 3, 16, Norm::none, false}};
  uint64_t seed = 900;
  for (const DType dtype : storage_types()) {
    for (const MlpShapeOf& shape : shapes) check_mlp(shape, dtype, shape.width == 64 ? 129 : 33, 140, seed++);
  }
  for (const int64_t rows : {0, 1, 31, 33, 127, 1571}) check_mlp(shapes[1], DType::f16, rows, rows, seed++);
  check_mlp(shapes[5], DType::bf16, 0, 5, seed++);
}

TEST_CASE("fused mlp of width 256 agrees with the reference" * doctest::skip(cuda_devices().empty())) {
  check_mlp({{256, 256}, 256, 3, 256, Norm::layer, true}, DType::f16, 33, 40, 950);
  check_mlp({{4}, 256, 3, 3, Norm::none, false}, DType::bf16, 17, 17, 951);
}

struct EdgeShapeOf {
  int64_t width, layers;
  Norm norm = Norm::layer;
  bool residual = true, after_residual = false;
  bool last_block = false;  ///< neither e' nor the edges' gradient is needed
};

/// A graph with room for more than there is: indices after the real counts point nowhere.
Graph roomy_graph(Gpu& gpu, const Edges& edges, int64_t room) {
  Runtime host = make_runtime();
  const Graph exact = to_graph(host, edges);
  const auto upload = [&](const Tensor& index) {
    std::vector<int32_t> values(index.values<int32_t>().begin(), index.values<int32_t>().end());
    values.resize(values.size() + static_cast<size_t>(room), 1 << 28);
    return Tensor::from<int32_t>(gpu.runtime, values, Shape{static_cast<int64_t>(values.size())}, Tag::data);
  };
  Graph graph;
  graph.nodes = exact.nodes + room;
  graph.owned_nodes = exact.owned_nodes + room;
  graph.edges = exact.edges + room;
  graph.senders = upload(exact.senders);
  graph.receivers = upload(exact.receivers);
  graph.receiver_offsets = upload(exact.receiver_offsets);
  graph.sender_offsets = upload(exact.sender_offsets);
  graph.sender_order = upload(exact.sender_order);
  const std::vector<int64_t> counts{exact.nodes, exact.owned_nodes, exact.edges};
  if (room > 0) graph.counts = Tensor::from<int64_t>(gpu.runtime, counts, Shape{3}, Tag::data);
  return graph;
}

/// Both directions of an edge update on the device.
struct EdgeRun {
  Gpu gpu;
  RandomMatrices random;
  Edges edges;
  EdgeShapeOf shape;
  DType dtype;
  int64_t room;
  int64_t interior;  // -1: ghosts are there from the begin
  FusedMlp mlp;
  Graph graph;
  Matrix nodes, sender_weight, receiver_weight, e, d_e_out, d_aggregate, d_nodes_before;
  EdgeUpdateForward forward;
  EdgeUpdateBackward backward;
  Started started;

  EdgeRun(const EdgeShapeOf& of, const Edges& connectivity, DType type, int64_t room_behind, uint64_t seed,
          bool in_place = false, int64_t interior_receivers = -1)
      : random(seed),
        edges(connectivity),
        shape(of),
        dtype(type),
        room(room_behind),
        interior(interior_receivers),
        mlp(gpu, random, {of.width}, of.width, of.layers, of.width, of.norm, type),
        graph(roomy_graph(gpu, edges, room)) {
    const auto edge_count = static_cast<int64_t>(edges.senders.size());
    const int64_t width = shape.width;
    nodes = random.grid(edges.nodes, width, 0.125, 1.0);
    sender_weight = random.grid(width, width, 0.25, 0.5);
    receiver_weight = random.grid(width, width, 0.25, 0.5);
    e = random.grid(edge_count, width, 0.125, 1.0);
    d_e_out = random.grid(edge_count, width, 0.125, 1.0);
    d_aggregate = random.grid(edges.owned_nodes, width, 0.125, 1.0);
    d_nodes_before = random.grid(edges.nodes, width, 0.125, 1.0);
    run_forward();
    run_backward(in_place);
  }

  void run_forward() {
    forward.graph = &graph;
    forward.terms = {gpu.tensor(nodes, dtype, graph.nodes), gpu.tensor(sender_weight, dtype),
                     gpu.tensor(receiver_weight, dtype)};
    forward.edges = {gpu.tensor(e, dtype, graph.edges), gpu.tensor(mlp.ref.first_weights[0], dtype)};
    forward.weights = mlp.weights;
    forward.residual = shape.residual;
    forward.aggregate_after_residual = shape.after_residual;
    if (!shape.last_block) forward.edges_out = gpu.unwritten(graph.edges, shape.width, dtype);
    forward.aggregate = gpu.unwritten(graph.owned_nodes, shape.width, dtype);
    GhostExchange exchange;
    if (interior >= 0) {
      const Tensor ghosts = forward.terms.nodes.row_range(edges.owned_nodes, edges.nodes);
      const Tensor values = gpu.tensor(nodes, dtype).row_range(edges.owned_nodes, edges.nodes);
      copy(gpu.unwritten(ghosts.rows(), shape.width, dtype), ghosts, gpu.stream());
      exchange = exchange_of(gpu.runtime, edges, interior);
      exchange.call = [this, ghosts, values] { copy(values, ghosts, gpu.stream()); };
      forward.ghosts = &exchange;
    }
    const int64_t launches = gpu::counters().launches;
    kernels::gpu_tables().message_passing.edge_forward(forward, gpu.runtime, gpu.stream());
    CHECK(gpu::counters().launches - launches <= (interior >= 0 ? 4 : 2));
    forward.ghosts = nullptr;
  }

  void run_backward(bool in_place) {
    backward.graph = &graph;
    backward.terms = forward.terms;
    backward.edges = forward.edges;
    backward.weights = forward.weights;
    backward.residual = shape.residual;
    backward.aggregate_after_residual = shape.after_residual;
    if (!shape.last_block) {
      backward.d_edges_out = gpu.tensor(d_e_out, dtype, graph.edges);
      backward.d_edges = in_place ? backward.d_edges_out : gpu.unwritten(graph.edges, shape.width, dtype);
    }
    backward.d_aggregate = gpu.tensor(d_aggregate, dtype, graph.owned_nodes);
    backward.accumulate_d_nodes = shape.residual;
    backward.d_nodes = gpu.tensor(d_nodes_before, dtype, graph.nodes);
    backward.d_weights = started.of(gpu, random, mlp);
    for (Tensor* d_weight : {&backward.d_edge_weight, &backward.d_sender_weight, &backward.d_receiver_weight})
      *d_weight = started.add(gpu, random, shape.width, shape.width);
    GhostExchange exchange;
    Tensor sent;
    const auto ghosts = [this] { return backward.d_nodes.row_range(edges.owned_nodes, edges.nodes); };
    if (interior >= 0) {
      exchange = exchange_of(gpu.runtime, edges, interior);
      exchange.call = [&] { sent = to_host(ghosts(), gpu.stream()); };
      backward.ghosts = &exchange;
    }
    const int64_t launches = gpu::counters().launches;
    kernels::gpu_tables().message_passing.edge_backward(backward, gpu.runtime, gpu.stream());
    CHECK(gpu::counters().launches - launches <= (interior >= 0 ? 7 : 4));
    backward.ghosts = nullptr;
    if (interior >= 0) CHECK(bits_of(sent) == bits_of(to_host(ghosts(), gpu.stream())));
  }

  static std::string bits_of(const Tensor& host) {
    return {static_cast<const char*>(host.raw()), static_cast<size_t>(host.bytes())};
  }

  /// z of all layers, from terms that are stored in between.
  std::vector<Matrix> sums() const {
    const Matrix s = rounded(dtype, reference::linear(nodes, sender_weight));
    const Matrix r = rounded(dtype, reference::linear(nodes, receiver_weight));
    return mlp.sums(reference::sum(
        reference::linear(e, mlp.ref.first_weights[0], mlp.ref.first_bias),
        reference::sum(reference::gather(s, edges.senders), reference::gather(r, edges.receivers))));
  }

  void check_forward() {
    const Bounded y = mlp.finished(sums().back());
    const Bounded out = shape.residual ? sum(y, Bounded(e)) : y;
    const Bounded aggregate = scattered(shape.after_residual ? out : y, edges.receivers, edges.owned_nodes);
    CHECK(outside(gpu.download(forward.aggregate, edges.owned_nodes), stored(dtype, aggregate)) == "");
    if (!forward.edges_out.defined()) return;
    CHECK(outside(gpu.download(forward.edges_out, e.rows), stored(dtype, out)) == "");
  }

  void check_backward() {
    const Matrix from_aggregate = reference::gather(d_aggregate, edges.receivers);
    const Matrix d_y = shape.last_block ? from_aggregate : reference::sum(d_e_out, from_aggregate);
    FusedGradients ref(mlp, sums(), d_y);
    const Bounded d_first = stored(dtype, ref.d_first);
    const Bounded d_s = stored(dtype, scattered(d_first, edges.senders, edges.nodes));
    const Bounded d_r = stored(dtype, scattered(ref.d_first, edges.receivers, edges.owned_nodes));
    Matrix owned(edges.owned_nodes, shape.width);
    std::copy_n(nodes.v.begin(), owned.v.size(), owned.v.begin());
    ref.of_weights.push_back(weight_gradient(e, d_first));
    ref.of_weights.push_back(weight_gradient(nodes, d_s));
    ref.of_weights.push_back(weight_gradient(owned, d_r));
    started.check(gpu, ref.of_weights);

    Bounded d_nodes = product(d_s, transposed(sender_weight));
    Bounded from_receivers = product(d_r, transposed(receiver_weight));
    from_receivers.value.v.resize(d_nodes.value.v.size());  // halo nodes receive nothing
    from_receivers.error.v.resize(d_nodes.value.v.size());
    d_nodes = sum(d_nodes, from_receivers);
    if (backward.accumulate_d_nodes) d_nodes = sum(d_nodes, Bounded(d_nodes_before));
    CHECK(outside(gpu.download(backward.d_nodes, edges.nodes), stored(dtype, d_nodes)) == "");

    if (!backward.d_edges.defined()) return;
    Bounded d_e = product(d_first, transposed(mlp.ref.first_weights[0]));
    if (shape.residual) d_e = sum(d_e, Bounded(d_e_out));
    if (shape.residual && shape.after_residual) d_e = sum(d_e, Bounded(from_aggregate));
    CHECK(outside(gpu.download(backward.d_edges, e.rows), stored(dtype, d_e)) == "");
  }

  /// Every result's bits.
  std::vector<Tensor> results() {
    std::vector<Tensor> all = started.tensors;
    all.insert(all.end(), {forward.edges_out, forward.aggregate, backward.d_edges, backward.d_nodes});
    for (Tensor& tensor : all) tensor = to_host(tensor, gpu.stream());
    return all;
  }
};

void check_edges(const EdgeShapeOf& shape, int64_t nodes, int64_t edge_count, DType dtype, int64_t room,
                 uint64_t seed) {
  const std::string text = fmt::format(
      "width {} layers {} {}{}{}{} {} nodes {} edges room {} {} seed {}", shape.width, shape.layers,
      name_of(shape.norm), shape.residual ? " residual" : "", shape.after_residual ? " after" : "",
      shape.last_block ? " last" : "", nodes, edge_count, room, name_of(dtype), seed);
  CAPTURE(text);
  RandomMatrices random(seed + 5000);
  EdgeRun run(shape, random_edges(random, nodes, edge_count), dtype, room, seed);
  run.check_forward();
  run.check_backward();
}

TEST_CASE("fused edge update agrees with the reference" * doctest::skip(cuda_devices().empty())) {
  const std::vector<EdgeShapeOf> shapes = {{64, 3},
                                           {64, 3, Norm::layer, true, true},
                                           {64, 3, Norm::layer, true, false, true},
                                           {64, 4, Norm::rms, false, false},
                                           {64, 2, Norm::none, true, true}};
  uint64_t seed = 1000;
  for (const DType dtype : storage_types()) {
    for (const EdgeShapeOf& shape : shapes) {
      if (many_multiprocessors() && shape.norm != Norm::layer) continue;
      check_edges(shape, 61, 211, dtype, 3, seed++);
    }
    check_edges({128, 3}, 31, 129, dtype, 0, seed++);
    check_edges({128, 3, Norm::layer, true, true}, 61, 700, dtype, 5, seed++);  // several rounds
  }
  // Nothing; only nodes; a lone node; fewer edges than nodes; more tiles than warps.
  for (const auto& [nodes, edges] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 0}, {33, 0}, {1, 1}, {1, 31}, {211, 33}, {129, 127}, {307, 1571}})
    check_edges(shapes[0], nodes, edges, DType::f16, nodes % 2, seed++);
}

TEST_CASE("fused edge update of width 256 agrees with the reference" *
          doctest::skip(cuda_devices().empty() || !fuses_wide_edges())) {
  check_edges({256, 3}, 17, 67, DType::f16, 2, 1100);
  if (!many_multiprocessors()) check_edges({256, 2, Norm::layer, true, true}, 9, 33, DType::bf16, 0, 1101);
}

TEST_CASE("fused kernels with rms norm agree with the reference" *
          doctest::skip(cuda_devices().empty() || many_multiprocessors())) {
  uint64_t seed = 1150;
  for (const int64_t width : {64, 128, 256}) {
    const DType dtype = width == 128 ? DType::bf16 : DType::f16;
    check_mlp({{width, width}, width, 3, width, Norm::rms, true}, dtype, 33, 37, seed++);
    check_mlp({{5}, width, 2, width, Norm::rms, false}, dtype, 19, 19, seed++);
    if (width < 256 || fuses_wide_edges())
      check_edges({width, 3, Norm::rms, true, false}, 17, 67, dtype, 1, seed++);
  }
  check_edges({128, 2, Norm::rms, true, true, true}, 17, 67, DType::f16, 0, seed++);
}

TEST_CASE("fused edge update takes halo nodes, which never receive" * doctest::skip(cuda_devices().empty())) {
  RandomMatrices random(1200);
  Edges edges = random_edges(random, 41, 203);
  edges.nodes = 63;
  for (size_t e = 0; e < edges.senders.size(); e += 3) edges.senders[e] = static_cast<int32_t>(41 + e % 22);
  for (const int64_t room : {0, 5}) {
    EdgeRun run({64, 3}, edges, DType::f16, room, 1201);
    run.check_forward();
    run.check_backward();
  }
}

TEST_CASE("fused edge update exchanges ghosts between two launches" * doctest::skip(cuda_devices().empty())) {
  for (const int64_t interior : {29, 0, 41}) {
    RandomMatrices random(1200);
    Edges edges = random_edges(random, 41, 203);
    edges.nodes = interior == 41 ? 41 : 63;
    for (size_t e = 0; e < edges.senders.size(); ++e)
      if (edges.receivers[e] >= interior && e % 2 == 0) edges.senders[e] = static_cast<int32_t>(41 + e % 22);
    CAPTURE(interior);
    EdgeRun run({64, 3, Norm::layer, true, interior == 0}, edges, interior == 0 ? DType::bf16 : DType::f16, 0,
                1202, interior == 29, interior);
    run.check_forward();
    run.check_backward();
  }
  // A hub on each side, whose edges are divided among warps.
  RandomMatrices random(1203);
  Edges edges = random_edges(random, 41, 1203);
  edges.nodes = 63;
  for (size_t e = 0; e < edges.receivers.size(); ++e)
    edges.receivers[e] = e < 400 ? 3 : e < 800 ? 35 : 36 + static_cast<int32_t>(e / 300);
  for (size_t e = 401; e < edges.senders.size(); e += 2) edges.senders[e] = static_cast<int32_t>(41 + e % 22);
  EdgeRun run({64, 2}, edges, DType::f16, 0, 1204, false, 20);
  run.check_forward();
  run.check_backward();
}

TEST_CASE("fused edge update has the same bits in every run" * doctest::skip(cuda_devices().empty())) {
  RandomMatrices random(1300);
  const Edges edges = random_edges(random, 61, 307);
  for (const DType dtype : storage_types()) {
    const EdgeShapeOf shape{dtype == DType::f16 ? 128 : 64, 3};
    EdgeRun first(shape, edges, dtype, 0, 1301);
    EdgeRun again(shape, edges, dtype, 0, 1301);
    EdgeRun in_place(shape, edges, dtype, 0, 1301, true);
    const std::vector<Tensor> expected = first.results();
    const std::vector<Tensor> repeated = again.results();
    const std::vector<Tensor> aliased = in_place.results();
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK(equal_bits(expected[i], repeated[i]));
      CHECK(equal_bits(expected[i], aliased[i]));
    }
    EdgeRun roomy(shape, edges, dtype, 11, 1301);
    for (size_t i = 0; i < roomy.started.tensors.size(); ++i) {
      CAPTURE(i);
      CHECK(equal_bits(expected[i], to_host(roomy.started.tensors[i], roomy.gpu.stream())));
    }
  }
}

/// Receiver `longest` of 40 has most of the edges, 23 has enough to be divided, and some have none.
Edges with_hubs(RandomMatrices& random, int64_t edge_count, size_t longest) {
  Edges edges = random_edges(random, 40, edge_count);
  for (size_t e = 0; e < edges.receivers.size(); ++e) {
    const size_t share = 40 * e / edges.receivers.size();
    edges.receivers[e] = share < 30 ? static_cast<int32_t>(std::min(share, longest)) : share < 35 ? 23 : 39;
  }
  return edges;
}

TEST_CASE("fused edge update divides long receivers among warps" * doctest::skip(cuda_devices().empty())) {
  const EdgeShapeOf shape{64, 2, Norm::none};
  // With many multiprocessors 375 warps have one edge of the longest receiver, and nearly half have none.
  struct Hubs {
    int64_t edge_count, room;
    size_t longest;
  };
  for (const auto& [edge_count, room, longest] :
       many_multiprocessors() ? std::vector<Hubs>{{600, 0, 5}}
                              : std::vector<Hubs>{{300, 0, 5}, {2111, 7, 0}, {2111, 7, 5}, {2111, 0, 5}}) {
    CAPTURE(edge_count);
    CAPTURE(longest);
    RandomMatrices random(1400);
    const Edges edges = with_hubs(random, edge_count, longest);
    EdgeRun run(shape, edges, DType::f16, room, 1401);
    run.check_forward();
    run.check_backward();
    if (edge_count < 2111 || room > 0) continue;
    EdgeRun wide({128, 2, Norm::none}, edges, DType::bf16, room, 1402);
    wide.check_forward();
    wide.check_backward();
    EdgeRun again(shape, edges, DType::f16, room, 1401);
    const std::vector<Tensor> expected = run.results(), repeated = again.results();
    for (size_t i = 0; i < expected.size(); ++i) CHECK(equal_bits(expected[i], repeated[i]));
  }
}

TEST_CASE("NaN passes an activation, so that it is noticed" * doctest::skip(cuda_devices().empty())) {
  for (const Activation activation :
       {Activation::relu, Activation::silu, Activation::gelu, Activation::tanh}) {
    CAPTURE(name_of(activation));
    Gpu gpu;
    RandomMatrices random(77);
    Matrix x = random.normal(33, 64);
    const bool saturates = activation == Activation::tanh;  // to a number, of infinity
    x.at(5, 7) =
        saturates ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    MlpForward args{.rows = 33,
                    .inputs = {{gpu.tensor(x, DType::f16), gpu.tensor(random.normal(64, 64), DType::f16)}},
                    .weights = {},
                    .residual = {},
                    .out = gpu.unwritten(33, 64, DType::f16),
                    .saved = {}};
    args.weights.activation = activation;
    args.weights.weights = {gpu.tensor(random.normal(64, 64), DType::f16)};
    args.weights.biases = {Tensor()};
    REQUIRE(!kernels::saves_hidden(args));  // the fused kernels take it
    kernels::mlp_forward(args, gpu.runtime, gpu.stream());
    const Matrix y = gpu.download(args.out);
    for (int64_t row = 0; row < y.rows; ++row) {
      const auto begin = y.v.begin() + row * y.cols;
      CHECK(std::all_of(begin, begin + y.cols, [](double v) { return std::isfinite(v); }) == (row != 5));
    }
  }
}

}  // namespace
}  // namespace meshgrad::test
