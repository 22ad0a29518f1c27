// SPDX-License-Identifier: Apache-2.0
// Forward of edge attention: one pass over each receiver's edges, with a running maximum, the sum of
// exponentials and the weighted sum of values scaled to it (Milakov, Gimelshein 2018, "Online normalizer
// calculation for softmax").
#include <meshgrad/kernels/cuda/attention.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace attention {
namespace {

template <class T, int kElements, int kAccesses, AttentionScore kScore>
struct ForwardPass {
  using Part = HeadPart<T, kElements, kAccesses>;
  /// Edges whose rows are asked for together, before the first is used.
  static constexpr int kAtOnce = kAccesses == 1 ? 4 : 1;
  struct State {
    float largest, total;
    Columns<kElements, kAccesses> sum;
    static constexpr int kFloats = Columns<kElements, kAccesses>::kFloats + 2;
    __device__ void clear() {
      largest = -INFINITY;
      total = 0.0f;
      sum.clear();
    }
    /// Scales what was summed to a maximum that is not smaller; returns what exponents are measured from.
    __device__ float rescale(float most) {
      const float base = most == -INFINITY ? 0.0f : most;
      const float scale = exponential(largest - base);
      largest = most;
      total *= scale;
      sum.each([&](int access, int i) { sum.v[access][i] *= scale; });
      return base;
    }
    __device__ void save(float* to) const {
      sum.save(to);
      to[kFloats - 2] = largest;
      to[kFloats - 1] = total;
    }
    __device__ void merge(const float* slab) {
      const float base = rescale(max(largest, slab[kFloats - 2]));
      const float scale = exponential(slab[kFloats - 2] - base);
      total += scale * slab[kFloats - 1];
      sum.add(slab, scale);
    }
  };

  const Args<T>& args;
  int lane, head = 0;
  int64_t node = 0, edge_begin = 0, edges = 0;
  float own_score = 0.0f;
  Part query;
  RandomKey key;

  __device__ explicit ForwardPass(const Args<T>& of) : args(of), lane(Place(of.lanes).lane) {
    if (args.dropout.drops()) key = args.dropout.key();
  }
  __device__ int64_t entries(int64_t receiver) const {
    return args.receiver_offsets[receiver + 1] - args.receiver_offsets[receiver] + (args.self_edges ? 1 : 0);
  }
  __device__ void begin(int64_t receiver, int of_head, bool ok) {
    node = receiver, head = of_head;
    if (ok) {
      edge_begin = args.receiver_offsets[node];
      edges = args.receiver_offsets[node + 1] - edge_begin;
    }
    if constexpr (kScore == AttentionScore::gat) {
      if (ok) own_score = args.receiver_scores[node * args.heads + head];
    } else {
      query.load(args, args.queries + node * args.width + head * args.dim, lane, ok);
    }
  }
  __device__ void add(State& state, int64_t first, int64_t last) const {
    for (int64_t i = first; __any_sync(0xffffffffu, i < last); i += kAtOnce) {
      Part value[kAtOnce];
      float score[kAtOnce];
      const uint32_t keeps = kept_edges(i, last);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) score[k] = load_edge(i + k, i + k < last, value[k]);
      float most = state.largest;
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) most = max(most, score[k]);
      const float base = state.rescale(most);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        float p = exponential(score[k] - base);
        state.total += p;
        if (args.dropout.drops()) p *= (keeps >> k & 1u) != 0 ? static_cast<float>(args.dropout.scale) : 0.0f;
        state.sum.each([&](int access, int e) { state.sum.v[access][e] += p * value[k].at(access, e); });
      }
    }
  }
  /// Bit k: whether alpha of edge i + k is kept.
  __device__ uint32_t kept_edges(int64_t i, int64_t last) const {
    uint32_t keeps = 0;
    if (!args.dropout.drops()) return keeps;
#pragma unroll 1
    for (int k = 0; k < kAtOnce && i + k < last; ++k)
      keeps |= kept(args.dropout, key, args.dropout.row_key(node), (i + k) * args.heads + head) << k;
    return keeps;
  }
  /// The edge's value, and its score: -infinity when it is not valid.
  __device__ float load_edge(int64_t i, bool valid, Part& value) const {
    const int64_t sender = valid && i < edges ? args.senders[edge_begin + i] : node;
    const int64_t row = sender * args.width + head * args.dim;
    value.load(args, args.values + row, lane, valid);
    float score = 0.0f;
    if constexpr (kScore == AttentionScore::gat) {
      if (valid) score = own_score + args.sender_scores[sender * args.heads + head];
    } else {
      Part other = value;
      if (args.keys != args.values) other.load(args, args.keys + row, lane, valid);
      score = group_sum(score_part<kScore>(args, query, other, head, lane), args.lanes);
      if constexpr (kScore == AttentionScore::dot) score *= args.scale;
    }
    if (args.edge_scores != nullptr && valid && i < edges)
      score += to_float(args.edge_scores[(edge_begin + i) * args.heads + head]);
    if constexpr (kScore == AttentionScore::gat) score = leaky(score, args.slope);
    return valid ? score : -INFINITY;
  }
  __device__ void finish(const State& state) const {
    const bool any = entries(node) > 0;
    state.sum.store(args, args.out + node * args.width + head * args.dim, lane, false,
                    any ? 1.0f / state.total : 0.0f);
    if (args.log_sums != nullptr && lane == 0)
      args.log_sums[node * args.heads + head] = any ? state.largest + logf(state.total) : 0.0f;
  }
};

template <class T, int kElements, int kAccesses, AttentionScore kScore>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) forward_kernel(Args<T> args) {
  using Pass = ForwardPass<T, kElements, kAccesses, kScore>;
  MESHGRAD_SHARED(float, slabs, kThreads* Pass::State::kFloats);
  Pass pass(args);
  over_items(pass, real_rows(args.receiver_rows), args.heads, args.lanes, slabs);
}

}  // namespace
}  // namespace attention

namespace {

void edge_attention_forward(const EdgeAttentionForward& args, const Stream& stream) {
  const EdgeAttention& a = args.inputs;
  dispatch_gpu_storage(args.out.dtype(), [&]<class T>() {
    const bool vectors =
        attention::heads_fit<T>(a.values.width() / a.heads, {&a.values, &a.keys, &a.queries, &args.out});
    const attention::Args<T> device = attention::args_of<T>(a, args.out, args.log_sums);
    attention::dispatch_head<T>(device.dim, vectors, [&]<int kElements, int kAccesses>() {
      attention::dispatch_score(a.score, [&]<AttentionScore kScore>() {
        attention::launch_items<T>("edge_attention.forward",
                                   attention::forward_kernel<T, kElements, kAccesses, kScore>, device,
                                   a.graph->owned_nodes, kElements, stream);
      });
    });
  });
}

}  // namespace

const AttentionKernels attention_kernels{.edge_attention_forward = edge_attention_forward,
                                         .edge_attention_backward = edge_attention_backward,
                                         .head_scores_forward = head_scores_forward,
                                         .head_scores_backward = head_scores_backward};

}  // namespace meshgrad::cuda
