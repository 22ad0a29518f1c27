// SPDX-License-Identifier: Apache-2.0
// graph_pool: one row for each graph of a batch, from the rows of its nodes; or one for each node, from those
// of the edges that it receives. Sums run in their order, in the accumulation dtype, as those of segment_sum.
// x and out share one storage dtype (f32, f16 or bf16; f64 on the CPU). Throws InvalidArgument for a shape or
// dtype that does not fit.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/graph_choices.h>
#include <meshgrad/kernels/work.h>

namespace meshgrad {

/// out[g] = the sum, the mean or, column by column, the maximum of x[starts[g]] .. x[starts[g+1] - 1]; 0 of a
/// graph without nodes. A NaN is larger than any number.
struct GraphPoolForward {
  GraphPool pool = GraphPool::sum;
  Rows graphs;        ///< starts and rows past the real count are not read and not written
  Tensor starts;      ///< i32 [graphs + 1], ascending from 0
  Tensor x;           ///< [nodes, width]
  Tensor out;         ///< [graphs, width]
  Tensor index = {};  ///< i32 [graphs, width], of max alone: the first node that has it; -1: no node
};
/// d_x[i] = d_out[g] of the graph g that has node i; divided by its nodes for mean; 0 in a column whose
/// maximum another node has.
struct GraphPoolBackward {
  GraphPool pool = GraphPool::sum;
  Rows nodes;     ///< those of all graphs: starts[graphs]
  Rows graphs;    ///< as in forward
  Tensor starts;  ///< as in forward
  Tensor d_out;   ///< [graphs, width]
  Tensor d_x;     ///< [nodes, width]
  bool accumulate = false;
  Tensor index = {};  ///< as forward wrote it
};

Work work_of(const GraphPoolForward& args);
Work work_of(const GraphPoolBackward& args);

struct GraphPoolKernels {
  void (*graph_pool_forward)(const GraphPoolForward&, const Stream&);
  void (*graph_pool_backward)(const GraphPoolBackward&, const Stream&);
};

namespace kernels {
void graph_pool_forward(const GraphPoolForward& args, const Stream& stream);
void graph_pool_backward(const GraphPoolBackward& args, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
