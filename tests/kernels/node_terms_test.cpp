// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/gpu.h>
#include <meshgrad/kernels/cuda/fused/node_terms.h>
#include <meshgrad/kernels/mlp.h>
#include <meshgrad/kernels/tables.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "support.h"

namespace meshgrad::cuda {
// Not there in a build without CUDA; the tests then have nothing to call.
[[gnu::weak]] bool node_terms_support(DType, int64_t, int64_t);
[[gnu::weak]] void node_terms_forward(const NodeTerms&, const Graph&, const Tensor&, const Tensor&,
                                      const Tensor&, const Stream&);
[[gnu::weak]] void node_terms_backward(const NodeTermsBackward&, std::span<const WeightGradientJob>,
                                       std::span<const ColumnSumJob>, Runtime&, const Stream&);
}  // namespace meshgrad::cuda

namespace meshgrad::test {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};

/// A graph with capacity for `spare` more nodes and edges.
struct Mesh {
  reference::Edges edges;
  Graph graph;
  int64_t spare;
};

Mesh make_mesh(Runtime& runtime, const reference::Edges& edges, int64_t spare) {
  Mesh mesh{edges, to_graph(runtime, edges), spare};
  if (spare == 0) return mesh;
  // Index tensors as long as the capacity, poisoned past the real counts.
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

/// The matrix on the device, followed by rows of NaN.
Tensor with_spare_rows(Runtime& runtime, Matrix matrix, int64_t spare, DType dtype) {
  matrix.rows += spare;
  matrix.v.resize(static_cast<size_t>(matrix.rows * matrix.cols), std::numeric_limits<double>::quiet_NaN());
  return to_tensor(runtime, matrix, dtype);
}

/// The first rows of a result; checks that the rows after them still hold NaN.
Matrix without_spare_rows(const Tensor& tensor, int64_t spare) {
  Matrix all = to_matrix(tensor);
  const auto rest = all.v.begin() + (all.rows - spare) * all.cols;
  CHECK(std::all_of(rest, all.v.end(), [](double x) { return x != x; }));
  all.v.erase(rest, all.v.end());
  all.rows -= spare;
  return all;
}

/// Largest difference of two matrices, in units of the allowed one; infinity if larger, or for a NaN.
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

struct NodeTermsCase {
  int64_t width;
  DType dtype;
  int64_t nodes, owned, edges;
  int64_t spare;
};
/// With halo nodes, hubs, nodes without edges; more tiles than the simulated device has warps.
constexpr NodeTermsCase kNodeTermsCases[] = {
    {64, DType::f16, 1, 1, 0, 0},         {64, DType::bf16, 1, 1, 1, 45},
    {64, DType::f16, 33, 20, 211, 0},     {64, DType::f16, 801, 750, 1603, 0},
    {128, DType::f16, 31, 31, 100, 45},   {128, DType::bf16, 129, 100, 700, 0},
    {128, DType::f16, 401, 350, 1201, 3}, {256, DType::f16, 33, 20, 211, 1},
    {256, DType::bf16, 129, 129, 300, 0}};

template <class Body>
void for_each_mesh(Body&& body) {
  uint64_t seed = 9600;
  for (const NodeTermsCase& one : kNodeTermsCases) {
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

TEST_CASE("node terms agree with the reference at every node" * doctest::skip(cuda_devices().empty())) {
  for_each_mesh([](Runtime& runtime, RandomMatrices& random, const Mesh& mesh, int64_t width, DType dtype) {
    const Matrix h = stored_as(dtype, random.normal(mesh.edges.nodes, width));
    const Matrix sender_weight = stored_as(dtype, random.normal(width, width, 0.125));
    const Matrix receiver_weight = stored_as(dtype, random.normal(width, width, 0.125));
    const NodeTerms terms{with_spare_rows(runtime, h, mesh.spare, dtype),
                          to_tensor(runtime, sender_weight, dtype),
                          to_tensor(runtime, receiver_weight, dtype)};
    const Tensor sender_terms = unwritten(runtime, {mesh.graph.nodes, width}, dtype);
    const Tensor receiver_terms = unwritten(runtime, {mesh.graph.owned_nodes, width}, dtype);
    const Tensor tickets = to_index(runtime, std::vector<int32_t>(777, 1));
    const int64_t launches = gpu::counters().launches;
    cuda::node_terms_forward(terms, mesh.graph, sender_terms, receiver_terms, tickets, runtime.stream());
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
    if (mesh.edges.nodes > 0) CHECK(magnitude(to_matrix(tickets)) == 0.0);
  });
}

TEST_CASE("an MLP makes node terms to the bits of their own launch" * doctest::skip(cuda_devices().empty())) {
  for_each_mesh([](Runtime& runtime, RandomMatrices& random, const Mesh& mesh, int64_t width, DType dtype) {
    const auto weight = [&] {
      return to_tensor(runtime, stored_as(dtype, random.normal(width, width, 0.125)), dtype);
    };
    const auto vector = [&] { return to_vector(runtime, random.normal(1, width), DType::f32); };
    const int64_t nodes = mesh.edges.nodes;
    MlpForward args;
    args.rows = mesh.graph.node_rows();
    for (int i = 0; i < 2; ++i) {
      const Matrix x = stored_as(dtype, random.normal(nodes, width));
      args.inputs.push_back({with_spare_rows(runtime, x, mesh.spare, dtype), weight()});
    }
    args.weights.first_bias = vector();
    for (int layer = 0; layer < 2; ++layer) {
      args.weights.weights.push_back(weight());
      args.weights.biases.push_back(vector());
    }
    args.weights.norm = Norm::layer;
    args.weights.gain = vector();
    args.weights.norm_bias = vector();
    args.residual = args.inputs[0].x;
    const auto run = [&](NodeTermsAhead* node_terms) {
      args.out = unwritten(runtime, {mesh.graph.nodes, width}, dtype);
      args.node_terms = node_terms;
      kernels::mlp_forward(args, runtime, runtime.stream());
      return args.out.row_range(0, nodes);
    };
    const Tensor alone = run(nullptr);
    NodeTermsAhead ahead{weight(), weight(), {}, {}, {}};
    const Tensor out = run(&ahead);
    CHECK(equal_bits(out, alone));
    // Width 128 has six matrices in shared memory, or streams them; where only the four of the MLP fit, node
    // terms have a launch of their own. So they have where two blocks of width 64 do not fit with them.
    const int device = out.device().index, available = gpu::shared_bytes(device);
    const bool fits = width == 64    ? gpu::multiprocessor_memory(device).bytes >= 2 * (50'688 + 1024)
                      : width == 128 ? available >= 199'680 || available < 134'144
                                     : false;
    CHECK(ahead.sender.defined() == fits);
    if (!ahead.sender.defined()) return;

    const Tensor sender = unwritten(runtime, {mesh.graph.nodes, width}, dtype);
    const Tensor receiver = unwritten(runtime, {mesh.graph.owned_nodes, width}, dtype);
    cuda::node_terms_forward({args.out, ahead.sender_weight, ahead.receiver_weight}, mesh.graph, sender,
                             receiver, {}, runtime.stream());
    const auto rows_of = [&](const Tensor& tensor, int64_t rows) {
      return to_host(tensor.row_range(0, rows), runtime.stream());
    };
    const Tensor made = rows_of(ahead.sender, nodes);
    CHECK(equal_bits(made, rows_of(sender, nodes)));
    const int64_t owned = mesh.edges.owned_nodes;
    CHECK(equal_bits(rows_of(ahead.receiver, owned), rows_of(receiver, owned)));
    CHECK(magnitude(to_matrix(rows_of(ahead.tickets, ahead.tickets.rows()))) == 0.0);

    const Matrix h = to_matrix(out), sender_weight = to_matrix(ahead.sender_weight);
    const Matrix expected = reference::linear(h, sender_weight);
    const double allowed =
        allowed_error(dtype, width, magnitude(h) * magnitude(sender_weight), magnitude(expected));
    CHECK(error_of(to_matrix(made), expected, allowed) <= 1.0);
  });
}

/// A backward call with the weight gradients that go with it: the receiver's, and one of the edges; and a
/// column sum.
struct Backward {
  Matrix h, d_first, d_receiver, sender_weight, receiver_weight, before, weight_before, partials;
  cuda::NodeTermsBackward args;
  std::vector<cuda::WeightGradientJob> jobs;
  cuda::ColumnSumJob sum;
  void run(Runtime& runtime) const {
    cuda::node_terms_backward(args, jobs, {&sum, 1}, runtime, runtime.stream());
  }
};

/// Outputs as they are before a call.
void reset(Runtime& runtime, Backward& backward, const Mesh& mesh, bool accumulate) {
  const int64_t width = backward.h.cols;
  const DType dtype = backward.args.d_first.dtype();
  backward.args.accumulate = accumulate;
  backward.args.d_nodes = accumulate ? with_spare_rows(runtime, backward.before, mesh.spare, dtype)
                                     : unwritten(runtime, {mesh.graph.nodes, width}, dtype);
  backward.args.d_sender_terms = unwritten(runtime, {mesh.graph.nodes, width}, dtype);
  backward.args.d_sender_weight = to_tensor(runtime, backward.weight_before, DType::f32);
  for (cuda::WeightGradientJob& job : backward.jobs) {
    job.d_weight = to_tensor(runtime, backward.weight_before, DType::f32);
  }
  backward.sum.target = to_vector(runtime, Matrix(1, backward.partials.cols), DType::f32);
}

Backward make_backward(Runtime& runtime, RandomMatrices& random, const Mesh& mesh, int64_t width,
                       DType dtype) {
  const auto edges = static_cast<int64_t>(mesh.edges.senders.size());
  Backward result;
  result.h = stored_as(dtype, random.normal(mesh.edges.nodes, width));
  result.d_first = stored_as(dtype, random.normal(edges, width));
  result.d_receiver = stored_as(dtype, random.normal(mesh.edges.owned_nodes, width));
  result.sender_weight = stored_as(dtype, random.normal(width, width, 0.125));
  result.receiver_weight = stored_as(dtype, random.normal(width, width, 0.125));
  result.before = stored_as(dtype, random.normal(mesh.edges.nodes, width));
  result.weight_before = stored_as(DType::f32, random.normal(width, width));
  result.partials = stored_as(DType::f32, random.normal(11, width));
  cuda::NodeTermsBackward& args = result.args;
  args.graph = &mesh.graph;
  args.sender_weight = to_tensor(runtime, result.sender_weight, dtype);
  args.receiver_weight = to_tensor(runtime, result.receiver_weight, dtype);
  args.nodes = with_spare_rows(runtime, result.h, mesh.spare, dtype);
  args.d_first = with_spare_rows(runtime, result.d_first, mesh.spare, dtype);
  args.d_receiver_terms = with_spare_rows(runtime, result.d_receiver, mesh.spare, dtype);
  result.jobs.push_back({args.nodes, args.d_receiver_terms, {}, mesh.graph.owned_rows()});
  result.jobs.push_back({args.d_first, args.d_first, {}, mesh.graph.edge_rows()});
  result.sum.partials = to_tensor(runtime, result.partials, DType::f32);
  reset(runtime, result, mesh, false);
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

/// Checks d_weight += x^T d_z over the rows of d_z.
void check_weight(const Backward& backward, Matrix x, const Matrix& d_z, const Tensor& d_weight) {
  x.rows = d_z.rows;
  x.v.resize(static_cast<size_t>(x.rows * x.cols));
  const Matrix expected = reference::linear_backward(x, Matrix(x.cols, d_z.cols), d_z).d_weight;
  const double largest = std::max(magnitude(x) * magnitude(d_z), magnitude(backward.weight_before));
  CHECK(difference(d_weight, reference::sum(expected, backward.weight_before), d_z.rows + 1, largest) == "");
}

/// Checks all results against the reference; returns the sums.
Matrix check_results(const Backward& backward, const Mesh& mesh, DType dtype) {
  const int64_t edges = backward.d_first.rows, width = backward.h.cols;
  const Matrix sums = reference::scatter_add(backward.d_first, mesh.edges.senders, mesh.edges.nodes);
  const Matrix d_sender = without_spare_rows(backward.args.d_sender_terms, mesh.spare);
  CHECK(error_of(d_sender, sums,
                 allowed_error(dtype, edges + 1, magnitude(backward.d_first), magnitude(sums))) <= 1.0);
  Matrix expected = expected_d_nodes(backward, d_sender);
  if (backward.args.accumulate) expected = reference::sum(expected, backward.before);
  const double term = std::max(magnitude(d_sender), magnitude(backward.d_receiver)) *
                      std::max(magnitude(backward.sender_weight), magnitude(backward.receiver_weight));
  CHECK(error_of(without_spare_rows(backward.args.d_nodes, mesh.spare), expected,
                 allowed_error(dtype, 2 * width + 1, term, magnitude(expected))) <= 1.0);
  check_weight(backward, backward.h, d_sender, backward.args.d_sender_weight);
  check_weight(backward, backward.h, backward.d_receiver, backward.jobs[0].d_weight);
  // The reference is slow.
  if (edges * width <= 1 << 17)
    check_weight(backward, backward.d_first, backward.d_first, backward.jobs[1].d_weight);
  Matrix column_sums(1, width);
  for (int64_t row = 0; row < backward.partials.rows; ++row) {
    for (int64_t c = 0; c < width; ++c) column_sums.at(0, c) += backward.partials.at(row, c);
  }
  CHECK(difference(backward.sum.target, column_sums, backward.partials.rows, magnitude(backward.partials)) ==
        "");
  return d_sender;
}

TEST_CASE("node terms backward agrees with the reference" * doctest::skip(cuda_devices().empty())) {
  for_each_mesh([&](Runtime& runtime, RandomMatrices& random, const Mesh& mesh, int64_t width, DType dtype) {
    Backward backward = make_backward(runtime, random, mesh, width, dtype);
    Matrix d_sender;
    for (const bool accumulate : {false, true}) {
      CAPTURE(accumulate);
      reset(runtime, backward, mesh, accumulate);
      const int64_t launches = gpu::counters().launches;
      backward.run(runtime);
      CHECK(gpu::counters().launches - launches == 2);
      d_sender = check_results(backward, mesh, dtype);
    }
    if (mesh.edges.nodes > 33) return;
    // Without d_nodes, then without the sender weight's gradient: the rest is the same.
    reset(runtime, backward, mesh, false);
    backward.args.d_nodes = {};
    backward.run(runtime);
    CHECK(without_spare_rows(backward.args.d_sender_terms, mesh.spare).v == d_sender.v);
    check_weight(backward, backward.h, d_sender, backward.args.d_sender_weight);
    reset(runtime, backward, mesh, false);
    backward.args.d_sender_weight = {};
    backward.run(runtime);
    CHECK(without_spare_rows(backward.args.d_sender_terms, mesh.spare).v == d_sender.v);
    check_weight(backward, backward.h, backward.d_receiver, backward.jobs[0].d_weight);
  });
}

TEST_CASE("node terms of hubs are summed by a block" * doctest::skip(cuda_devices().empty())) {
  uint64_t seed = 9800;
  constexpr std::pair<int64_t, int64_t> kHubs[] = {{64, 512}, {64, 513}, {128, 700}, {256, 520}};
  for (const auto& hub : kHubs) {
    const int64_t width = hub.first, hub_edges = hub.second;
    CAPTURE(width);
    CAPTURE(hub_edges);
    RandomMatrices random(seed++);
    Runtime runtime = make_runtime(1, kGpu);
    // Three hubs: the first node, one inside the same tile after an ordinary one, and the very last.
    reference::Edges edges{45, 45, random.indices(150, 45), {}};
    for (const int32_t node : {0, 2, 44}) {
      edges.senders.insert(edges.senders.begin() + node, static_cast<size_t>(hub_edges), node);
    }
    edges.receivers = random.indices(static_cast<int64_t>(edges.senders.size()), 45);
    std::sort(edges.receivers.begin(), edges.receivers.end());
    const Mesh mesh = make_mesh(runtime, edges, 0);
    Backward backward = make_backward(runtime, random, mesh, width, DType::f16);
    backward.run(runtime);
    const Matrix d_sender = check_results(backward, mesh, DType::f16);
    const Matrix d_nodes = to_matrix(backward.args.d_nodes);
    const Matrix d_weight = to_matrix(backward.args.d_sender_weight);
    reset(runtime, backward, mesh, false);
    backward.run(runtime);
    CHECK(to_matrix(backward.args.d_sender_terms).v == d_sender.v);
    CHECK(to_matrix(backward.args.d_nodes).v == d_nodes.v);
    CHECK(to_matrix(backward.args.d_sender_weight).v == d_weight.v);
  }
}

TEST_CASE("node terms support widths of 64, 128 and 256 in 16 bits" * doctest::skip(cuda_devices().empty())) {
  CHECK(cuda::node_terms_support(DType::f16, 64, 64));
  CHECK(cuda::node_terms_support(DType::bf16, 256, 256));
  CHECK_FALSE(cuda::node_terms_support(DType::f32, 128, 128));
  CHECK_FALSE(cuda::node_terms_support(DType::f16, 64, 128));
  CHECK_FALSE(cuda::node_terms_support(DType::f16, 96, 96));
}

}  // namespace
}  // namespace meshgrad::test
