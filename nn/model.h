// SPDX-License-Identifier: Apache-2.0
// Model: parameters and a chain of named stages. Training, recomputation, planning, offloading and the search
// for non-finite values need to know nothing else of a model.
#pragma once
#include <meshgrad/autograd/recompute/checkpoint.h>
#include <meshgrad/kernels/graph_choices.h>
#include <meshgrad/nn/graph_batch.h>
#include <meshgrad/nn/parameter.h>

#include <functional>
#include <optional>
#include <span>

#pragma GCC visibility push(default)
namespace meshgrad {

/// What flows from stage to stage: the nodes' values [nodes, width], then those of each edge set [edges,
/// width]. A value that no later stage reads is absent.
using Values = PerInput<Variable>;

/// One link of the chain: "encoder", "processor.0", ..., "decoder".
struct Stage {
  std::string name;
  bool repeated = false;  ///< one of several alike, as a message-passing block is
  /// The values after the stage from those before it. Records on the tape; reads weights from the parameters
  /// of the model that it belongs to. Throws InvalidArgument for a batch whose shapes do not fit.
  std::function<Values(Tape&, const ParameterSet&, const GraphBatch&, const Values&)> run;
  /// No stage before it reads a parameter from this element of the arena on. 0 says nothing.
  int64_t first_weight = 0;
};

/// A value type; a copy shares the parameters' memory.
struct Model {
  ParameterSet parameters;  ///< in the order of use
  std::vector<Stage> stages;
};

/// Where ranges of the gradients' arena begin that become final one after another in a backward pass, last
/// first: at the first weight of stages, at least `elements` apart. The first one is 0.
std::vector<int64_t> gradient_buckets(const Model& model, int64_t elements);

/// How the MLPs of a model run.
enum class ComputePath : uint8_t {
  fused,    ///< one kernel an MLP, tile by tile
  op_by_op  ///< one kernel an op, each saving what its backward reads: the baseline and the check
};

/// A table with a trained row for each identifier that nodes may have (embedding.h).
struct IdentifierTable {
  std::string name;
  int64_t rows = 0;
  int64_t width = 0;
};
inline constexpr size_t kMostIdentifierTables = kMaxMlpInputs - 1;

/// What a model's first layers take, and its last one gives.
struct ModelSizes {
  int64_t node_inputs = 0;
  std::vector<int64_t> edge_inputs;         ///< per edge set; 0: its edges have no features
  std::vector<std::string> edge_set_names;  ///< as many; part of parameter names when there are several
  int64_t outputs = 0;                      ///< per node, 0: none; with `pool` per graph
  int64_t graph_outputs = 0;                ///< per graph, beside those per node; need graph_starts
  bool graph_starts = false;                ///< batches have GraphBatch::graph_starts
  bool edge_weights = false;                ///< edge sets have EdgeSet::weights
  /// A prediction has a row for each graph, made of the nodes' values pooled so; needs graph_starts.
  std::optional<GraphPool> pool = {};
  std::vector<IdentifierTable> tables = {};  ///< of GraphBatch::identifiers
};

/// Stages [begin, end) that are recomputed in the backward pass, as one segment.
struct RecomputedStages {
  int64_t begin = 0;
  int64_t end = 0;
  SavePolicy keep = SavePolicy::inputs;
  bool operator==(const RecomputedStages&) const = default;
};

/// The batch's features as values in front of the first stage.
Values input_values(const Tape& tape, const GraphBatch& batch);

/// One stage, in a memory scope of its name.
Values run_stage(const Model& model, Tape& tape, const GraphBatch& batch, int64_t stage,
                 const Values& before);

/// Called with the number of a stage and the values after it.
using StageObserver = std::function<void(int64_t stage, const Values& after)>;

/// All stages. The first value of the result is the prediction, [nodes, outputs] or [graphs, outputs]; with
/// graph_outputs the second is that of graphs, [graphs, graph_outputs].
/// `inputs` stand for the batch's features where they are given, so that a caller can ask for their
/// gradients. `recomputed`: segments in order, not overlapping; gradients are the same bits whatever it
/// holds. Model and batch must outlive the tape's entries. Throws InvalidArgument before parameters are
/// allocated, for a batch whose sizes disagree (GraphBatch::check), segments outside of the chain, and an
/// observer of recomputed stages.
Values forward(const Model& model, Tape& tape, const GraphBatch& batch, const Values& inputs,
               std::span<const RecomputedStages> recomputed = {}, const StageObserver& observer = {});
Values forward(const Model& model, Tape& tape, const GraphBatch& batch,
               std::span<const RecomputedStages> recomputed = {});

}  // namespace meshgrad
#pragma GCC visibility pop
