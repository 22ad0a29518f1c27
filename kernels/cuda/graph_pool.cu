// SPDX-License-Identifier: Apache-2.0
// Sums and means are those of segment_sum. For a maximum a block takes a graph: its groups of lanes take the
// nodes in turn, and the first group compares what they found.
#include <meshgrad/kernels/cuda/row_access.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

constexpr int kPoolThreads = 128;

/// The largest value so far and the first node that has it; -1: none. A NaN is the largest.
struct Largest {
  float value = 0.0f;
  int node = -1;
  __device__ void take(float other, int other_node) {
    if (other_node < 0) return;
    const bool no_number = value != value, other_no_number = other != other;
    const bool same = other == value || (other_no_number && no_number);
    const bool larger = other > value || (other_no_number && !no_number);
    if (node >= 0 && !larger && !(same && other_node < node)) return;
    value = other;
    node = other_node;
  }
};

template <class T>
struct MaxArgs {
  const int32_t* starts;
  const T* x;
  T* out;
  int32_t* index;
  Rows graphs;
  int width, lanes;
};

template <class T>
__global__ void graph_max_kernel(MaxArgs<T> args) {
  MESHGRAD_SHARED(float, values, kPoolThreads);
  MESHGRAD_SHARED(int, nodes, kPoolThreads);
  const int lane = static_cast<int>(threadIdx.x) % args.lanes;
  const int group = static_cast<int>(threadIdx.x) / args.lanes;
  const int groups = kPoolThreads / args.lanes;
  const int64_t graphs = real_rows(args.graphs);
  for (int64_t g = blockIdx.x; g < graphs; g += gridDim.x) {
    const int begin = args.starts[g], end = args.starts[g + 1];
    for (int first = 0; first < args.width; first += args.lanes) {
      const int column = first + lane;
      const bool mine = column < args.width;
      Largest found;
      for (int i = begin + group; mine && i < end; i += groups)
        found.take(to_float(args.x[int64_t{i} * args.width + column]), i);
      values[threadIdx.x] = found.value;
      nodes[threadIdx.x] = found.node;
      __syncthreads();  // what each group found is complete
      if (group == 0 && mine) {
        for (int other = 1; other < groups; ++other)
          found.take(values[other * args.lanes + lane], nodes[other * args.lanes + lane]);
        args.out[g * args.width + column] =
            found.node < 0 ? to_storage<T>(0.0f) : args.x[int64_t{found.node} * args.width + column];
        args.index[g * args.width + column] = found.node;
      }
      __syncthreads();  // and read: the next columns overwrite it
    }
  }
}

template <class T>
struct SpreadArgs {
  Rows nodes, graphs;
  const int32_t *starts, *index;  // index: null but for max
  const T* d_out;
  T* d_x;
  int width, lanes;
  bool mean, accumulate;
};

template <class T>
__global__ void graph_spread_kernel(SpreadArgs<T> args) {
  const int64_t nodes = real_rows(args.nodes), graphs = real_rows(args.graphs);
  const int lane = static_cast<int>(threadIdx.x) % args.lanes;
  const int group = static_cast<int>(threadIdx.x) / args.lanes;
  const int groups = kPoolThreads / args.lanes;
  for (int64_t i = int64_t{blockIdx.x} * groups + group; i < nodes; i += int64_t{gridDim.x} * groups) {
    const int64_t g = graph_of(args.starts, graphs, i);
    const float scale = args.mean ? 1.0f / static_cast<float>(args.starts[g + 1] - args.starts[g]) : 1.0f;
    for (int column = lane; column < args.width; column += args.lanes) {
      const int64_t from = g * args.width + column;
      T* const to = args.d_x + i * args.width + column;
      const bool reached = args.index == nullptr || args.index[from] == i;
      const float gradient = reached ? scale * to_float(args.d_out[from]) : 0.0f;
      *to = to_storage<T>(args.accumulate ? to_float(*to) + gradient : gradient);
    }
  }
}

void graph_pool_forward(const GraphPoolForward& args, const Stream& stream) {
  const int64_t width = args.x.width();
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
  const LaunchShape shape{persistent_blocks(stream, args.graphs.capacity, 1, 16), kPoolThreads, 0};
  dispatch_gpu_storage(args.out.dtype(), [&]<class T>() {
    launch("graph_max", graph_max_kernel<T>, shape, stream,
           MaxArgs<T>{args.starts.data<int32_t>(), args.x.data<T>(), args.out.data<T>(),
                      args.index.data<int32_t>(), args.graphs, static_cast<int>(width), lanes_of(width, 1)});
  });
}

void graph_pool_backward(const GraphPoolBackward& args, const Stream& stream) {
  const int64_t width = args.d_x.width();
  const int lanes = lanes_of(width, 1);
  const LaunchShape shape{persistent_blocks(stream, args.nodes.capacity, kPoolThreads / lanes, 16),
                          kPoolThreads, 0};
  dispatch_gpu_storage(args.d_x.dtype(), [&]<class T>() {
    launch("graph_pool_backward", graph_spread_kernel<T>, shape, stream,
           SpreadArgs<T>{args.nodes, args.graphs, args.starts.data<int32_t>(),
                         args.index.data_or_null<int32_t>(), args.d_out.data<T>(), args.d_x.data<T>(),
                         static_cast<int>(width), lanes, args.pool == GraphPool::mean, args.accumulate});
  });
}

}  // namespace

const GraphPoolKernels graph_pool_kernels{.graph_pool_forward = graph_pool_forward,
                                          .graph_pool_backward = graph_pool_backward};

}  // namespace meshgrad::cuda
