// SPDX-License-Identifier: Apache-2.0
// Backward of edge attention: d_out . out by receiver; then a pass by sender, which has all that an edge's
// d_score depends on; then sums of d_score by receiver.
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/cuda/attention.h>
#include <meshgrad/kernels/cuda/column_sums.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace attention {
namespace {

/// c = d_out . out, head by head.
template <class T, int kElements, int kAccesses>
__global__ void output_dots_kernel(Args<T> args) {
  const Place at(args.lanes);
  const int64_t items = real_rows(args.receiver_rows) * args.heads;
  for (int64_t first = int64_t{blockIdx.x} * at.groups; first < items;
       first += int64_t{gridDim.x} * at.groups) {
    const int64_t item = first + at.group;  // heads of a row follow one another
    const bool valid = item < items;
    HeadPart<T, kElements, kAccesses> out, d_out;
    out.load(args, args.out + item * args.dim, at.lane, valid);
    d_out.load(args, args.d_out + item * args.dim, at.lane, valid);
    float sum = 0.0f;
    Columns<kElements, kAccesses>::each(
        [&](int access, int i) { sum += out.at(access, i) * d_out.at(access, i); });
    sum = group_sum(sum, args.lanes);
    if (valid && at.lane == 0) args.dots[item] = sum;
  }
}

template <class T, int kElements, int kAccesses, AttentionScore kScore>
struct SenderPass {
  using Part = HeadPart<T, kElements, kAccesses>;
  static constexpr int kAtOnce = kAccesses > 1 ? 1 : kScore == AttentionScore::gat ? 4 : 2;
  struct State {
    float score;
    Columns<kElements, kAccesses> value, key;
    static constexpr int kColumns = Columns<kElements, kAccesses>::kFloats;
    static constexpr int kFloats = 2 * kColumns + 1;
    __device__ void clear() {
      score = 0.0f;
      value.clear();
      key.clear();
    }
    __device__ void save(float* to) const {
      value.save(to);
      key.save(to + kColumns);
      to[kFloats - 1] = score;
    }
    __device__ void merge(const float* slab) {
      value.add(slab);
      key.add(slab + kColumns);
      score += slab[kFloats - 1];
    }
  };
  /// One edge's rows and numbers of its receiver.
  struct Edge {
    int edge = 0, receiver = 0;  // edge < 0: a self edge
    Part d_out, query;
    float score = 0.0f, log_sum = 0.0f, dot = 0.0f, factor = 1.0f;
  };

  const Args<T>& args;
  int lane, head = 0;
  int64_t node = 0, entry_begin = 0, edges = 0, receiver_count;
  float own_score = 0.0f;
  Part value, own_key;
  RandomKey key;

  __device__ explicit SenderPass(const Args<T>& of)
      : args(of), lane(Place(of.lanes).lane), receiver_count(real_rows(of.receiver_rows)) {
    if (args.dropout.drops()) key = args.dropout.key();
  }
  __device__ int64_t entries(int64_t sender) const {
    return args.sender_offsets[sender + 1] - args.sender_offsets[sender] +
           (args.self_edges && sender < receiver_count ? 1 : 0);
  }
  __device__ void begin(int64_t sender, int of_head, bool ok) {
    node = sender, head = of_head;
    if (ok) {
      entry_begin = args.sender_offsets[node];
      edges = args.sender_offsets[node + 1] - entry_begin;
    }
    const int64_t row = node * args.width + head * args.dim;
    value.load(args, args.values + row, lane, ok);
    if constexpr (kScore == AttentionScore::gat) {
      if (ok) own_score = args.sender_scores[node * args.heads + head];
    } else {
      own_key.load(args, args.keys + row, lane, ok);
    }
  }
  __device__ void add(State& state, int64_t first, int64_t last) const {
    for (int64_t i = first; __any_sync(0xffffffffu, i < last); i += kAtOnce) {
      Edge edge[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) find_edge(i + k, i + k < last, edge[k]);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) load_edge(edge[k], i + k < last);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) add_edge(state, edge[k], i + k < last);
    }
  }
  __device__ void find_edge(int64_t i, bool valid, Edge& edge) const {
    const bool self = i >= edges;
    if (!valid) return;
    edge.edge = self ? -1 : args.sender_order[entry_begin + i];
    edge.receiver = self ? static_cast<int>(node) : args.receivers[edge.edge];
    if (args.dropout.drops()) edge.factor = keep_factor(edge);
  }
  __device__ void load_edge(Edge& edge, bool valid) const {
    const int64_t row = edge.receiver * args.width + head * args.dim;
    edge.d_out.load(args, args.d_out + row, lane, valid);
    if constexpr (kScore != AttentionScore::gat) edge.query.load(args, args.queries + row, lane, valid);
    if (!valid) return;
    const int64_t item = int64_t{edge.receiver} * args.heads + head;
    edge.log_sum = args.log_sums[item];
    edge.dot = args.dots[item];
    if constexpr (kScore == AttentionScore::gat) edge.score = own_score + args.receiver_scores[item];
    if (args.edge_scores != nullptr && edge.edge >= 0)
      edge.score += to_float(args.edge_scores[int64_t{edge.edge} * args.heads + head]);
  }
  __device__ void add_edge(State& state, const Edge& edge, bool valid) const {
    float t = 0.0f;
    Columns<kElements, kAccesses>::each(
        [&](int access, int i) { t += value.at(access, i) * edge.d_out.at(access, i); });
    t = group_sum(t, args.lanes);
    float score = edge.score;
    if constexpr (kScore == AttentionScore::gat) {
      score = leaky(score, args.slope);
    } else {
      const float part = score_part<kScore>(args, own_key, edge.query, head, lane);
      score += (kScore == AttentionScore::dot ? args.scale : 1.0f) * group_sum(part, args.lanes);
    }
    const float alpha = valid ? exponential(score - edge.log_sum) : 0.0f;
    const float weight = alpha * edge.factor;
    float d_score = alpha * (edge.factor * t - edge.dot);
    if constexpr (kScore == AttentionScore::gat) d_score *= leaky_slope(edge.score, args.slope);
    if (valid && lane == 0) store_score(edge, d_score);
    state.score += d_score;
    state.value.each(
        [&](int access, int i) { state.value.v[access][i] += weight * edge.d_out.at(access, i); });
    if constexpr (kScore != AttentionScore::gat) add_key(state.key, edge, d_score);
  }
  __device__ float keep_factor(const Edge& edge) const {
    const int begin = args.receiver_offsets[edge.receiver];
    const int place = (edge.edge < 0 ? args.receiver_offsets[edge.receiver + 1] : edge.edge) - begin;
    const int64_t column = int64_t{place} * args.heads + head;
    return kept(args.dropout, key, args.dropout.row_key(edge.receiver), column) != 0
               ? static_cast<float>(args.dropout.scale)
               : 0.0f;
  }
  __device__ void store_score(const Edge& edge, float d_score) const {
    if (edge.edge < 0) {
      args.d_self_scores[int64_t{edge.receiver} * args.heads + head] = d_score;
      return;
    }
    const int64_t at = int64_t{edge.edge} * args.heads + head;
    args.d_scores[at] = d_score;
    if (args.d_edge_scores == nullptr) return;
    const float start = args.add_edge_scores ? to_float(args.d_edge_scores[at]) : 0.0f;
    args.d_edge_scores[at] = to_storage<T>(start + d_score);
  }
  __device__ void add_key(Columns<kElements, kAccesses>& sum, const Edge& edge, float d_score) const {
    const float factor = kScore == AttentionScore::dot ? args.scale * d_score : d_score;
    sum.each([&](int access, int i) {
      const float query = edge.query.at(access, i);
      if constexpr (kScore == AttentionScore::dot) {
        sum.v[access][i] += factor * query;
      } else {
        sum.v[access][i] += factor * leaky_slope(own_key.at(access, i) + query, args.slope);
      }
    });
  }
  __device__ void finish(State& state) const {
    const int64_t row = node * args.width + head * args.dim;
    if constexpr (kScore == AttentionScore::gatv2) {
      state.key.each([&](int access, int i) {
        const int at = Part::column(args, lane, access);
        if (at < args.dim) state.key.v[access][i] *= args.weight[head * args.dim + at + i];
      });
    }
    if (args.values_are_keys && kScore != AttentionScore::gat)
      state.value.each([&](int access, int i) { state.value.v[access][i] += state.key.v[access][i]; });
    if (args.d_values != nullptr) state.value.store(args, args.d_values + row, lane, args.add_values);
    if (args.d_keys != nullptr) state.key.store(args, args.d_keys + row, lane, args.add_keys);
    if (args.d_sender_scores != nullptr && lane == 0) {
      float& to = args.d_sender_scores[node * args.heads + head];
      to = (args.add_sender_scores ? to : 0.0f) + state.score;
    }
  }
};

template <class T, int kElements, int kAccesses, AttentionScore kScore>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) sender_kernel(Args<T> args) {
  using Pass = SenderPass<T, kElements, kAccesses, kScore>;
  MESHGRAD_SHARED(float, slabs, kThreads* Pass::State::kFloats);
  Pass pass(args);
  over_items(pass, real_rows(args.nodes), args.heads, args.lanes, slabs);
}

/// d_queries from the d_scores of each receiver's edges; of gatv2 its part of d_weight, too.
template <class T, int kElements, int kAccesses, AttentionScore kScore>
struct QueryPass {
  using Part = HeadPart<T, kElements, kAccesses>;
  static constexpr int kAtOnce = kAccesses == 1 ? 4 : 1;
  struct State {
    Columns<kElements, kAccesses> query, weight;
    static constexpr int kColumns = Columns<kElements, kAccesses>::kFloats;
    static constexpr int kFloats = 2 * kColumns;
    __device__ void clear() {
      query.clear();
      weight.clear();
    }
    __device__ void save(float* to) const {
      query.save(to);
      weight.save(to + kColumns);
    }
    __device__ void merge(const float* slab) {
      query.add(slab);
      weight.add(slab + kColumns);
    }
  };

  const Args<T>& args;
  int lane, head = 0;
  int64_t node = 0, edge_begin = 0, edges = 0;
  Part query;

  __device__ explicit QueryPass(const Args<T>& of) : args(of), lane(Place(of.lanes).lane) {}
  __device__ int64_t entries(int64_t receiver) const {
    return args.receiver_offsets[receiver + 1] - args.receiver_offsets[receiver] + (args.self_edges ? 1 : 0);
  }
  __device__ void begin(int64_t receiver, int of_head, bool ok) {
    node = receiver, head = of_head;
    if (ok) {
      edge_begin = args.receiver_offsets[node];
      edges = args.receiver_offsets[node + 1] - edge_begin;
    }
    if constexpr (kScore == AttentionScore::gatv2)
      query.load(args, args.queries + node * args.width + head * args.dim, lane, ok);
  }
  __device__ void add(State& state, int64_t first, int64_t last) const {
    for (int64_t i = first; i < last; i += kAtOnce) {
      Part other[kAtOnce];
      float d_score[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const bool valid = i + k < last, self = i + k >= edges;
        const int64_t sender = valid && !self ? args.senders[edge_begin + i + k] : node;
        other[k].load(args, args.keys + sender * args.width + head * args.dim, lane, valid);
        d_score[k] = 0.0f;
        if (valid)
          d_score[k] = self ? args.d_self_scores[node * args.heads + head]
                            : args.d_scores[(edge_begin + i + k) * args.heads + head];
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        state.query.each([&](int access, int e) {
          const float value = other[k].at(access, e);
          if constexpr (kScore == AttentionScore::dot) {
            state.query.v[access][e] += args.scale * d_score[k] * value;
          } else {
            const float z = query.at(access, e) + value;
            state.query.v[access][e] += d_score[k] * leaky_slope(z, args.slope);
            state.weight.v[access][e] += d_score[k] * leaky(z, args.slope);
          }
        });
      }
    }
  }
  __device__ void finish(State& state) const {
    const int64_t row = node * args.width + head * args.dim;
    if constexpr (kScore == AttentionScore::gatv2) {
      state.query.each([&](int access, int i) {
        const int at = Part::column(args, lane, access);
        if (at < args.dim) state.query.v[access][i] *= args.weight[head * args.dim + at + i];
      });
#pragma unroll 1
      for (int access = 0; access < kAccesses; ++access) {
        const int at = Part::column(args, lane, access);
        if (args.weight_rows == nullptr || at >= args.dim) continue;
#pragma unroll
        for (int i = 0; i < kElements; ++i) args.weight_rows[row + at + i] = state.weight.v[access][i];
      }
    }
    if (args.d_queries != nullptr) state.query.store(args, args.d_queries + row, lane, args.add_queries);
  }
};

template <class T, int kElements, int kAccesses, AttentionScore kScore>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) query_kernel(Args<T> args) {
  using Pass = QueryPass<T, kElements, kAccesses, kScore>;
  MESHGRAD_SHARED(float, slabs, kThreads* Pass::State::kFloats);
  Pass pass(args);
  over_items(pass, real_rows(args.receiver_rows), args.heads, args.lanes, slabs);
}

/// Sums of d_scores over each receiver's edges, the self edge last.
void sum_by_receiver(const EdgeAttentionBackward& args, const Tensor& d_scores, const Tensor& d_self_scores,
                     const Stream& stream) {
  const Graph& graph = *args.inputs.graph;
  segment_sum_kernels.segment_sum({.segments = graph.owned_rows(),
                                   .offsets = graph.receiver_offsets,
                                   .order = {},
                                   .x = d_scores,
                                   .out = args.d_receiver_scores,
                                   .accumulate = args.accumulate_d_receiver_scores},
                                  stream);
  if (!d_self_scores.defined()) return;
  segment_sum_kernels.segment_sum({.segments = graph.owned_rows(),
                                   .offsets = {},
                                   .order = {},
                                   .x = d_self_scores,
                                   .out = args.d_receiver_scores,
                                   .accumulate = true},
                                  stream);
}

template <class T>
void backward_of(const EdgeAttentionBackward& args, Runtime& runtime, const Stream& stream) {
  const EdgeAttention& a = args.inputs;
  const Graph& graph = *a.graph;
  const auto workspace = [&](int64_t rows, int64_t width, std::string_view name) {
    return Tensor::empty(runtime, {rows, width}, DType::f32, Tag::workspace, name);
  };
  const Tensor dots = workspace(graph.owned_nodes, a.heads, "attention dots");
  const Tensor d_scores = workspace(graph.edges, a.heads, "gradient of scores");
  Tensor d_self_scores, weight_rows;
  if (a.self_edges) d_self_scores = workspace(graph.owned_nodes, a.heads, "gradient of self edges");
  if (args.d_weight.defined())
    weight_rows = workspace(graph.owned_nodes, a.values.width(), "d_weight of rows");
  Args<T> device = args_of<T>(a, args.out, args.log_sums);
  device.d_out = args.d_out.data<T>();
  device.dots = dots.data<float>();
  device.d_scores = d_scores.data<float>();
  device.d_self_scores = d_self_scores.data_or_null<float>();
  device.d_values = args.d_values.data_or_null<T>();
  device.d_keys = args.d_keys.data_or_null<T>();
  device.d_queries = args.d_queries.data_or_null<T>();
  device.d_edge_scores = args.d_edge_scores.data_or_null<T>();
  device.d_sender_scores = args.d_sender_scores.data_or_null<float>();
  device.weight_rows = weight_rows.data_or_null<float>();
  device.add_values = args.accumulate_d_values;
  device.add_keys = args.accumulate_d_keys;
  device.add_queries = args.accumulate_d_queries;
  device.add_edge_scores = args.accumulate_d_edge_scores;
  device.add_sender_scores = args.accumulate_d_sender_scores;
  device.values_are_keys = !a.keys.defined();
  const bool vectors = heads_fit<T>(device.dim, {&a.values, &a.keys, &a.queries, &args.out, &args.d_out,
                                                 &args.d_values, &args.d_keys, &args.d_queries});
  dispatch_head<T>(device.dim, vectors, [&]<int kElements, int kAccesses>() {
    launch_items<T>("edge_attention.dots", output_dots_kernel<T, kElements, kAccesses>, device,
                    graph.owned_nodes, kElements, stream);
    dispatch_score(a.score, [&]<AttentionScore kScore>() {
      launch_items<T>("edge_attention.senders", sender_kernel<T, kElements, kAccesses, kScore>, device,
                      graph.nodes, kElements, stream);
      if constexpr (kScore != AttentionScore::gat) {
        if (args.d_queries.defined() || args.d_weight.defined())
          launch_items<T>("edge_attention.receivers", query_kernel<T, kElements, kAccesses, kScore>, device,
                          graph.owned_nodes, kElements, stream);
      }
    });
  });
  if (args.d_receiver_scores.defined()) sum_by_receiver(args, d_scores, d_self_scores, stream);
  if (args.d_weight.defined())
    add_column_sums(graph.owned_rows(), weight_rows, args.d_weight, runtime, stream);
}

}  // namespace
}  // namespace attention

void edge_attention_backward(const EdgeAttentionBackward& args, Runtime& runtime, const Stream& stream) {
  dispatch_gpu_storage(args.out.dtype(),
                       [&]<class T>() { attention::backward_of<T>(args, runtime, stream); });
}

}  // namespace meshgrad::cuda
