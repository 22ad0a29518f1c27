// SPDX-License-Identifier: Apache-2.0
// One edge update twice: as the judge takes it and as the kernels do, with the same stored values.
#pragma once
#include "mlp_case.h"

namespace meshgrad::test {

struct EdgeShape {
  int64_t node_width;
  MlpShape mlp;
  bool residual = true;
  bool aggregate_after_residual = false;
};

struct EdgeGradients;

struct EdgeCase {
  EdgeCase(Runtime& runtime, RandomMatrices& random, const EdgeShape& shape, reference::Edges edges,
           DType dtype);

  reference::Edges connectivity;
  Graph graph;
  MlpCase mlp;
  reference::EdgeUpdate update;
  reference::NodeTerms terms;
  Matrix d_edges_out, d_aggregate;

  /// What small gradients are held against: a slope near 0, as of a saturated tanh, is a difference of larger
  /// values and carries their errors.
  double flowing() const { return std::max(magnitude(d_edges_out), magnitude(d_aggregate)); }
  /// Terms of one edge's row, and the most that a sum has: the hub's edges, and what lies behind each.
  int64_t row_terms() const { return mlp.terms() + 2 * terms.nodes.cols; }
  int64_t sum_terms() const { return row_terms() + graph.edges; }

  /// Unwritten outputs; `keep_hidden` as MlpCase::saved.
  EdgeUpdateForward forward(Runtime& runtime, bool keep_hidden = true) const;

  EdgeUpdateBackward backward(Runtime& runtime, const EdgeUpdateForward& done,
                              const EdgeGradients& gradients) const;

  reference::EdgeUpdateGradients judge_gradients() const;
};

/// Gradients that already hold something: the MLP's, and those of the node half of the first weight.
struct EdgeGradients : StartedGradients {
  EdgeGradients(Runtime& runtime, RandomMatrices& random, const EdgeCase& edge);
  Matrix sender_start, receiver_start;
  Tensor sender_weight, receiver_weight;

  NamedTensors all() const;
};

/// Every gradient of a backward pass against the judge's.
void check_backward(const EdgeCase& edge, const EdgeUpdateBackward& args, const EdgeGradients& gradients,
                    const reference::EdgeUpdateGradients& judge);

}  // namespace meshgrad::test
