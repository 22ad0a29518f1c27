// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/tables.h>

#include <algorithm>
#include <cmath>

namespace meshgrad::cpu {
namespace {

constexpr int64_t kGraphsPerTask = 16;
constexpr int64_t kNodesPerTask = 256;

/// The first node of the largest value of each column, and that value's bits.
template <class S>
void max_of(const GraphPoolForward& args, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t graphs = args.graphs.value(), width = args.x.width();
  const int32_t* starts = args.starts.data<int32_t>();
  const S* x = args.x.data<S>();
  stream.parallel_for((graphs + kGraphsPerTask - 1) / kGraphsPerTask, [&](int64_t task) {
    for (int64_t g = task * kGraphsPerTask; g < std::min(graphs, (task + 1) * kGraphsPerTask); ++g) {
      S* const out = args.out.data<S>() + g * width;
      int32_t* const index = args.index.data<int32_t>() + g * width;
      const bool empty = starts[g] == starts[g + 1];
      std::fill_n(index, width, empty ? -1 : starts[g]);
      if (empty) {
        std::fill_n(out, width, S());
        continue;
      }
      std::copy_n(x + starts[g] * width, width, out);
      for (int32_t i = starts[g] + 1; i < starts[g + 1]; ++i) {
        for (int64_t c = 0; c < width; ++c) {
          const auto value = static_cast<A>(x[i * width + c]), largest = static_cast<A>(out[c]);
          if (value <= largest || std::isnan(largest)) continue;
          out[c] = x[i * width + c];
          index[c] = i;
        }
      }
    }
  });
}

template <class S>
void graph_pool_backward_of(const GraphPoolBackward& args, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t nodes = args.nodes.value(), width = args.d_x.width();
  const int32_t* starts = args.starts.data<int32_t>();
  const int32_t* index = args.index.data_or_null<int32_t>();
  stream.parallel_for((nodes + kNodesPerTask - 1) / kNodesPerTask, [&](int64_t task) {
    const int64_t begin = task * kNodesPerTask;
    int64_t g = std::upper_bound(starts, starts + args.graphs.value() + 1, begin) - starts - 1;
    for (int64_t i = begin; i < std::min(nodes, begin + kNodesPerTask); ++i) {
      while (starts[g + 1] <= i) ++g;
      const A scale = args.pool == GraphPool::mean ? A(1) / static_cast<A>(starts[g + 1] - starts[g]) : A(1);
      const S* const from = args.d_out.data<S>() + g * width;
      S* const to = args.d_x.data<S>() + i * width;
      for (int64_t c = 0; c < width; ++c) {
        const bool reached = index == nullptr || index[g * width + c] == i;
        const A gradient = reached ? scale * static_cast<A>(from[c]) : A(0);
        to[c] = S(args.accumulate ? static_cast<A>(to[c]) + gradient : gradient);
      }
    }
  });
}

}  // namespace

const GraphPoolKernels graph_pool_kernels{
    .graph_pool_forward =
        [](const GraphPoolForward& args, const Stream& stream) {
          if (args.pool != GraphPool::max) {
            segment_sum_kernels.segment_sum({.segments = args.graphs,
                                             .offsets = args.starts,
                                             .order = {},
                                             .x = args.x,
                                             .out = args.out,
                                             .mean = args.pool == GraphPool::mean},
                                            stream);
            return;
          }
          dispatch_cpu_storage(args.out.dtype(), [&]<class S>() { max_of<S>(args, stream); });
        },
    .graph_pool_backward =
        [](const GraphPoolBackward& args, const Stream& stream) {
          dispatch_cpu_storage(args.d_x.dtype(), [&]<class S>() { graph_pool_backward_of<S>(args, stream); });
        },
};

}  // namespace meshgrad::cpu
