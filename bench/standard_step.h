// SPDX-License-Identifier: Apache-2.0
// A step of the standard model (15 blocks, width 128, node input 11, edge input 3, output 2) on one mesh, in
// any of the ways that it can be computed.
#pragma once
#include <meshgrad/nn/mesh_graph_net.h>

#include <string_view>

#include "benchmark.h"

namespace meshgrad::bench {

struct StepKind {
  bool train = true;
  ComputePath path = ComputePath::fused;
  bool keep_hidden = true;
  bool captured = false;          ///< recorded once, then replayed; GPU only
  bool recompute_blocks = false;  ///< each block is computed again in the backward pass
};

/// The step, held against the op-by-op path in f64 on the CPU: on the mesh's period, or, of a square that is
/// too large for that, on the corner of its last rows and columns, which is as far as the blocks see.
Workload step_workload(Runtime& runtime, const Scale& scale, const StepKind& kind, DType dtype,
                       std::string_view name);

/// Bytes that such a training step is predicted to take at most, by running it dry.
int64_t step_bytes(Runtime& runtime, const Scale& scale, const StepKind& kind, DType dtype);

}  // namespace meshgrad::bench
