// SPDX-License-Identifier: Apache-2.0
// A block takes 32 nodes, eight lanes to a node, and with all pairs goes over the nodes of their graphs in
// tiles of 32. Inner products are summed 32 columns of z at a time, so rows of any width fit; backward has a
// block for each 32 columns of the gradient. Pairs in the list are read by a node's eight lanes together.
#include <meshgrad/kernels/cuda/row_access.h>
#include <meshgrad/kernels/cuda/slab_sums.h>
#include <meshgrad/kernels/pair_loss.h>
#include <meshgrad/kernels/tables.h>

#include <cmath>

namespace meshgrad::cuda {
namespace {

constexpr int kPairTile = 32;
constexpr int kPairLanes = kSumThreads / kPairTile;  // of a node
constexpr int kPairItems = kPairTile / kPairLanes;   // nodes of a tile, or columns, that a lane has
constexpr int kPairPitch = kPairTile + 1;            // columns of shared arrays: rows in other banks
constexpr int kPairCells = kPairTile * kPairPitch;

struct PairArgs {
  Rows rows;
  int width, graphs;
  bool all_pairs;
  const void* z;
  const int32_t *graph_starts, *offsets, *others;
  const uint8_t* linked;  // null: all are
  const float* weights;
  double* sums;  // [blocks]
  const double* seed;
  void* d_z;
};

/// log(1 + exp(x)).
__device__ inline float softplus(float x) { return log1pf(expf(-fabsf(x))) + fmaxf(x, 0.0f); }
__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

/// One lane of a node.
template <class T>
struct PairLane {
  const PairArgs& args;
  int row, lane;       // within the block
  int64_t first, end;  // nodes of the block
  int64_t node;
  int graph = 0;
  float linked = 0.0f, other = 0.0f;  // weights

  __device__ PairLane(const PairArgs& a, int64_t tile)
      : args(a),
        row(static_cast<int>(threadIdx.x) / kPairLanes),
        lane(static_cast<int>(threadIdx.x) % kPairLanes),
        first(tile * kPairTile),
        end(min(first + kPairTile, real_rows(a.rows))),
        node(first + row) {
    if (node >= end) return;
    graph = graph_of(node);
    linked = args.weights[2 * graph];
    other = args.weights[2 * graph + 1];
  }
  __device__ const T* z(int64_t of_node) const {
    return static_cast<const T*>(args.z) + of_node * args.width;
  }
  /// Columns from `column` on of 32 nodes from `from` on; zeros outside. The whole block calls.
  __device__ void load(float* to, int64_t from, int64_t last, int column) const {
    for (int item = static_cast<int>(threadIdx.x); item < kPairTile * kPairTile; item += kSumThreads) {
      const int i = item / kPairTile, k = item % kPairTile;
      const bool inside = from + i < last && column + k < args.width;
      to[i * kPairPitch + k] = inside ? to_float(z(from + i)[column + k]) : 0.0f;
    }
  }
  /// Inner products of this node with the tile's nodes lane, lane + 8, ... The whole block calls.
  __device__ void multiply(float* rows, float* columns, int64_t from, int64_t last,
                           float (&products)[kPairItems]) const {
    for (int i = 0; i < kPairItems; ++i) products[i] = 0.0f;
    for (int column = 0; column < args.width; column += kPairTile) {
      __syncthreads();  // the arrays may still be read
      load(rows, first, end, column);
      load(columns, from, last, column);
      __syncthreads();
      for (int k = 0; k < kPairTile; ++k) {
        const float x = rows[row * kPairPitch + k];
        for (int i = 0; i < kPairItems; ++i)
          products[i] += x * columns[(lane + i * kPairLanes) * kPairPitch + k];
      }
    }
  }
  /// Whether a node of a tile makes a pair with this one.
  __device__ bool pairs_with(int64_t other_node) const {
    return node < end && other_node >= args.graph_starts[graph] && other_node < args.graph_starts[graph + 1];
  }
  /// The nodes of the graphs that the block's nodes belong to.
  __device__ int graph_of(int64_t of) const {
    return static_cast<int>(cuda::graph_of(args.graph_starts, args.graphs, of));
  }
  __device__ int64_t tiles_begin() const { return args.graph_starts[graph_of(first)]; }
  __device__ int64_t tiles_end() const { return args.graph_starts[graph_of(end - 1) + 1]; }

  /// Calls body(counts, other node, whether linked, inner product) as often in each lane of a warp.
  template <class Body>
  __device__ void each_entry(const Body& body) const {
    const int begin = node < end ? args.offsets[node] : 0;
    const int entries = node < end ? args.offsets[node + 1] - begin : 0;
    int most = entries;
    for (int step = 16; step >= kPairLanes; step /= 2)
      most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    for (int e = 0; e < most; ++e) {
      const bool counts = e < entries;
      const int64_t j = counts ? args.others[begin + e] : node;
      float product = 0.0f;
      for (int k = lane; counts && k < args.width; k += kPairLanes)
        product += to_float(z(node)[k]) * to_float(z(j)[k]);
      product = group_sum(product, kPairLanes);
      body(counts, j, counts && (args.linked == nullptr || args.linked[begin + e] != 0), product);
    }
  }
};

template <class T>
__global__ void pair_loss_kernel(PairArgs args) {
  MESHGRAD_SHARED(double, sums, kSumThreads);
  MESHGRAD_SHARED(float, rows, kPairCells);
  MESHGRAD_SHARED(float, columns, kPairCells);
  const PairLane<T> own(args, blockIdx.x);
  double sum = 0.0;
  own.each_entry([&](bool counts, int64_t, bool linked, float product) {
    if (!counts || own.lane != 0) return;
    float loss = (linked ? own.linked : own.other) * softplus(linked ? -product : product);
    if (args.all_pairs) loss -= own.other * softplus(product);  // all pairs below have that term
    sum += static_cast<double>(loss);
  });
  if (args.all_pairs && own.first < own.end) {
    const int64_t last = own.tiles_end();
    for (int64_t from = own.tiles_begin(); from < last; from += kPairTile) {
      float products[kPairItems];
      own.multiply(rows, columns, from, last, products);
      for (int i = 0; i < kPairItems; ++i)
        if (own.pairs_with(from + own.lane + i * kPairLanes))
          sum += static_cast<double>(own.other) * static_cast<double>(softplus(products[i]));
    }
  }
  sum = block_sum(sums, sum);
  if (threadIdx.x == 0) args.sums[blockIdx.x] = sum;
}

/// 32 nodes of 32 columns of the gradient; a lane has four columns of its node.
template <class T>
__global__ void pair_gradient_kernel(PairArgs args) {
  MESHGRAD_SHARED(float, rows, kPairCells);
  MESHGRAD_SHARED(float, columns, kPairCells);
  MESHGRAD_SHARED(float, slopes, kPairCells);
  const int parts = (args.width + kPairTile - 1) / kPairTile;
  const int part = static_cast<int>(blockIdx.x) % parts * kPairTile;
  const PairLane<T> own(args, blockIdx.x / parts);
  const int column = own.lane * kPairItems;
  float d[kPairItems] = {};
  own.each_entry([&](bool counts, int64_t j, bool linked, float product) {
    if (!counts) return;
    float slope = linked ? -own.linked * sigmoid(-product) : own.other * sigmoid(product);
    if (args.all_pairs) slope -= own.other * sigmoid(product);
    for (int k = 0; k < kPairItems; ++k)
      if (part + column + k < args.width) d[k] += slope * to_float(own.z(j)[part + column + k]);
  });
  if (args.all_pairs && own.first < own.end) {
    const int64_t last = own.tiles_end();
    for (int64_t from = own.tiles_begin(); from < last; from += kPairTile) {
      float products[kPairItems];
      own.multiply(rows, columns, from, last, products);
      __syncthreads();
      for (int i = 0; i < kPairItems; ++i) {
        const int at = own.lane + i * kPairLanes;
        slopes[own.row * kPairPitch + at] =
            own.pairs_with(from + at) ? own.other * sigmoid(products[i]) : 0.0f;
      }
      own.load(columns, from, last, part);
      __syncthreads();
      for (int i = 0; i < kPairTile; ++i) {
        const float slope = slopes[own.row * kPairPitch + i];
        if (slope == 0.0f) continue;  // a node of another graph may hold anything
        for (int k = 0; k < kPairItems; ++k) d[k] += slope * columns[i * kPairPitch + column + k];
      }
    }
  }
  if (own.node >= own.end) return;
  const float seed = 2.0f * static_cast<float>(*args.seed);
  for (int k = 0; k < kPairItems; ++k)
    if (part + column + k < args.width)
      static_cast<T*>(args.d_z)[own.node * args.width + part + column + k] = to_storage<T>(seed * d[k]);
}

PairArgs pair_args(const Rows& rows, const Tensor& z, const NodePairs& pairs) {
  return {.rows = rows,
          .width = static_cast<int>(z.width()),
          .graphs = static_cast<int>(pairs.weights.rows()),
          .all_pairs = pairs.all_pairs,
          .z = z.raw(),
          .graph_starts = pairs.graph_starts.data<int32_t>(),
          .offsets = pairs.offsets.data<int32_t>(),
          .others = pairs.others.data<int32_t>(),
          .linked = pairs.linked.data_or_null<uint8_t>(),
          .weights = pairs.weights.data<float>(),
          .sums = nullptr,
          .seed = nullptr,
          .d_z = nullptr};
}

void pair_loss_forward(const PairLossForward& args, Runtime& runtime, const Stream& stream) {
  const int64_t blocks = blocks_for(args.rows.capacity, kPairTile);
  const Tensor sums = empty_slab_sums(runtime, blocks);
  PairArgs call = pair_args(args.rows, args.z, args.pairs);
  call.sums = sums.data<double>();
  dispatch_gpu_storage(args.z.dtype(), [&]<class T>() {
    launch("pair_loss.forward", pair_loss_kernel<T>, {.blocks = blocks, .threads = kSumThreads}, stream,
           call);
  });
  add_slabs("pair_loss.finish",
            {.first = call.sums,
             .second = nullptr,
             .slabs = blocks,
             .first_sum = args.sum.data<double>(),
             .second_sum = nullptr,
             .add = args.accumulate,
             .non_finite = nullptr},
            stream);
}

void pair_loss_backward(const PairLossBackward& args, Runtime&, const Stream& stream) {
  PairArgs call = pair_args(args.rows, args.z, args.pairs);
  call.seed = args.seed.data<double>();
  call.d_z = args.d_z.raw();
  const int64_t blocks = blocks_for(args.rows.capacity, kPairTile) * blocks_for(args.z.width(), kPairTile);
  dispatch_gpu_storage(args.z.dtype(), [&]<class T>() {
    launch("pair_loss.backward", pair_gradient_kernel<T>, {.blocks = blocks, .threads = kSumThreads}, stream,
           call);
  });
}

}  // namespace

const PairLossKernels pair_loss_kernels{
    .pair_loss_forward = pair_loss_forward,
    .pair_loss_backward = pair_loss_backward,
};

}  // namespace meshgrad::cuda
