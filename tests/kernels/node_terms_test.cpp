// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/gpu.h>
#include <meshgrad/kernels/cuda/node_terms.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "support.h"

namespace meshgrad::cuda {
// Not there in a build without CUDA; the tests then have nothing to call.
[[gnu::weak]] bool node_terms_cover(DType, int64_t, int64_t);
[[gnu::weak]] void node_terms_forward(const NodeTerms&, const Graph&, const Tensor&, const Tensor&, Runtime&,
                                      const Stream&);
[[gnu::weak]] void node_terms_backward(const NodeTermsBackward&, Runtime&, const Stream&);
}  // namespace meshgrad::cuda

namespace meshgrad::test {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};

/// A graph, with `spare` nodes and edges of capacity behind what counts.
struct Mesh {
  reference::Edges edges;
  Graph graph;
  int64_t spare;
};

Mesh make_mesh(Runtime& runtime, const reference::Edges& edges, int64_t spare) {
  Mesh mesh{edges, to_graph(runtime, edges), spare};
  if (spare == 0) return mesh;
  // Index tensors as long as the capacity, poisoned behind what counts.
  const auto extended = [&](const Tensor& tensor) {
    const Tensor host = to_host(tensor, runtime.stream());
    const std::span<const int32_t> values = host.values<int32_t>();
    std::vector<int32_t> all(values.begin(), values.end());
    all.resize(all.size() + static_cast<size_t>(spare), 0x40000000);
    return Tensor::from<int32_t>(runtime, all, {static_cast<int64_t>(all.size())}, Tag::data);
  };
  Graph& graph = mesh.graph;
  const int64_t counts[] = {graph.nodes, graph.owned_nodes, graph.edges};
  graph.counts = Tensor::from<int64_t>(runtime, counts, {3}, Tag::data);
  for (Tensor* tensor : {&graph.senders, &graph.receivers, &graph.receiver_offsets, &graph.sender_offsets,
                         &graph.sender_order}) {
    *tensor = extended(*tensor);
  }
  graph.nodes += spare;
  graph.owned_nodes += spare;
  graph.edges += spare;
  return mesh;
}

/// The matrix on the device, with rows of NaN behind it.
Tensor with_spare_rows(Runtime& runtime, Matrix matrix, int64_t spare, DType dtype) {
  matrix.rows += spare;
  matrix.v.resize(static_cast<size_t>(matrix.rows * matrix.cols), std::numeric_limits<double>::quiet_NaN());
  return to_tensor(runtime, matrix, dtype);
}

/// The first rows of what was computed; behind them every value has to be the NaN that was there.
Matrix without_spare_rows(const Tensor& tensor, int64_t spare) {
  Matrix all = to_matrix(tensor);
  const auto rest = all.v.begin() + (all.rows - spare) * all.cols;
  CHECK(std::all_of(rest, all.v.end(), [](double x) { return x != x; }));
  all.v.erase(rest, all.v.end());
  all.rows -= spare;
  return all;
}

/// Largest distance between two matrices in units of what is allowed; infinity when more, or for a NaN.
double error_of(const Matrix& actual, const Matrix& expected, double allowed) {
  if (actual.v.size() != expected.v.size()) return std::numeric_limits<double>::infinity();
  double largest = 0.0;
  for (size_t i = 0; i < actual.v.size(); ++i) {
    const double error = std::abs(actual.v[i] - expected.v[i]);
    if (error == 0.0) continue;
    largest = error <= allowed ? std::max(largest, error / allowed) : std::numeric_limits<double>::infinity();
  }
  return largest;
}

/// f32 sums of `terms` products, and one rounding to storage.
double allowed_error(DType dtype, int64_t terms, double largest_term, double largest_result) {
  const double half_ulp = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
  return tolerance(DType::f32, terms, std::max(largest_term, largest_result)) + half_ulp * largest_result;
}

struct Case {
  int64_t width;
  DType dtype;
  int64_t nodes, owned, edges;
  int64_t spare;
};
/// With halo nodes, hubs, nodes without edges; more tiles than the simulated device has warps.
constexpr Case kCases[] = {{64, DType::f16, 1, 1, 0, 0},         {64, DType::bf16, 1, 1, 1, 45},
                           {64, DType::f16, 33, 20, 211, 0},     {64, DType::f16, 801, 750, 2003, 0},
                           {128, DType::f16, 31, 31, 100, 45},   {128, DType::bf16, 129, 100, 700, 0},
                           {128, DType::f16, 401, 350, 1201, 3}, {256, DType::f16, 33, 20, 211, 1},
                           {256, DType::bf16, 129, 129, 700, 0}};

template <class Body>
void for_each_mesh(Body&& body) {
  uint64_t seed = 9600;
  for (const Case& one : kCases) {
    CAPTURE(one.width);
    CAPTURE(name_of(one.dtype));
    CAPTURE(one.nodes);
    CAPTURE(one.spare);
    RandomMatrices random(seed++);
    Runtime runtime = make_runtime(1, kGpu);
    reference::Edges edges = random_edges(random, one.nodes, one.edges);
    edges.owned_nodes = one.owned;
    for (int32_t& receiver : edges.receivers) {
      receiver = std::min(receiver, static_cast<int32_t>(one.owned - 1));
    }
    body(runtime, random, make_mesh(runtime, edges, one.spare), one.width, one.dtype);
  }
}

TEST_CASE("node terms agree with the judge at every node, in one launch" *
          doctest::skip(cuda_devices().empty())) {
  for_each_mesh([](Runtime& runtime, RandomMatrices& random, const Mesh& mesh, int64_t width, DType dtype) {
    const Matrix h = stored_as(dtype, random.normal(mesh.edges.nodes, width));
    const Matrix sender_weight = stored_as(dtype, random.normal(width, width, 0.125));
    const Matrix receiver_weight = stored_as(dtype, random.normal(width, width, 0.125));
    const NodeTerms terms{with_spare_rows(runtime, h, mesh.spare, dtype),
                          to_tensor(runtime, sender_weight, dtype),
                          to_tensor(runtime, receiver_weight, dtype)};
    const Tensor sender_terms = unwritten(runtime, {mesh.graph.nodes, width}, dtype);
    const Tensor receiver_terms = unwritten(runtime, {mesh.graph.owned_nodes, width}, dtype);
    const int64_t launches = gpu::counters().launches;
    cuda::node_terms_forward(terms, mesh.graph, sender_terms, receiver_terms, runtime, runtime.stream());
    CHECK(gpu::counters().launches - launches == 1);

    Matrix owned = h;
    owned.rows = mesh.edges.owned_nodes;
    owned.v.resize(static_cast<size_t>(owned.rows * width));
    const Matrix expected_s = reference::linear(h, sender_weight);
    const Matrix expected_r = reference::linear(owned, receiver_weight);
    const double term = magnitude(h) * std::max(magnitude(sender_weight), magnitude(receiver_weight));
    CHECK(error_of(without_spare_rows(sender_terms, mesh.spare), expected_s,
                   allowed_error(dtype, width, term, magnitude(expected_s))) <= 1.0);
    CHECK(error_of(without_spare_rows(receiver_terms, mesh.spare), expected_r,
                   allowed_error(dtype, width, term, magnitude(expected_r))) <= 1.0);
  });
}

struct Backward {
  Matrix d_first, d_receiver, sender_weight, receiver_weight, before;
  cuda::NodeTermsBackward args;
};

Backward make_backward(Runtime& runtime, RandomMatrices& random, const Mesh& mesh, int64_t width,
                       DType dtype) {
  Backward result;
  result.d_first =
      stored_as(dtype, random.normal(mesh.edges.senders.empty() ? 0 : mesh.graph.edges - mesh.spare, width));
  result.d_receiver = stored_as(dtype, random.normal(mesh.edges.owned_nodes, width));
  result.sender_weight = stored_as(dtype, random.normal(width, width, 0.125));
  result.receiver_weight = stored_as(dtype, random.normal(width, width, 0.125));
  result.before = stored_as(dtype, random.normal(mesh.edges.nodes, width));
  result.args.graph = &mesh.graph;
  result.args.sender_weight = to_tensor(runtime, result.sender_weight, dtype);
  result.args.receiver_weight = to_tensor(runtime, result.receiver_weight, dtype);
  result.args.d_first = with_spare_rows(runtime, result.d_first, mesh.spare, dtype);
  result.args.d_receiver_terms = with_spare_rows(runtime, result.d_receiver, mesh.spare, dtype);
  result.args.d_sender_terms = unwritten(runtime, {mesh.graph.nodes, width}, dtype);
  result.args.d_nodes = with_spare_rows(runtime, result.before, mesh.spare, dtype);
  return result;
}

/// What d_nodes must be for the sums as they were stored, rounding included.
Matrix expected_d_nodes(const Backward& backward, const Matrix& d_sender) {
  Matrix d_receiver = backward.d_receiver;
  d_receiver.rows = d_sender.rows;
  d_receiver.v.resize(d_sender.v.size());
  const auto product = [](const Matrix& d_terms, const Matrix& weight) {
    return reference::linear_backward(Matrix(d_terms.rows, weight.rows), weight, d_terms).d_x;
  };
  return reference::sum(product(d_sender, backward.sender_weight),
                        product(d_receiver, backward.receiver_weight));
}

TEST_CASE("node terms backward: sums over what a node sends, and the nodes' gradient, in one launch" *
          doctest::skip(cuda_devices().empty())) {
  for_each_mesh([](Runtime& runtime, RandomMatrices& random, const Mesh& mesh, int64_t width, DType dtype) {
    Backward backward = make_backward(runtime, random, mesh, width, dtype);
    const Matrix sums = reference::scatter_add(backward.d_first, mesh.edges.senders, mesh.edges.nodes);
    const double sums_allowed =
        allowed_error(dtype, mesh.graph.edges + 1, magnitude(backward.d_first), magnitude(sums));
    Matrix without_addition;
    for (const bool accumulate : {false, true}) {
      CAPTURE(accumulate);
      backward.args.accumulate = accumulate;
      if (!accumulate) backward.args.d_nodes = unwritten(runtime, {mesh.graph.nodes, width}, dtype);
      if (accumulate) backward.args.d_nodes = with_spare_rows(runtime, backward.before, mesh.spare, dtype);
      backward.args.d_sender_terms = unwritten(runtime, {mesh.graph.nodes, width}, dtype);
      const int64_t launches = gpu::counters().launches;
      cuda::node_terms_backward(backward.args, runtime, runtime.stream());
      CHECK(gpu::counters().launches - launches == 1);
      const Matrix d_sender = without_spare_rows(backward.args.d_sender_terms, mesh.spare);
      CHECK(error_of(d_sender, sums, sums_allowed) <= 1.0);
      Matrix expected = expected_d_nodes(backward, d_sender);
      if (accumulate) expected = reference::sum(expected, backward.before);
      const double term = std::max(magnitude(d_sender), magnitude(backward.d_receiver)) *
                          std::max(magnitude(backward.sender_weight), magnitude(backward.receiver_weight));
      CHECK(error_of(without_spare_rows(backward.args.d_nodes, mesh.spare), expected,
                     allowed_error(dtype, 2 * width + 1, term, magnitude(expected))) <= 1.0);
    }
    backward.args.d_nodes = {};
    const Tensor again = unwritten(runtime, {mesh.graph.nodes, width}, dtype);
    const Matrix first = without_spare_rows(backward.args.d_sender_terms, mesh.spare);
    backward.args.d_sender_terms = again;
    cuda::node_terms_backward(backward.args, runtime, runtime.stream());
    CHECK(without_spare_rows(again, mesh.spare).v == first.v);
  });
}

TEST_CASE("nodes that send far more than others are summed by a block, with the same bits in every run" *
          doctest::skip(cuda_devices().empty())) {
  uint64_t seed = 9800;
  for (const int64_t width : {64, 128, 256}) {
    for (const int64_t hub_edges : {512, 513, width == 128 ? 1700 : 600}) {
      CAPTURE(width);
      CAPTURE(hub_edges);
      RandomMatrices random(seed++);
      Runtime runtime = make_runtime(1, kGpu);
      // Three hubs: the first node, one inside the same tile behind an ordinary one, and the very last.
      reference::Edges edges{45, 45, random.indices(150, 45), {}};
      for (const int32_t hub : {0, 2, 44}) {
        edges.senders.insert(edges.senders.begin() + hub, static_cast<size_t>(hub_edges), hub);
      }
      edges.receivers = random.indices(static_cast<int64_t>(edges.senders.size()), 45);
      std::sort(edges.receivers.begin(), edges.receivers.end());
      const Mesh mesh = make_mesh(runtime, edges, 0);
      Backward backward = make_backward(runtime, random, mesh, width, DType::f16);
      cuda::node_terms_backward(backward.args, runtime, runtime.stream());
      const Matrix sums = reference::scatter_add(backward.d_first, edges.senders, edges.nodes);
      const Matrix d_sender = to_matrix(backward.args.d_sender_terms);
      CHECK(error_of(d_sender, sums,
                     allowed_error(DType::f16, hub_edges + 150, magnitude(backward.d_first),
                                   magnitude(sums))) <= 1.0);
      const Matrix expected = expected_d_nodes(backward, d_sender);
      const double term = magnitude(d_sender) * std::max(magnitude(backward.sender_weight), 1.0);
      CHECK(error_of(to_matrix(backward.args.d_nodes), expected,
                     allowed_error(DType::f16, 2 * width, term, magnitude(expected))) <= 1.0);

      const Matrix d_nodes = to_matrix(backward.args.d_nodes);
      cuda::node_terms_backward(backward.args, runtime, runtime.stream());
      CHECK(to_matrix(backward.args.d_sender_terms).v == d_sender.v);
      CHECK(to_matrix(backward.args.d_nodes).v == d_nodes.v);
    }
  }
}

TEST_CASE("node terms cover equal widths of 64, 128 and 256 in 16 bits" *
          doctest::skip(cuda_devices().empty())) {
  CHECK(cuda::node_terms_cover(DType::f16, 64, 64));
  CHECK(cuda::node_terms_cover(DType::bf16, 256, 256));
  CHECK_FALSE(cuda::node_terms_cover(DType::f32, 128, 128));
  CHECK_FALSE(cuda::node_terms_cover(DType::f16, 64, 128));
  CHECK_FALSE(cuda::node_terms_cover(DType::f16, 96, 96));
}

}  // namespace
}  // namespace meshgrad::test
