// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/graph_pool.h>

namespace meshgrad {
namespace {

/// `index` belongs to max, and to no other.
void check_pool(std::string_view op, GraphPool pool, const Tensor& starts, const Tensor& per_graph,
                const Tensor& index) {
  check_tensor(op, "starts", starts, DType::i32, {per_graph.rows() + 1});
  if (pool == GraphPool::max) {
    check_tensor(op, "index", index, DType::i32, per_graph.shape());
  } else if (index.defined()) {
    throw invalid_argument(op, "no index but for max", "an index for " + std::string(name_of(pool)));
  }
}

}  // namespace

void kernels::graph_pool_forward(const GraphPoolForward& args, const Stream& stream) {
  constexpr std::string_view kOp = "graph_pool.forward";
  check_defined(kOp, "x", args.x);
  check_defined(kOp, "out", args.out);
  check_tensor(kOp, "out", args.out, args.x.dtype(), {args.graphs.capacity, args.x.width()});
  check_pool(kOp, args.pool, args.starts, args.out, args.index);
  kernels::tables(args.out.device()).graph_pool.graph_pool_forward(args, stream);
  note_work("graph_pool_forward", args);
}

void kernels::graph_pool_backward(const GraphPoolBackward& args, const Stream& stream) {
  constexpr std::string_view kOp = "graph_pool.backward";
  check_defined(kOp, "d_out", args.d_out);
  check_tensor(kOp, "d_out", args.d_out, args.d_out.dtype(), {args.graphs.capacity, args.d_out.width()});
  check_tensor(kOp, "d_x", args.d_x, args.d_out.dtype(), {args.nodes.capacity, args.d_out.width()});
  check_pool(kOp, args.pool, args.starts, args.d_out, args.index);
  kernels::tables(args.d_x.device()).graph_pool.graph_pool_backward(args, stream);
  note_work("graph_pool_backward", args);
}

Work work_of(const GraphPoolForward& args) {
  const auto values = static_cast<double>(args.x.elements());
  const auto sums = static_cast<double>(args.out.elements());
  return {.flops = args.pool == GraphPool::max ? 0.0 : values + (args.pool == GraphPool::mean ? sums : 0.0),
          .bytes = bytes_of(args.starts, args.x, args.out, args.index)};
}

Work work_of(const GraphPoolBackward& args) {
  const auto values = static_cast<double>(args.d_x.elements());
  return {.flops = (args.pool == GraphPool::mean ? values : 0.0) + (args.accumulate ? values : 0.0),
          .bytes = bytes_of(args.starts, args.d_out, args.index) + bytes_added(args.d_x, args.accumulate)};
}

}  // namespace meshgrad
