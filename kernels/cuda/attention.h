// SPDX-License-Identifier: Apache-2.0
// What the attention kernels share. An item is one head of one node, and belongs to a group of `lanes`
// neighbouring threads (row_access.h) that walks over the node's edges in order; neighbouring groups hold
// neighbouring heads, so a warp reads whole rows. 128 columns of f16 in 8 heads are 8 items of 2 lanes, each
// with one 16-byte vector: a warp has two nodes at a time.
//
// A node of more than kLongNode edges is taken by a whole block, in slabs of as many edges, whose results are
// merged in order. The number fixes the order of a sum and so its bits; it does not depend on the device.
#pragma once
#include <meshgrad/kernels/attention.h>
#include <meshgrad/kernels/cuda/row_access.h>

#include <cmath>

namespace meshgrad::cuda::attention {

inline constexpr int kThreads = 128;
inline constexpr int kLongNode = 256;
/// Of a multiprocessor at once, which bounds the registers of a thread.
inline constexpr int kBlocksPerSm = 4;

template <class T, int kElements>
using Access = std::conditional_t<kElements == 1, T, Vector<T>>;

/// One call's tensors as pointers; null: undefined.
template <class T>
struct Args {
  Rows nodes, receiver_rows;
  int heads, dim, lanes;
  int64_t width;
  bool self_edges;
  float slope, scale;  // scale: of dot's scores
  const int32_t *senders, *receivers, *receiver_offsets, *sender_offsets, *sender_order;
  const T *values, *keys, *queries, *edge_scores;  // keys: never null
  const float *sender_scores, *receiver_scores, *weight;
  DropoutMask dropout;
  T* out;
  float* log_sums;

  // Backward.
  const T* d_out;
  float *dots, *d_scores, *d_self_scores;
  T *d_values, *d_keys, *d_queries, *d_edge_scores;
  float *d_sender_scores, *weight_rows;  // weight_rows: [receivers, width], d_weight of each receiver
  bool add_values, add_keys, add_queries, add_edge_scores, add_sender_scores, values_are_keys;
};

/// One lane's part of one head of a row, as it is stored.
template <class T, int kElements, int kAccesses>
struct HeadPart {
  Access<T, kElements> part[kAccesses];

  __device__ static int column(const Args<T>& args, int lane, int access) {
    return (access * args.lanes + lane) * kElements;
  }
  /// Zeros when not `valid`, and after the head's end.
  __device__ void load(const Args<T>& args, const T* head, int lane, bool valid) {
#pragma unroll 1
    for (int access = 0; access < kAccesses; ++access) {
      const int at = column(args, lane, access);
      part[access] = {};
      if (valid && at < args.dim) part[access] = *reinterpret_cast<const Access<T, kElements>*>(head + at);
    }
  }
  __device__ float at(int access, int i) const {
    if constexpr (kElements == 1) {
      return to_float(part[access]);
    } else {
      return to_float(part[access].v[i]);
    }
  }
};

/// What an item sums by its lane's columns.
template <int kElements, int kAccesses>
struct Columns {
  float v[kAccesses][kElements];

  __device__ void clear() {
#pragma unroll 1
    for (int access = 0; access < kAccesses; ++access) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) v[access][i] = 0.0f;
    }
  }
  template <class Body>
  __device__ static void each(const Body& body) {
#pragma unroll 1
    for (int access = 0; access < kAccesses; ++access) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) body(access, i);
    }
  }
  /// head [+]= scale * these.
  template <class T>
  __device__ void store(const Args<T>& args, T* head, int lane, bool add, float scale = 1.0f) const {
#pragma unroll 1
    for (int access = 0; access < kAccesses; ++access) {
      const int at = HeadPart<T, kElements, kAccesses>::column(args, lane, access);
      if (at >= args.dim) continue;
      float values[kElements], start[kElements] = {};
      if (add) load_floats(head + at, start);
#pragma unroll
      for (int i = 0; i < kElements; ++i) values[i] = start[i] + scale * v[access][i];
      store_floats(head + at, values);
    }
  }
  /// To and from shared memory: kElements kAccesses floats.
  static constexpr int kFloats = kElements * kAccesses;
  __device__ void save(float* to) const {
    each([&](int access, int i) { to[access * kElements + i] = v[access][i]; });
  }
  __device__ void add(const float* from, float scale = 1.0f) {
    each([&](int access, int i) { v[access][i] += scale * from[access * kElements + i]; });
  }
};

__device__ inline float leaky(float x, float slope) { return x > 0.0f ? x : slope * x; }
__device__ inline float leaky_slope(float x, float slope) { return x > 0.0f ? 1.0f : slope; }
/// exp(x), 0 for -infinity.
__device__ inline float exponential(float x) { return fast_exp2(x * 1.4426950408889634f); }

/// A thread's place: its group in the block, and its lane in the group.
struct Place {
  int lane, group, groups;
  __device__ explicit Place(int lanes)
      : lane(static_cast<int>(threadIdx.x) % lanes),
        group(static_cast<int>(threadIdx.x) / lanes),
        groups(kThreads / lanes) {}
};

/// Runs a pass over all items of `nodes` nodes. The pass has
///   State                   what it sums over an item's edges: clear(), save(float*), merge(const float*)
///   entries(node)           the number of the node's edges, with its self edge
///   begin(node, head, ok)   loads what the node has; nothing unless `ok`
///   add(state, first, last) adds a range of its edges; all lanes of a warp call it
///   finish(state)           writes the item's results
/// `slabs` is shared memory: State::kFloats for each thread.
template <class Pass>
__device__ void over_items(Pass& pass, int64_t nodes, int heads, int lanes, float* slabs) {
  using State = typename Pass::State;
  const Place at(lanes);
  const int64_t items = nodes * heads, step = int64_t{gridDim.x} * at.groups;
  State state;
  int has_long = 0;
  // The group's node and head move on by additions: divisions of 64 bits take as long as an edge.
  const int64_t mine_first = int64_t{blockIdx.x} * at.groups + at.group, node_step = step / heads;
  const int head_step = static_cast<int>(step % heads);
  int64_t node = mine_first / heads;
  int head = static_cast<int>(mine_first % heads);
  // All lanes of a warp stay together, since passes exchange values: groups after the last item add nothing.
  for (int64_t first = int64_t{blockIdx.x} * at.groups; first < items; first += step) {
    const int64_t entries = node < nodes ? pass.entries(node) : 0;
    if (entries > kLongNode) has_long = 1;
    const bool mine = node < nodes && entries <= kLongNode;
    pass.begin(node, head, mine);
    state.clear();
    pass.add(state, 0, mine ? entries : 0);
    if (mine) pass.finish(state);
    node += node_step;
    head += head_step;
    if (head >= heads) {
      head -= heads;
      ++node;
    }
  }
  if (__syncthreads_or(has_long) == 0) return;  // the same answer for all threads: what follows has barriers
  for (int64_t first = int64_t{blockIdx.x} * at.groups; first < items; first += step) {
    for (int64_t item = first; item < first + at.groups && item < items; ++item) {
      const int64_t hub = item / heads;
      const int64_t entries = pass.entries(hub);
      if (entries <= kLongNode) continue;
      pass.begin(hub, static_cast<int>(item - hub * heads), true);
      State total;
      total.clear();
      for (int64_t round = 0; round < entries; round += int64_t{at.groups} * kLongNode) {
        const int64_t slab = round + int64_t{at.group} * kLongNode;
        state.clear();
        pass.add(state, slab, min(slab + kLongNode, entries));
        state.save(slabs + static_cast<int>(threadIdx.x) * State::kFloats);
        __syncthreads();  // the slabs' results are complete
        if (at.group == 0) {
          for (int g = 0; g < at.groups && round + int64_t{g} * kLongNode < entries; ++g)
            total.merge(slabs + (g * lanes + at.lane) * State::kFloats);
        }
        __syncthreads();  // and read: the next round overwrites them
      }
      if (at.group == 0) pass.finish(total);
    }
  }
}

/// 1 if the column is kept, else 0.
__device__ inline uint32_t kept(const DropoutMask& dropout, RandomKey key, uint64_t row_key, int64_t column) {
  return dropout.keep_four(key, row_key, column / 4) >> (column % 4) & 1u;
}

/// This lane's part of an edge's score, of own and the other end's columns.
template <AttentionScore kScore, int kElements, int kAccesses, class T>
__device__ float score_part(const Args<T>& args, const HeadPart<T, kElements, kAccesses>& own,
                            const HeadPart<T, kElements, kAccesses>& other, int head, int lane) {
  float sum = 0.0f;
#pragma unroll 1
  for (int access = 0; access < kAccesses; ++access) {
    const int at = HeadPart<T, kElements, kAccesses>::column(args, lane, access);
    if (kScore == AttentionScore::gatv2 && at >= args.dim) continue;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if constexpr (kScore == AttentionScore::dot) {
        sum += own.at(access, i) * other.at(access, i);
      } else {
        sum += args.weight[head * args.dim + at + i] *
               leaky(own.at(access, i) + other.at(access, i), args.slope);
      }
    }
  }
  return sum;
}

/// Calls `body.template operator()<kElements, kAccesses>()` for heads of this many columns.
template <class T, class Body>
void dispatch_head(int64_t dim, bool vectors, Body&& body) {
  constexpr int kVector = Vector<T>::kSize;
  if (vectors && dim <= 32 * kVector) {
    body.template operator()<kVector, 1>();
  } else if (vectors) {
    body.template operator()<kVector, kMaxHeadColumns / (32 * kVector)>();
  } else if (dim <= 32) {
    body.template operator()<1, 1>();
  } else {
    body.template operator()<1, kMaxHeadColumns / 32>();
  }
}
template <class Body>
void dispatch_score(AttentionScore score, Body&& body) {
  switch (score) {
    case AttentionScore::gat:
      return body.template operator()<AttentionScore::gat>();
    case AttentionScore::gatv2:
      return body.template operator()<AttentionScore::gatv2>();
    case AttentionScore::dot:
      return body.template operator()<AttentionScore::dot>();
  }
}

/// True when every head of these tensors begins at a multiple of 16 bytes and is made of such vectors.
template <class T>
bool heads_fit(int64_t dim, std::initializer_list<const Tensor*> tensors) {
  bool fit = dim % Vector<T>::kSize == 0;
  for (const Tensor* tensor : tensors)
    fit = fit && (!tensor->defined() || reinterpret_cast<uintptr_t>(tensor->raw()) % 16 == 0);
  return fit;
}

/// The arguments that forward and backward share; `lanes` is set by launch_items.
template <class T>
Args<T> args_of(const EdgeAttention& a, const Tensor& out, const Tensor& log_sums) {
  const Graph& graph = *a.graph;
  const int64_t width = a.values.width(), dim = width / a.heads;
  Args<T> args{};
  args.nodes = graph.node_rows();
  args.receiver_rows = graph.owned_rows();
  args.heads = static_cast<int>(a.heads);
  args.dim = static_cast<int>(dim);
  args.width = width;
  args.self_edges = a.self_edges;
  args.slope = static_cast<float>(a.slope);
  args.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  args.senders = graph.senders.data<int32_t>();
  args.receivers = graph.receivers.data<int32_t>();
  args.receiver_offsets = graph.receiver_offsets.data<int32_t>();
  args.sender_offsets = graph.sender_offsets.data<int32_t>();
  args.sender_order = graph.sender_order.data<int32_t>();
  args.values = a.values.data<T>();
  args.keys = (a.keys.defined() ? a.keys : a.values).data<T>();
  args.queries = a.queries.data_or_null<T>();
  args.edge_scores = a.edge_scores.data_or_null<T>();
  args.sender_scores = a.sender_scores.data_or_null<float>();
  args.receiver_scores = a.receiver_scores.data_or_null<float>();
  args.weight = a.weight.data_or_null<float>();
  args.dropout = mask_of(a.dropout);
  args.out = out.data<T>();
  args.log_sums = log_sums.data_or_null<float>();
  return args;
}

/// Starts a kernel over the heads of `nodes` nodes, as many lanes to a head as `elements` a lane need.
// Inlined as launch() is.
template <class T>
__forceinline__ void launch_items(const char* name, void (*kernel)(Args<T>), Args<T> args, int64_t nodes,
                                  int elements, const Stream& stream) {
  args.lanes = lanes_of(args.dim, elements);
  launch(name, kernel,
         {persistent_blocks(stream, nodes * args.heads, kThreads / args.lanes, 16), kThreads, 0}, stream,
         args);
}

}  // namespace meshgrad::cuda::attention

namespace meshgrad::cuda {

void edge_attention_backward(const EdgeAttentionBackward& args, Runtime& runtime, const Stream& stream);
void head_scores_forward(const HeadScoresForward& args, const Stream& stream);
void head_scores_backward(const HeadScoresBackward& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
