// SPDX-License-Identifier: Apache-2.0
// The choice of what a model keeps for its backward pass: the least time under a bound on memory, by dynamic
// programming over the stages of a chain (as Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal
// checkpointing for heterogeneous chains", 2019, without segments in segments).
#pragma once
#include <meshgrad/nn/mesh_graph_net.h>

#include <optional>
#include <span>

namespace meshgrad {

/// Bytes and seconds of one stage. Who keeps a value pays for it: not who made it, but who reads it.
struct StageCost {
  bool may_recompute = true;
  int64_t inputs = 0;        ///< of its inputs: a segment that it begins keeps them
  int64_t held = 0;          ///< those of them that it keeps itself when it is not recomputed
  int64_t kept = 0;          ///< what it then keeps beside them
  int64_t kept_partial = 0;  ///< what a segment of it alone that keeps some outputs keeps beside inputs
  int64_t again = 0;         ///< what the second run makes when it is the last stage of its segment
  int64_t again_partial = 0;
  int64_t backward = 0;  ///< what its backward takes beside all that
  double forward_s = 0;  ///< of a second run that makes its outputs too: others of the segment read them
  double again_s = 0;    ///< of a second run as the last stage of its segment
  double partial_s = 0;  ///< of a second run that has those outputs
};

struct RecomputePlan {
  std::vector<RecomputedStages> stages;
  int64_t peak = 0;    ///< bytes
  double seconds = 0;  ///< what second runs add
};

/// What segments cost. Those that keep more than inputs have one stage each.
RecomputePlan cost_of(std::span<const StageCost> costs, const std::vector<RecomputedStages>& stages);

/// Of all ways to leave each stage alone, to keep the outputs in `partial`, to keep its inputs, or to have it
/// begin nothing and be part of the segment before it: the fastest whose peak is at most `budget`. Nothing
/// when none is.
std::optional<RecomputePlan> plan_recomputation(std::span<const StageCost> costs, int64_t budget,
                                                SavePolicy partial = SavePolicy::matmuls);

/// The least budget that plan_recomputation can keep to.
int64_t least_budget(std::span<const StageCost> costs);

}  // namespace meshgrad
