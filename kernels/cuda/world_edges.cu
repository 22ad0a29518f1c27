// SPDX-License-Identifier: Apache-2.0
// The table of cells is a counting sort: count, scan, place. Then every receiver's thread searches twice, to
// count its edges and to write them; a second counting sort orders the edges by sender. Atomic operations
// are on integers and only number places, and each list is sorted where it ends up, so that the result does
// not depend on the order of threads.
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/cuda/row_access.h>
#include <meshgrad/kernels/tables.h>
#include <meshgrad/kernels/world_grid.h>

namespace meshgrad::cuda {
namespace {

using namespace world_grid;

constexpr int kSearchThreads = 128;
constexpr int kSearchBlocksPerSm = 16;
constexpr int kScanThreads = 1024;
constexpr int kScanItems = 8;  // neighbouring ones of a thread

/// Calls body(i) for the numbers below `count` of this thread.
template <class Body>
__device__ void each_of(int64_t count, const Body& body) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    body(static_cast<int32_t>(i));
}

/// Puts a number into a list that is sorted up to `count`.
__device__ void insert_sorted(int32_t* list, int64_t count, int32_t value) {
  for (; count > 0 && list[count - 1] > value; --count) list[count] = list[count - 1];
  list[count] = value;
}

struct TableArgs {
  WorldGrid grid;
  Rows nodes;
};
__global__ void count_members_kernel(TableArgs args) {
  each_of(real_rows(args.nodes), [&](int32_t node) {
    if (has_place(args.grid, node)) atomicAdd(&args.grid.starts[bucket_of(args.grid, node)], 1);
  });
}
/// `starts` are ends before, and starts when all nodes have their place.
__global__ void place_members_kernel(TableArgs args) {
  each_of(real_rows(args.nodes), [&](int32_t node) {
    if (!has_place(args.grid, node)) return;
    args.grid.members[atomicAdd(&args.grid.starts[bucket_of(args.grid, node)], -1) - 1] = node;
  });
}

/// Of nodes that are crowded no edge is found.
struct Crowding {
  const int64_t* squares;  // or null: never
  __device__ bool ends_search(int64_t nodes) const {
    return squares != nullptr && is_crowded(*squares, nodes);
  }
};

struct ScanArgs {
  Rows items;
  int32_t* values;   // [items + 1]
  bool ends;         // each becomes the sum through itself, else of those before it; the last one of all
  int64_t room;      // sums end there
  int64_t* squares;  // or null: the sum of the squared values
  int64_t* counts;   // or null: of a graph, that of edges from the sum of all
  int64_t* missing;  // or null: what has no room
  Crowding crowding;
};
/// One block: a mesh's counts are few. Each thread sums neighbouring items, and a warp's lanes and the
/// block's warps are summed by shuffles.
__global__ void scan_kernel(ScanArgs args) {
  MESHGRAD_SHARED(int64_t, warp_sums, kScanThreads / 32);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t items = real_rows(args.items);
  int64_t carry = 0, squares = 0;
  for (int64_t tile = 0; tile < items; tile += int64_t{kScanThreads} * kScanItems) {
    const int64_t first = tile + int64_t{threadIdx.x} * kScanItems;
    int32_t own[kScanItems];
    int64_t sum = 0;
    for (int i = 0; i < kScanItems; ++i) {
      own[i] = first + i < items ? args.values[first + i] : 0;
      sum += own[i];
      squares += int64_t{own[i]} * own[i];
    }
    int64_t through = sum;
    for (int step = 1; step < 32; step *= 2) {
      const int64_t other = __shfl_up_sync(0xffffffffu, through, step);
      if (lane >= step) through += other;
    }
    if (lane == 31) warp_sums[warp] = through;
    __syncthreads();
    int64_t before = carry, all = carry;
    for (int other = 0; other < kScanThreads / 32; ++other) {
      if (other < warp) before += warp_sums[other];
      all += warp_sums[other];
    }
    before += through - sum;
    for (int i = 0; i < kScanItems && first + i < items; ++i) {
      const int64_t after = before + own[i];
      const int64_t value = args.ends ? after : before;
      args.values[first + i] = static_cast<int32_t>(value < args.room ? value : args.room);
      before = after;
    }
    carry = all;
    __syncthreads();
  }
  if (args.squares != nullptr) {
    for (int step = 16; step > 0; step /= 2) squares += __shfl_down_sync(0xffffffffu, squares, step);
    if (lane == 0) warp_sums[warp] = squares;
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  if (args.squares != nullptr) {
    squares = 0;
    for (int other = 0; other < kScanThreads / 32; ++other) squares += warp_sums[other];
    *args.squares = squares;
  }
  const int64_t kept = carry < args.room ? carry : args.room;
  args.values[items] = static_cast<int32_t>(kept);
  if (args.missing != nullptr)
    *args.missing = args.crowding.ends_search(items) ? int64_t{INT32_MAX} : carry - kept;
  if (args.counts == nullptr) return;
  args.counts[0] = args.counts[1] = items;
  args.counts[2] = kept;
}

struct CountArgs {
  WorldGrid grid;
  Rows nodes;
  Crowding crowding;
  int32_t* edges;  // of each receiver
};
__global__ void count_edges_kernel(CountArgs args) {
  const bool crowded = args.crowding.ends_search(real_rows(args.nodes));
  each_of(real_rows(args.nodes), [&](int32_t receiver) {
    int32_t count = 0;
    if (!crowded) each_sender(args.grid, receiver, [&](int32_t) { ++count; });
    args.edges[receiver] = count;
  });
}

template <class T>
struct WriteArgs {
  WorldGrid grid;
  Rows nodes;
  const int32_t* offsets;
  const double* scale;
  int32_t *senders, *receivers;
  int32_t* sent;  // how many edges each sender has
  T* features;
};
/// Where the room ends within a receiver's edges, any of them are kept.
template <class T>
__global__ void write_edges_kernel(WriteArgs<T> args) {
  each_of(real_rows(args.nodes), [&](int32_t receiver) {
    const WorldGrid& grid = args.grid;
    const int64_t begin = args.offsets[receiver], room = args.offsets[receiver + 1] - begin;
    if (room == 0) return;
    int64_t count = 0;
    each_sender(grid, receiver, [&](int32_t sender) {
      if (count < room) insert_sorted(args.senders + begin, count++, sender);
    });
    const int width = grid.dim + 1;
    for (int64_t edge = begin; edge < begin + room; ++edge) {
      const int32_t sender = args.senders[edge];
      args.receivers[edge] = receiver;
      atomicAdd(&args.sent[sender], 1);
      double squares = 0.0;
      for (int axis = 0; axis < width; ++axis) {
        const double d = axis < grid.dim ? displacement(grid, sender, receiver, axis) : sqrt(squares);
        squares = times_plus(d, d, squares);
        const double rounded = static_cast<float>(d);
        args.features[edge * width + axis] =
            to_storage<T>(static_cast<float>((rounded - args.scale[axis]) * args.scale[width + axis]));
      }
    }
  });
}

struct OrderArgs {
  Rows edges, nodes;
  const int32_t* senders;
  int32_t* offsets;  // ends before, starts afterwards
  int32_t* order;
};
__global__ void place_edges_kernel(OrderArgs args) {
  each_of(real_rows(args.edges),
          [&](int32_t edge) { args.order[atomicAdd(&args.offsets[args.senders[edge]], -1) - 1] = edge; });
}
__global__ void sort_by_edge_kernel(OrderArgs args) {
  each_of(real_rows(args.nodes), [&](int32_t sender) {
    int32_t* const own = args.order + args.offsets[sender];
    const int64_t count = args.offsets[sender + 1] - args.offsets[sender];
    for (int64_t i = 1; i < count; ++i) insert_sorted(own, i, own[i]);
  });
}

void scan(const char* name, const Stream& stream, const ScanArgs& args) {
  launch(name, scan_kernel, {.blocks = 1, .threads = kScanThreads}, stream, args);
}

LaunchShape search_shape(const Stream& stream, int64_t items) {
  return {.blocks = persistent_blocks(stream, items, kSearchThreads, kSearchBlocksPerSm),
          .threads = kSearchThreads};
}

void find(const FindWorldEdges& args, Runtime& runtime, const Stream& stream) {
  constexpr int64_t kNoEnd = INT32_MAX;
  const int64_t nodes = args.mesh.nodes, buckets = buckets_for(nodes);
  const Tensor starts = Tensor::zeros(runtime, {buckets + 1}, DType::i32, Tag::workspace, "cell starts");
  const Tensor members = Tensor::empty(runtime, {nodes}, DType::i32, Tag::workspace, "cell members");
  const Tensor squares = Tensor::empty(runtime, {1}, DType::i64, Tag::workspace, "crowding of cells");
  const Crowding crowding{squares.data<int64_t>()};
  const auto* const labels = args.labels.data<int32_t>();
  WorldGrid grid{.positions = args.positions.data<float>(),
                 .meshes = labels,
                 .types = args.other_type ? labels + nodes : nullptr,
                 .points = args.images ? labels + 2 * nodes : nullptr,
                 .joined_offsets = args.mesh.receiver_offsets.data<int32_t>(),
                 .joined = args.mesh.senders.data<int32_t>(),
                 .joined_count = args.mesh.edges,
                 .starts = starts.data<int32_t>(),
                 .members = members.data<int32_t>(),
                 .buckets = buckets,
                 .dim = static_cast<int>(args.positions.width()),
                 .radius = args.radius};
  for (int axis = 0; axis < 3; ++axis) {
    grid.period[axis] = args.period[static_cast<size_t>(axis)];
    grid.cells[axis] = cells_of_period(grid.period[axis], args.radius);
  }
  const Rows rows = args.mesh.node_rows();
  const LaunchShape shape = search_shape(stream, nodes);
  auto* const offsets = args.found.receiver_offsets.data<int32_t>();
  auto* const sender_offsets = args.found.sender_offsets.data<int32_t>();
  auto* const senders = args.found.senders.data<int32_t>();
  launch("world_edges.count_members", count_members_kernel, shape, stream, TableArgs{grid, rows});
  scan("world_edges.scan_cells", stream,
       {.items = buckets,
        .values = grid.starts,
        .ends = true,
        .room = kNoEnd,
        .squares = squares.data<int64_t>()});
  launch("world_edges.place_members", place_members_kernel, shape, stream, TableArgs{grid, rows});
  launch("world_edges.count_edges", count_edges_kernel, shape, stream,
         CountArgs{grid, rows, crowding, offsets});
  scan("world_edges.scan_edges", stream,
       {.items = rows,
        .values = offsets,
        .ends = false,
        .room = args.found.edges,
        .squares = nullptr,
        .counts = args.found.counts.data<int64_t>(),
        .missing = args.missing.data<int64_t>(),
        .crowding = crowding});
  fill_zero(args.found.sender_offsets, stream);
  dispatch_gpu_storage(args.features.dtype(), [&]<class T>() {
    launch("world_edges.write", write_edges_kernel<T>, shape, stream,
           WriteArgs<T>{grid, rows, offsets, args.scale.data<double>(), senders,
                        args.found.receivers.data<int32_t>(), sender_offsets, args.features.data<T>()});
  });
  scan("world_edges.scan_senders", stream,
       {.items = rows, .values = sender_offsets, .ends = true, .room = kNoEnd});
  const OrderArgs order{args.found.edge_rows(), rows, senders, sender_offsets,
                        args.found.sender_order.data<int32_t>()};
  launch("world_edges.place_edges", place_edges_kernel, search_shape(stream, args.found.edges), stream,
         order);
  launch("world_edges.sort_edges", sort_by_edge_kernel, shape, stream, order);
}

}  // namespace

const WorldEdgeKernels world_edge_kernels{.find = find};

}  // namespace meshgrad::cuda
