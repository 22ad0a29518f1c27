// SPDX-License-Identifier: Apache-2.0
// A step of the standard model (15 blocks, width 128, node input 11, edge input 3, output 2) on one mesh, in
// every variant: fused or op by op, captured, with recomputation.
#pragma once
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/learn/planning/recompute.h>

#include <string_view>

#include "benchmark.h"

namespace meshgrad::bench {

struct StepKind {
  bool train = true;
  ComputePath path = ComputePath::fused;
  bool keep_hidden = true;
  bool captured = false;          ///< recorded once, then replayed; GPU only
  bool recompute_blocks = false;  ///< each block is recomputed in the backward pass
  bool traced = false;            ///< with a trace of the step, whose text is made and discarded
};

/// The step, checked against the op-by-op path in f64 on the CPU: on one period of the mesh, or, for a square
/// too large for that, on the corner of its last rows and columns that determines the checked nodes.
Workload step_workload(Runtime& runtime, const Scale& scale, const StepKind& kind, DType dtype,
                       std::string_view name);

/// Dry runs of a model on batches of a shape, unrolled over `frames`.
DryModel dry_model(Runtime& runtime, const MeshGraphNetOptions& options, const ModelSizes& sizes,
                   const BatchShape& shape, DType dtype, int64_t frames = 1);

/// Predicted peak bytes of such a training step, from a dry run.
int64_t step_bytes(Runtime& runtime, const Scale& scale, const StepKind& kind, DType dtype);

}  // namespace meshgrad::bench
