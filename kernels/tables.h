// SPDX-License-Identifier: Apache-2.0
// KernelTables: all kernels of one backend. The functions of kernels/*.h check a call's arguments and pass it
// to the table of the tensors' device; tests and benchmarks go through the tables entry by entry. Internal to
// kernels/, its tests and benchmarks.
#pragma once
#include <meshgrad/kernels/attention.h>
#include <meshgrad/kernels/class_loss.h>
#include <meshgrad/kernels/elementwise.h>
#include <meshgrad/kernels/graph_pool.h>
#include <meshgrad/kernels/latent.h>
#include <meshgrad/kernels/linear.h>
#include <meshgrad/kernels/message_passing.h>
#include <meshgrad/kernels/mlp.h>
#include <meshgrad/kernels/optimizer.h>
#include <meshgrad/kernels/pair_loss.h>
#include <meshgrad/kernels/reduction.h>
#include <meshgrad/kernels/segment_sum.h>
#include <meshgrad/kernels/slice_attention.h>
#include <meshgrad/kernels/solver_arrays.h>
#include <meshgrad/kernels/state_error.h>
#include <meshgrad/kernels/world_edges.h>

#include <string_view>

namespace meshgrad {

/// One table a family, as its header declares it.
struct KernelTables {
  const LinearKernels& linear;
  const MlpKernels& mlp;
  const MessagePassingKernels& message_passing;
  const SegmentSumKernels& segment_sum;
  const GraphPoolKernels& graph_pool;
  const ElementwiseKernels& elementwise;
  const ReductionKernels& reduction;
  const ClassLossKernels& class_loss;
  const OptimizerKernels& optimizer;
  const StateErrorKernels& state_error;
  const WorldEdgeKernels& world_edges;
  const SolverArrayKernels& solver_arrays;
  const AttentionKernels& attention;
  const LatentKernels& latent;
  const PairLossKernels& pair_loss;
  const SliceAttentionKernels& slice_attention;
};

/// The families' tables, each defined in the backend's source of that name.
namespace cpu {
extern const LinearKernels linear_kernels;
extern const MlpKernels mlp_kernels;
extern const MessagePassingKernels message_passing_kernels;
extern const SegmentSumKernels segment_sum_kernels;
extern const GraphPoolKernels graph_pool_kernels;
extern const ElementwiseKernels elementwise_kernels;
extern const ReductionKernels reduction_kernels;
extern const ClassLossKernels class_loss_kernels;
extern const OptimizerKernels optimizer_kernels;
extern const StateErrorKernels state_error_kernels;
extern const WorldEdgeKernels world_edge_kernels;
extern const SolverArrayKernels solver_array_kernels;
extern const AttentionKernels attention_kernels;
extern const LatentKernels latent_kernels;
extern const PairLossKernels pair_loss_kernels;
extern const SliceAttentionKernels slice_attention_kernels;
}  // namespace cpu
namespace cuda {
extern const LinearKernels linear_kernels;
extern const MlpKernels mlp_kernels;
extern const MessagePassingKernels message_passing_kernels;
extern const SegmentSumKernels segment_sum_kernels;
extern const GraphPoolKernels graph_pool_kernels;
extern const ElementwiseKernels elementwise_kernels;
extern const ReductionKernels reduction_kernels;
extern const ClassLossKernels class_loss_kernels;
extern const OptimizerKernels optimizer_kernels;
extern const StateErrorKernels state_error_kernels;
extern const WorldEdgeKernels world_edge_kernels;
extern const SolverArrayKernels solver_array_kernels;
extern const AttentionKernels attention_kernels;
extern const LatentKernels latent_kernels;
extern const PairLossKernels pair_loss_kernels;
extern const SliceAttentionKernels slice_attention_kernels;
}  // namespace cuda

namespace kernels {

const KernelTables& cpu_tables();
/// Of the GPU side that this program was linked with (see engine/gpu.h). In a build without CUDA they
/// are only for dry-run streams.
const KernelTables& gpu_tables();
const KernelTables& tables(Device device);

/// The part of visit_kernels that is about graphs.
template <class Visit>
void visit_graph_kernels(const KernelTables& all, const Visit& visit) {
  const auto& [linear, mlp, edges, sums, pools, elements, reductions, class_loss, optimizer, state_error,
               world_edges, solver_arrays, attention, latent, pair_loss, slice_attention] = all;
  {
    const auto& [saves_hidden, forward, backward] = edges;
    visit("message_passing", "saves_hidden", saves_hidden);
    visit("message_passing", "edge_update_forward", forward);
    visit("message_passing", "edge_update_backward", backward);
  }
  {
    const auto& [sum, gathering] = sums;
    visit("segment_sum", "segment_sum", sum);
    visit("segment_sum", "gather", gathering);
  }
  {
    const auto& [pool, pool_back] = pools;
    visit("graph_pool", "graph_pool_forward", pool);
    visit("graph_pool", "graph_pool_backward", pool_back);
  }
  {
    const auto& [find] = world_edges;
    visit("world_edges", "find_world_edges", find);
  }
  {
    const auto& [map, advance, displacements] = solver_arrays;
    visit("solver_arrays", "map_columns", map);
    visit("solver_arrays", "advance_state", advance);
    visit("solver_arrays", "edge_displacements", displacements);
  }
  {
    const auto& [attend, attend_back, score, score_back] = attention;
    visit("attention", "edge_attention_forward", attend);
    visit("attention", "edge_attention_backward", attend_back);
    visit("attention", "head_scores_forward", score);
    visit("attention", "head_scores_backward", score_back);
  }
  {
    const auto& [sample, sample_back, loss, loss_back] = latent;
    visit("latent", "sample_latent_forward", sample);
    visit("latent", "sample_latent_backward", sample_back);
    visit("latent", "latent_loss_forward", loss);
    visit("latent", "latent_loss_backward", loss_back);
  }
  {
    const auto& [loss, loss_back] = pair_loss;
    visit("pair_loss", "pair_loss_forward", loss);
    visit("pair_loss", "pair_loss_backward", loss_back);
  }
  {
    const auto& [tokens, tokens_back, spread, spread_back, attend, attend_back] = slice_attention;
    visit("slice_attention", "slice_tokens_forward", tokens);
    visit("slice_attention", "slice_tokens_backward", tokens_back);
    visit("slice_attention", "slice_spread_forward", spread);
    visit("slice_attention", "slice_spread_backward", spread_back);
    visit("slice_attention", "token_attention_forward", attend);
    visit("slice_attention", "token_attention_backward", attend_back);
  }
}

/// Calls visit(family, kernel, entry) for every entry, `kernel` being the name of the function that
/// dispatches to it. The bindings name every member, so that one which is added does not compile before it is
/// listed.
template <class Visit>
void visit_kernels(const KernelTables& all, const Visit& visit) {
  const auto& [linear, mlp, edges, sums, pools, elements, reductions, class_loss, optimizer, state_error,
               world_edges, solver_arrays, attention, latent, pair_loss, slice_attention] = all;
  visit_graph_kernels(all, visit);
  {
    const auto& [forward, backward] = linear;
    visit("linear", "linear_forward", forward);
    visit("linear", "linear_backward", backward);
  }
  {
    const auto& [saves_hidden, forward, backward] = mlp;
    visit("mlp", "saves_hidden", saves_hidden);
    visit("mlp", "mlp_forward", forward);
    visit("mlp", "mlp_backward", backward);
  }
  {
    const auto& [activate, activate_back, normalise, normalise_back, drop, bias, bias_back, largest,
                 largest_back, scaled_sum, convert] = elements;
    visit("elementwise", "activation_forward", activate);
    visit("elementwise", "activation_backward", activate_back);
    visit("elementwise", "norm_forward", normalise);
    visit("elementwise", "norm_backward", normalise_back);
    visit("elementwise", "dropout", drop);
    visit("elementwise", "add_bias_forward", bias);
    visit("elementwise", "add_bias_backward", bias_back);
    visit("elementwise", "maximum_forward", largest);
    visit("elementwise", "maximum_backward", largest_back);
    visit("elementwise", "axpby", scaled_sum);
    visit("elementwise", "cast", convert);
  }
  {
    const auto& [loss, loss_back, squares] = reductions;
    visit("reduction", "masked_loss_forward", loss);
    visit("reduction", "masked_loss_backward", loss_back);
    visit("reduction", "sum_of_squares", squares);
  }
  {
    const auto& [loss, loss_back] = class_loss;
    visit("class_loss", "class_loss_forward", loss);
    visit("class_loss", "class_loss_backward", loss_back);
  }
  {
    const auto& [loss, decision, update] = optimizer;
    visit("optimizer", "note_loss", loss);
    visit("optimizer", "optimizer_decide", decision);
    visit("optimizer", "optimizer_update", update);
  }
  {
    const auto& [accumulate, accumulate_back, add, add_back] = state_error;
    visit("state_error", "accumulate_error_forward", accumulate);
    visit("state_error", "accumulate_error_backward", accumulate_back);
    visit("state_error", "add_columns_forward", add);
    visit("state_error", "add_columns_backward", add_back);
  }
}

}  // namespace kernels
}  // namespace meshgrad
