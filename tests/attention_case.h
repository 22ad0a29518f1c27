// SPDX-License-Identifier: Apache-2.0
// One edge attention twice, for the reference implementation and for the kernels, with the same stored
// values.
#pragma once
#include <string>

#include "mlp_case.h"
#include "reference/attention.h"

namespace meshgrad::test {

struct AttentionShape {
  AttentionScore score = AttentionScore::gat;
  int64_t heads = 1, dim = 1;
  bool self_edges = false, edge_scores = false;
  bool own_keys = true;  ///< keys that are not the values
  double rate = 0.0;
  std::string text() const;
};

/// One shape of each kind: every score with and without what it may have, odd and even widths.
const std::vector<AttentionShape>& attention_shapes();

struct AttentionCase {
  AttentionCase(Runtime& runtime, RandomMatrices& random, const AttentionShape& shape, reference::Edges edges,
                DType dtype);

  AttentionShape shape;
  reference::Edges connectivity;
  DType dtype;
  Graph graph;
  reference::Attention ref;
  EdgeAttention inputs;
  Matrix d_out;

  /// Terms of the largest sum: that of a hub's edges.
  int64_t terms() const { return graph.edges + shape.dim; }
  /// Largest value that takes part in a gradient.
  double flowing() const;
  /// Unwritten outputs.
  EdgeAttentionForward forward(Runtime& runtime) const;
  /// Every gradient that the score has, with values that are not zero where `accumulate`.
  EdgeAttentionBackward backward(Runtime& runtime, const EdgeAttentionForward& done, bool accumulate) const;
  /// The gradients in the order of `backward`, by name.
  static NamedTensors gradients(const EdgeAttentionBackward& args);
};

/// What gradients start from when they are added to.
inline constexpr double kGradientStart = 0.25;

/// Compares every gradient with the reference's.
void check_attention_gradients(const AttentionCase& c, const EdgeAttentionBackward& args, bool accumulate);

}  // namespace meshgrad::test
