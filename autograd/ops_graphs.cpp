// SPDX-License-Identifier: Apache-2.0
// Ops on the nodes of a graph, and on the edges of a node.
#include <meshgrad/autograd/ops.h>
#include <meshgrad/kernels/graph_pool.h>

namespace meshgrad::ops {

namespace {

Variable pool_segments(Tape& tape, const Variable& x, const Rows& segments, const Tensor& starts,
                       GraphPool pool) {
  const int64_t width = x.value().width();
  Variable y = tape.output(segments, width, x.value().dtype(), x.needs_gradient(), "graph_pool");
  // An output, since recomputation runs an op for its outputs alone.
  Variable index;
  if (pool == GraphPool::max)
    index = tape.output(y.value().shape(), segments, DType::i32, false, "nodes of maxima");
  if (tape.runs()) {
    kernels::graph_pool_forward({.pool = pool,
                                 .graphs = segments,
                                 .starts = starts,
                                 .x = x.value(),
                                 .out = y.value(),
                                 .index = index ? index.value() : Tensor()},
                                tape.stream());
  }
  tape.record({.op = "graph_pool", .inputs = {&x, 1}, .backward_reads_outputs = pool == GraphPool::max},
              [x = x.slot(), y = y.slot(), starts, pool, index](Tape& back) {
                const Tensor d_y = back.take_gradient(y);
                if (!d_y.defined()) return;
                const GradientTarget d_x = back.gradient_for(x);
                if (!d_x.tensor.defined()) return;
                kernels::graph_pool_backward({.pool = pool,
                                              .nodes = x.rows(),
                                              .graphs = y.rows(),
                                              .starts = starts,
                                              .d_out = d_y,
                                              .d_x = d_x.tensor,
                                              .accumulate = d_x.accumulate,
                                              .index = index ? index.value() : Tensor()},
                                             back.stream());
              });
  return y;
}

}  // namespace

Variable graph_pool(Tape& tape, const Variable& x, const Tensor& graph_starts, GraphPool pool) {
  return pool_segments(tape, x, graph_starts.rows() - 1, graph_starts, pool);
}

Variable edge_pool(Tape& tape, const Variable& x, const Graph& graph, GraphPool pool) {
  return pool_segments(tape, x, graph.owned_rows(), graph.receiver_offsets, pool);
}

}  // namespace meshgrad::ops
