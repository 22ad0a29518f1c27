// SPDX-License-Identifier: Apache-2.0
// One edge update twice, for the reference implementation and for the kernels, with the same stored values.
#pragma once
#include "mlp_case.h"

#include <algorithm>

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

  /// Magnitude for comparing small gradients: a derivative near 0, as of a saturated tanh, is a difference of
  /// larger values and carries their rounding errors.
  double flowing() const { return std::max(magnitude(d_edges_out), magnitude(d_aggregate)); }
  /// Number of terms summed for an edge's row, and for the largest sum: that of the hub's edges.
  int64_t row_terms() const { return mlp.terms() + 2 * terms.nodes.cols; }
  int64_t sum_terms() const { return row_terms() + graph.edges; }

  /// Unwritten outputs; `keep_hidden` as MlpCase::saved.
  EdgeUpdateForward forward(Runtime& runtime, bool keep_hidden = true) const;

  EdgeUpdateBackward backward(Runtime& runtime, const EdgeUpdateForward& done,
                              const EdgeGradients& gradients) const;

  reference::EdgeUpdateGradients reference_gradients() const;
};

/// Gradients with initial values that are not zero: the MLP's, and those of the node terms' weights.
struct EdgeGradients : StartedGradients {
  EdgeGradients(Runtime& runtime, RandomMatrices& random, const EdgeCase& edge);
  Matrix sender_start, receiver_start;
  Tensor sender_weight, receiver_weight;

  NamedTensors all() const;
};

/// Every gradient of a backward pass against the reference's.
void check_backward(const EdgeCase& edge, const EdgeUpdateBackward& args, const EdgeGradients& gradients,
                    const reference::EdgeUpdateGradients& ref);

}  // namespace meshgrad::test
