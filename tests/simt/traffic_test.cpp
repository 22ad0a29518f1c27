// SPDX-License-Identifier: Apache-2.0
// The memory traffic of a message-passing block, launch by launch, as the simulated device counts it, against
// the rows that the design needs.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

#include "model_run.h"

namespace meshgrad::test {
namespace {

constexpr int64_t kWidth = 128;
constexpr int64_t kLayers = 3;
constexpr DType kType = DType::f16;
constexpr double kRow = kWidth * 2.0;  ///< bytes

/// Both directions of every edge of a triangulated grid of side x side nodes.
Graph grid_mesh(Runtime& runtime, int32_t side) {
  std::vector<int32_t> senders, receivers;
  const auto connect = [&](int32_t a, int32_t b) {
    senders.insert(senders.end(), {a, b});
    receivers.insert(receivers.end(), {b, a});
  };
  for (int32_t y = 0; y < side; ++y) {
    for (int32_t x = 0; x < side; ++x) {
      const int32_t here = y * side + x;
      if (x + 1 < side) connect(here, here + 1);
      if (y + 1 < side) connect(here, here + side);
      if (x + 1 < side && y + 1 < side) connect(here, here + side + 1);
    }
  }
  return build_graph(runtime, side * side, senders, receivers);
}

/// One block: its tensors, and its four calls.
class Block {
 public:
  explicit Block(Runtime& runtime, int32_t side) : runtime_(runtime), graph_(grid_mesh(runtime, side)) {
    for (MlpWeights* weights : {&edge_weights_, &node_weights_}) {
      for (int64_t layer = 1; layer < kLayers; ++layer) {
        weights->weights.push_back(normal(kWidth, kType));
        weights->biases.push_back(vector());
      }
      weights->first_bias = vector();
      weights->norm = Norm::layer;
      weights->gain = vector();
      weights->norm_bias = vector();
    }
    terms_ = {normal(graph_.nodes, kType), normal(kWidth, kType), normal(kWidth, kType)};
    edges_ = {normal(graph_.edges, kType), normal(kWidth, kType)};
    aggregate_ = normal(graph_.nodes, kType);
    node_inputs_ = {{terms_.nodes, normal(kWidth, kType)}, {aggregate_, normal(kWidth, kType)}};
  }
  const Graph& graph() const { return graph_; }

  void forward() {
    EdgeUpdateForward edges;
    edges.graph = &graph_;
    edges.terms = terms_;
    edges.edges = edges_;
    edges.weights = edge_weights_;
    edges.edges_out = normal(graph_.edges, kType);
    edges.aggregate = aggregate_;
    kernels::edge_update_forward(edges, runtime_, runtime_.stream());
    MlpForward nodes;
    nodes.rows = graph_.node_rows();
    nodes.inputs = node_inputs_;
    nodes.weights = node_weights_;
    nodes.residual = terms_.nodes;
    nodes.out = normal(graph_.nodes, kType);
    kernels::mlp_forward(nodes, runtime_, runtime_.stream());
    runtime_.stream().synchronize();
  }

  void backward() {
    const Tensor d_nodes = normal(graph_.nodes, kType), d_aggregate = normal(graph_.nodes, kType);
    const Tensor d_edges = normal(graph_.edges, kType);
    MlpBackward nodes;
    nodes.rows = graph_.node_rows();
    nodes.inputs = node_inputs_;
    nodes.weights = node_weights_;
    nodes.d_out = d_nodes;
    nodes.d_inputs = {d_nodes, d_aggregate};
    nodes.accumulate = {true, false};
    nodes.d_first_weights = {normal(kWidth, DType::f32), normal(kWidth, DType::f32)};
    nodes.d_weights = weight_gradients();
    kernels::mlp_backward(nodes, runtime_, runtime_.stream());
    EdgeUpdateBackward edges;
    edges.graph = &graph_;
    edges.terms = terms_;
    edges.edges = edges_;
    edges.weights = edge_weights_;
    edges.d_edges_out = d_edges;
    edges.d_aggregate = d_aggregate;
    edges.d_edges = d_edges;
    edges.d_nodes = d_nodes;
    edges.accumulate_d_nodes = true;
    edges.d_sender_weight = normal(kWidth, DType::f32);
    edges.d_receiver_weight = normal(kWidth, DType::f32);
    edges.d_edge_weight = normal(kWidth, DType::f32);
    edges.d_weights = weight_gradients();
    kernels::edge_update_backward(edges, runtime_, runtime_.stream());
    runtime_.stream().synchronize();
  }

 private:
  Tensor normal(int64_t rows, DType dtype) {
    return to_tensor(runtime_, stored_as(dtype, random_.normal(rows, kWidth, 0.1)), dtype);
  }
  Tensor vector() { return to_vector(runtime_, random_.normal(1, kWidth), DType::f32); }
  MlpWeightGradients weight_gradients() {
    MlpWeightGradients result;
    for (int64_t layer = 1; layer < kLayers; ++layer) {
      result.weights.push_back(normal(kWidth, DType::f32));
      result.biases.push_back(vector());
    }
    result.first_bias = vector();
    result.gain = vector();
    result.norm_bias = vector();
    return result;
  }

  Runtime& runtime_;
  RandomMatrices random_{4711};
  Graph graph_;
  MlpWeights edge_weights_, node_weights_;
  NodeTerms terms_;
  MlpInput edges_;
  Tensor aggregate_;
  std::vector<MlpInput> node_inputs_;
};

/// What a launch must move, each byte once: rows of edges and of nodes, 16-bit matrices, indices an edge
/// and a node.
struct Launch {
  std::string name;
  struct Rows {
    int64_t of_edges, of_nodes;
  } read, written;
  int64_t matrices;
  int64_t edge_indices, node_indices;
  /// Matrices in f32 that are read and written: weight gradients, and the partial sums of their slices.
  int64_t f32_read, f32_written;
};

/// Checks what a call's launches moved, to `slack` for vectors and partial sums of columns. Returns the bytes
/// an edge without weights and gradients, which a large mesh does not feel.
double check_launches(const std::vector<simt::LaunchReport>& reports, const std::vector<Launch>& expected,
                      const Graph& graph, double slack) {
  REQUIRE(reports.size() == expected.size());
  const auto edges = static_cast<double>(graph.edges), nodes = static_cast<double>(graph.nodes);
  const double matrix = kWidth * kWidth;
  double sum = 0.0;
  for (size_t i = 0; i < reports.size(); ++i) {
    const simt::LaunchReport& report = reports[i];
    const Launch& launch = expected[i];
    const auto rows = [&](const Launch::Rows& count) {
      return (static_cast<double>(count.of_edges) * edges + static_cast<double>(count.of_nodes) * nodes) *
             kRow;
    };
    const double f32_read = static_cast<double>(launch.f32_read) * matrix * 4.0;
    const double f32_written = static_cast<double>(launch.f32_written) * matrix * 4.0;
    const double weights = static_cast<double>(launch.matrices) * matrix * 2.0;
    const double indices = (static_cast<double>(launch.edge_indices) * edges +
                            static_cast<double>(launch.node_indices) * nodes) *
                           4.0;
    const double model_read = rows(launch.read) + weights + indices + f32_read;
    const double model_written = rows(launch.written) + f32_written;
    const auto read = static_cast<double>(report.unique_bytes_read);
    const auto written = static_cast<double>(report.unique_bytes_written);
    MESSAGE(fmt::format("{:20} {:7.1f} read ({:7.1f}), {:7.1f} written ({:7.1f}), {:7.1f} asked for",
                        report.name, read / edges, model_read / edges, written / edges, model_written / edges,
                        static_cast<double>(report.bytes_read + report.bytes_written) / edges));
    CHECK(report.name == launch.name);
    CHECK(std::abs(read - model_read) <= slack * model_read);
    CHECK(std::abs(written - model_written) <= slack * model_written);
    sum += read - weights - f32_read + written - f32_written;
  }
  return sum / edges;
}

TEST_CASE("a block moves the rows of its design in ten launches") {
  Runtime runtime = make_runtime(1, {DeviceKind::cuda, 0});
  Block block(runtime, 16);
  const Graph& graph = block.graph();
  const double share = static_cast<double>(graph.nodes) / static_cast<double>(graph.edges);
  MESSAGE(fmt::format("{} edges, {} nodes; bytes an edge, each once a launch (the model's)", graph.edges,
                      graph.nodes));

  simt::take_reports();
  block.forward();
  const std::vector<simt::LaunchReport> forward = simt::take_reports();
  double bytes = check_launches(forward,
                                {{"node_terms_forward", {0, 1}, {0, 2}, 2, 0, 0, 0, 0},
                                 {"edge_forward", {1, 2}, {1, 1}, 3, 2, 1, 0, 0},
                                 {"mlp_forward", {0, 2}, {0, 1}, 4, 0, 0, 0, 0}},
                                graph, 0.03);
  // The design's figure (4.2 rows and two indices at 0.15 nodes per edge) assumes that the gather of S misses
  // every cache: a row per edge instead of one per node.
  bytes += (1.0 - share) * kRow;
  double design = (3.0 + 8.0 * share) * kRow + 8.0;
  MESSAGE(fmt::format("forward, gathers in full: {:.0f} of the design's {:.0f}", bytes, design));
  CHECK(bytes <= 1.03 * design);

  block.backward();
  const std::vector<simt::LaunchReport> backward = simt::take_reports();
  bytes = check_launches(backward,
                         {{"mlp_backward", {0, 3}, {0, 7}, 4, 0, 0, 0, 0},
                          {"weight_gradients", {0, 7}, {0, 0}, 0, 0, 0, 0, 4},
                          {"weight_gradients.sum", {0, 0}, {0, 0}, 0, 0, 0, 8, 4},
                          {"node_terms_forward", {0, 1}, {0, 2}, 2, 0, 0, 0, 0},
                          {"edge_backward", {2, 3}, {6, 1}, 3, 2, 1, 0, 0},
                          {"node_terms_backward", {6, 4}, {0, 2}, 2, 1, 1, 0, 5},
                          {"weight_gradients.sum", {0, 0}, {0, 0}, 0, 0, 0, 10, 5}},
                         graph, 0.03);
  // The gathers of S and, by senders, of d_z_1. The design's figure (variant E: 16 rows an edge and 14 a
  // node) leaves out 15 rows a node: the operands of the node layers' weight gradients, and S and R, which
  // are recomputed.
  bytes += (1.0 - share) * kRow + kRow;
  design = (16.0 + 14.0 * share) * kRow;
  MESSAGE(fmt::format("backward, gathers in full: {:.0f} of the design's {:.0f}", bytes, design));
  CHECK(bytes <= 1.03 * (design + 15.0 * share * kRow));
}

TEST_CASE("a 16-bit model trains with 400 bytes an edge and block") {
  const auto mesh = [](Runtime& runtime) { return grid_mesh(runtime, 16); };
  const ModelRun two = run_model(model_case(4, 2, kWidth, 2), kType, mesh);
  const ModelRun three = run_model(model_case(4, 2, kWidth, 3), kType, mesh);
  const size_t launches = three.launches.size() - two.launches.size();
  constexpr double kEdges = 1410;
  const double bytes = static_cast<double>(three.activations - two.activations) / kEdges;
  MESSAGE(fmt::format("a block: {} launches, {:.0f} bytes of activations an edge", launches, bytes));
  CHECK(launches <= 10);
  CHECK(bytes <= 400.0);
  CHECK(bytes >= 256.0);  // the edges themselves: no traffic is missing from the count
}

}  // namespace
}  // namespace meshgrad::test
