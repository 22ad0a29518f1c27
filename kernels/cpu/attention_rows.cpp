// SPDX-License-Identifier: Apache-2.0
// Attention of single nodes, compiled once per instruction set as row_ops.cpp. A node's edges come in slabs
// of kSlab: their scores [slab, heads] lie in buffers on the stack, and what rows are gathered twice come
// from cache the second time.
#include <meshgrad/kernels/cpu/attention_rows.h>
#include <meshgrad/kernels/cpu/targets.h>
#include <meshgrad/kernels/cpu_isa.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "meshgrad/kernels/cpu/attention_rows.cpp"
#include <hwy/foreach_target.h>
#include <meshgrad/kernels/cpu/attention-inl.h>

#include <algorithm>
#include <cmath>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace meshgrad::cpu::HWY_NAMESPACE {

constexpr int64_t kSlab = 128;  // edges; fixes the order of a sum and so its bits
/// How many edges ahead of its use a row is asked for.
constexpr int64_t kAhead = 12;

template <class T>
struct Buffers {
  int32_t index[kSlab];  // the node at the other end
  int64_t edge[kSlab];   // of senders: the edge, or -1 for the self edge
  T scores[kSlab * kMaxHeads], factors[kSlab * kMaxHeads], products[kSlab * kMaxHeads],
      kept[kSlab * kMaxHeads];
  T sum[kMaxAttentionWidth], key_sum[kMaxAttentionWidth];
  int64_t word[kSlab];  // of an edge's first head in blocks.words
  DropoutBlocks<kSlab*(kMaxHeads / 4 + 1)> blocks;
};

/// The next slab of a receiver: `first` edges were before. Returns the number of its edges.
template <class S, class T>
HWY_INLINE int64_t receiver_slab(const AttentionPointers<S>& a, int64_t receiver, int64_t first,
                                 const S* rows, Buffers<T>& b) {
  const int64_t begin = a.receiver_offsets[receiver], edges = a.receiver_offsets[receiver + 1] - begin;
  const int64_t last = a.receiver_offsets[a.receiver_count];
  const int64_t count = std::min(kSlab, edges + (a.self_edges ? 1 : 0) - first);
  for (int64_t i = 0; i < count; ++i) {
    const bool self = first + i == edges;
    b.edge[i] = self ? -1 : begin + first + i;
    b.index[i] = self ? static_cast<int32_t>(receiver) : a.senders[begin + first + i];
    if (const int64_t ahead = begin + first + i + kAhead; rows != nullptr && ahead < last)
      prefetch_row(rows + a.senders[ahead] * a.width, a.width);
  }
  return count;
}
/// The next slab of a sender, likewise.
template <class S, class T>
HWY_INLINE int64_t sender_slab(const AttentionPointers<S>& a, int64_t sender, int64_t first, Buffers<T>& b) {
  const int64_t begin = a.sender_offsets[sender], edges = a.sender_offsets[sender + 1] - begin;
  const int64_t last = a.sender_offsets[a.sender_count];
  const bool has_self = a.self_edges && sender < a.receiver_count;
  const int64_t count = std::min(kSlab, edges + (has_self ? 1 : 0) - first);
  for (int64_t i = 0; i < count; ++i) {
    const bool self = first + i == edges;
    const int64_t edge = self ? -1 : a.sender_order[begin + first + i];
    b.edge[i] = edge;
    b.index[i] = self ? static_cast<int32_t>(sender) : a.receivers[edge];
    if (const int64_t ahead = begin + first + i + kAhead; ahead < last)
      prefetch_row(a.d_out + a.receivers[a.sender_order[ahead]] * a.width, a.width);
  }
  return count;
}

/// b.scores of a slab of edges, b.index being the nodes at the other end; of a sender when `by_sender`.
template <class R, class S, class T>
HWY_NOINLINE void slab_scores(const R& row, const AttentionPointers<S>& a, bool by_sender, int64_t node,
                              int64_t edges, Buffers<T>& b) {
  const Wide<T> d;
  if (a.score == AttentionScore::gat) {
    const T* const own = (by_sender ? a.sender_scores : a.receiver_scores) + node * a.heads;
    const T* const other = by_sender ? a.receiver_scores : a.sender_scores;
    for (int64_t e = 0; e < edges; ++e) {
      over_row<T>(a.heads, [&](int64_t h, auto part) HWY_ATTR {
        auto sum = hn::Add(load(part, own + h), load(part, other + b.index[e] * a.heads + h));
        if (a.edge_scores != nullptr && b.edge[e] >= 0)
          sum = hn::Add(sum, load(part, a.edge_scores + b.edge[e] * a.heads + h));
        store(part, leaky(d, sum, a.slope), b.scores + e * a.heads + h);
      });
    }
    return;
  }
  const S* const own = (by_sender ? a.keys : a.queries) + node * a.width;
  const S* const other = by_sender ? a.queries : a.keys;
  if (a.score == AttentionScore::gatv2)
    return leaky_dots(row, edges, b.index, other, own, a.weight, a.slope, b.scores);
  dots(row, edges, b.index, other, own, a.scale, b.scores);
  if (a.edge_scores == nullptr) return;
  for (int64_t e = 0; e < edges; ++e) {
    if (b.edge[e] < 0) continue;
    over_row<T>(a.heads, [&](int64_t h, auto part) HWY_ATTR {
      T* const to = b.scores + e * a.heads + h;
      store(part, hn::Add(load(part, to), load(part, a.edge_scores + b.edge[e] * a.heads + h)), to);
    });
  }
}

/// One slab of the running softmax of a receiver: b.factors becomes exp(score - largest so far), whose sums
/// are added to `total`; what was summed before, also in b.sum, is scaled to the new maximum.
template <class R, class S, class T>
HWY_INLINE void add_slab(const R& row, const AttentionPointers<S>& a, int64_t edges, T* largest, T* total,
                         Buffers<T>& b) {
  const Wide<T> d;
  T scale[kMaxHeads];
  over_row<T>(a.heads, [&](int64_t h, auto part) HWY_ATTR {
    const auto before = load(part, largest + h);
    auto most = before;
    for (int64_t e = 0; e < edges; ++e) most = hn::Max(most, load(part, b.scores + e * a.heads + h));
    for (int64_t e = 0; e < edges; ++e) {
      const int64_t at = e * a.heads + h;
      store(part, hn::Sub(load(part, b.scores + at), most), b.factors + at);
    }
    store(part, most, largest + h);
    store(part, exponential(d, hn::Sub(before, most)), scale + h);
  });
  exponentials(edges * a.heads, b.factors);
  over_row<T>(a.heads, [&](int64_t h, auto part) HWY_ATTR {
    auto sum = hn::Mul(load(part, total + h), load(part, scale + h));
    for (int64_t e = 0; e < edges; ++e) sum = hn::Add(sum, load(part, b.factors + e * a.heads + h));
    store(part, sum, total + h);
  });
  scale_heads(row, scale, b.sum);
}

template <class R, class S>
HWY_INLINE void forward_of(const R& row, const AttentionPointers<S>& a, int64_t begin, int64_t end) {
  using T = Accumulator<S>;
  Buffers<T> b;
  T largest[kMaxHeads], total[kMaxHeads];
  const RandomKey key = a.dropout.drops() ? a.dropout.key() : RandomKey{};
  for (int64_t r = begin; r < end; ++r) {
    const int64_t edges = a.receiver_offsets[r + 1] - a.receiver_offsets[r] + (a.self_edges ? 1 : 0);
    std::fill_n(largest, a.heads, std::numeric_limits<T>::lowest());
    std::fill_n(total, a.heads, T(0));
    std::fill_n(b.sum, a.width, T(0));
    for (int64_t first = 0; first < edges; first += kSlab) {
      const int64_t count = receiver_slab(a, r, first, a.values, b);
      slab_scores(row, a, false, r, count, b);
      add_slab(row, a, count, largest, total, b);
      if (a.dropout.drops()) {
        b.blocks.count = 0;
        const int64_t word = b.blocks.add(a.dropout, r, first * a.heads, count * a.heads);
        draw(a.dropout, key, b.blocks);
        keep_factors(a.dropout, b.blocks.words + word, count * a.heads, b.kept);
        for (int64_t i = 0; i < count * a.heads; ++i) b.factors[i] *= b.kept[i];
      }
      weighted_sum(row, count, b.index, a.values, b.factors, b.sum);
    }
    for (int64_t h = 0; h < a.heads; ++h) {
      if (a.log_sums != nullptr)
        a.log_sums[r * a.heads + h] = edges > 0 ? largest[h] + std::log(total[h]) : T(0);
      total[h] = edges > 0 ? T(1) / total[h] : T(0);
    }
    scale_heads(row, total, b.sum);
    store_row(a.width, b.sum, false, a.out + r * a.width);
  }
}

/// c = d_out . out, head by head.
template <class R, class S>
HWY_INLINE void output_dots_of(const R& row, const AttentionPointers<S>& a, int64_t begin, int64_t end) {
  using T = Accumulator<S>;
  for (int64_t r = begin; r < end; ++r) {
    const int32_t index = 0;
    dots(row, 1, &index, a.d_out + r * a.width, a.out + r * a.width, T(1), a.dots + r * a.heads);
  }
}

/// From b.scores and b.products (t) of a sender's slab: b.factors = keep alpha / (1 - rate), and b.scores =
/// the gradient by what the scores are sums of (by the score itself, but before leaky of gat), also in
/// memory.
template <class S, class T>
HWY_NOINLINE void slab_gradients(const AttentionPointers<S>& a, RandomKey key, int64_t edges, Buffers<T>& b) {
  const Wide<T> d;
  const int64_t heads = a.heads;
  b.blocks.count = 0;
  for (int64_t e = 0; e < edges; ++e) {
    const T* const log_sums = a.log_sums + b.index[e] * heads;
    over_row<T>(heads, [&](int64_t h, auto part) HWY_ATTR {
      const int64_t at = e * heads + h;
      store(part, hn::Sub(load(part, b.scores + at), load(part, log_sums + h)), b.factors + at);
    });
    if (!a.dropout.drops()) continue;
    const int64_t r = b.index[e], begin = a.receiver_offsets[r];
    const int64_t place = (b.edge[e] >= 0 ? b.edge[e] : a.receiver_offsets[r + 1]) - begin;
    b.word[e] = b.blocks.add(a.dropout, r, place * heads, heads);
  }
  if (a.dropout.drops()) {
    draw(a.dropout, key, b.blocks);
    for (int64_t e = 0; e < edges; ++e)
      keep_factors(a.dropout, b.blocks.words + b.word[e], heads, b.kept + e * heads);
  }
  exponentials(edges * heads, b.factors);
  for (int64_t e = 0; e < edges; ++e) {
    const T* const c = a.dots + b.index[e] * heads;
    const bool self = b.edge[e] < 0;
    T* const to = self ? a.d_self_scores + b.index[e] * heads : a.d_scores + b.edge[e] * heads;
    over_row<T>(heads, [&](int64_t h, auto part) HWY_ATTR {
      const int64_t at = e * heads + h;
      const auto alpha = load(part, b.factors + at);
      auto t = load(part, b.products + at);
      if (a.dropout.drops()) {
        const auto kept = load(part, b.kept + at);
        t = hn::Mul(t, kept);
        store(part, hn::Mul(alpha, kept), b.factors + at);
      }
      auto gradient = hn::Mul(alpha, hn::Sub(t, load(part, c + h)));
      if (a.score == AttentionScore::gat)  // leaky keeps the sign
        gradient = hn::Mul(gradient, leaky_slope(d, load(part, b.scores + at), a.slope));
      store(part, gradient, b.scores + at);
      store(part, gradient, to + h);
    });
    if (a.d_edge_scores != nullptr && !self)
      store_row(heads, b.scores + e * heads, a.add_edge_scores, a.d_edge_scores + b.edge[e] * heads);
  }
}

/// Adds to `sum` what the gradients in b.scores are by the keys or queries of one node, the others' being the
/// rows b.index of x; and to d_weight, unless it is null, gatv2's.
template <class R, class S, class T>
HWY_INLINE void key_sums(const R& row, const AttentionPointers<S>& a, int64_t edges, const S* x, const S* own,
                         Buffers<T>& b, T* sum, T* d_weight) {
  if (a.score == AttentionScore::gatv2)
    return leaky_sums(row, edges, b.index, x, own, a.weight, a.slope, b.scores, sum, d_weight);
  for (int64_t i = 0; i < edges * a.heads; ++i) b.products[i] = a.scale * b.scores[i];
  weighted_sum(row, edges, b.index, x, b.products, sum);
}

template <class R, class S>
HWY_INLINE void senders_of(const R& row, const AttentionPointers<S>& a, int64_t begin, int64_t end) {
  using T = Accumulator<S>;
  Buffers<T> b;
  const bool keys = a.score != AttentionScore::gat && (a.d_keys != nullptr || a.values_are_keys);
  T* const key_sum = a.values_are_keys ? b.sum : b.key_sum;
  T score_sum[kMaxHeads];
  const RandomKey key = a.dropout.drops() ? a.dropout.key() : RandomKey{};
  for (int64_t s = begin; s < end; ++s) {
    const bool has_self = a.self_edges && s < a.receiver_count;
    const int64_t edges = a.sender_offsets[s + 1] - a.sender_offsets[s] + (has_self ? 1 : 0);
    std::fill_n(b.sum, a.width, T(0));
    if (keys) std::fill_n(key_sum, a.width, T(0));
    std::fill_n(score_sum, a.heads, T(0));
    for (int64_t first = 0; first < edges; first += kSlab) {
      const int64_t count = sender_slab(a, s, first, b);
      slab_scores(row, a, true, s, count, b);
      dots(row, count, b.index, a.d_out, a.values + s * a.width, T(1), b.products);
      slab_gradients(a, key, count, b);
      if (a.d_values != nullptr) weighted_sum(row, count, b.index, a.d_out, b.factors, b.sum);
      if (keys)
        key_sums(row, a, count, a.queries, a.keys + s * a.width, b, key_sum, static_cast<T*>(nullptr));
      for (int64_t e = 0; e < count; ++e) {
        for (int64_t h = 0; h < a.heads; ++h) score_sum[h] += b.scores[e * a.heads + h];
      }
    }
    if (a.d_values != nullptr) store_row(a.width, b.sum, a.add_values, a.d_values + s * a.width);
    if (a.d_keys != nullptr) store_row(a.width, b.key_sum, a.add_keys, a.d_keys + s * a.width);
    if (a.d_sender_scores != nullptr)
      store_row(a.heads, score_sum, a.add_sender_scores, a.d_sender_scores + s * a.heads);
  }
}

template <class R, class S>
HWY_INLINE void receivers_of(const R& row, const AttentionPointers<S>& a, int64_t begin, int64_t end,
                             Accumulator<S>* d_weight) {
  using T = Accumulator<S>;
  Buffers<T> b;
  T score_sum[kMaxHeads];
  const bool gat = a.score == AttentionScore::gat;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t edges = a.receiver_offsets[r + 1] - a.receiver_offsets[r] + (a.self_edges ? 1 : 0);
    std::fill_n(b.sum, a.width, T(0));
    std::fill_n(score_sum, a.heads, T(0));
    for (int64_t first = 0; first < edges; first += kSlab) {
      const int64_t count = receiver_slab(a, r, first, gat ? nullptr : a.keys, b);
      for (int64_t e = 0; e < count; ++e) {
        const T* const from =
            b.edge[e] < 0 ? a.d_self_scores + r * a.heads : a.d_scores + b.edge[e] * a.heads;
        for (int64_t h = 0; h < a.heads; ++h) {
          b.scores[e * a.heads + h] = from[h];
          score_sum[h] += from[h];
        }
      }
      if (!gat) key_sums(row, a, count, a.keys, a.queries + r * a.width, b, b.sum, d_weight);
    }
    if (a.d_receiver_scores != nullptr)
      store_row(a.heads, score_sum, a.add_receiver_scores, a.d_receiver_scores + r * a.heads);
    if (a.d_queries != nullptr) store_row(a.width, b.sum, a.add_queries, a.d_queries + r * a.width);
  }
}

template <class R, class S>
HWY_INLINE void head_scores_of(const R& row, int64_t rows, const S* x, const Accumulator<S>* weight,
                               Accumulator<S>* scores) {
  using T = Accumulator<S>;
  using D = hn::DFromV<typename R::V>;
  const int32_t index = 0;
  const int64_t width = row.heads * row.dim;
  for (int64_t i = 0; i < rows; ++i) {
    head_sums(row, 1, &index, x + i * width, T(1), scores + i * row.heads,
              [&](auto v, int64_t column, int64_t count)
                  HWY_ATTR { return hn::Mul(v, load_part<R::kWhole>(D(), weight + column, count)); });
  }
}

template <class R, class S>
HWY_INLINE void head_scores_backward_of(const R& row, int64_t rows, const S* x, const Accumulator<S>* weight,
                                        const Accumulator<S>* d_scores, bool accumulate, S* d_x,
                                        Accumulator<S>* d_weight) {
  using T = Accumulator<S>;
  const int32_t index = 0;
  const int64_t width = row.heads * row.dim;
  T sum[kMaxAttentionWidth];
  for (int64_t i = 0; i < rows; ++i) {
    const T* const by_head = d_scores + i * row.heads;
    if (d_weight != nullptr) weighted_sum(row, 1, &index, x + i * width, by_head, d_weight);
    if (d_x == nullptr) continue;
    std::fill_n(sum, width, T(0));
    weighted_sum(row, 1, &index, weight, by_head, sum);
    store_row(width, sum, accumulate, d_x + i * width);
  }
}

template <class T>
void softmax_rows(int64_t rows, int64_t width, T scale, T* x, int64_t x_row) {
  const Wide<T> d;
  for (int64_t i = 0; i < rows; ++i, x += x_row) {
    auto most = hn::Set(d, -std::numeric_limits<T>::infinity());
    over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
      const auto scores = hn::Mul(load(part, x + j), hn::Set(d, scale));
      store(part, scores, x + j);
      most = hn::Max(most, part.whole ? scores : hn::IfThenElse(part.mask, scores, most));
    });
    const auto base = hn::Set(d, hn::GetLane(hn::MaxOfLanes(d, most)));
    auto total = hn::Zero(d);
    over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
      const auto e = exponential(d, hn::Sub(load(part, x + j), base));
      store(part, e, x + j);
      total = hn::Add(total, part.whole ? e : hn::IfThenElseZero(part.mask, e));
    });
    const auto share = hn::Set(d, T(1) / hn::GetLane(hn::SumOfLanes(d, total)));
    over_row<T>(
        width, [&](int64_t j, auto part) HWY_ATTR { store(part, hn::Mul(load(part, x + j), share), x + j); });
  }
}

template <class T>
void softmax_rows_backward(int64_t rows, int64_t width, T scale, const T* s, int64_t s_row, T* g,
                           int64_t g_row) {
  const Wide<T> d;
  for (int64_t i = 0; i < rows; ++i, s += s_row, g += g_row) {
    auto dot = hn::Zero(d);  // lanes past the row load zeros
    over_row<T>(width, [&](int64_t j, auto part)
                           HWY_ATTR { dot = hn::MulAdd(load(part, s + j), load(part, g + j), dot); });
    const auto mean = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, dot)));
    over_row<T>(width, [&](int64_t j, auto part) HWY_ATTR {
      const auto from_mean = hn::Sub(load(part, g + j), mean);
      store(part, hn::Mul(hn::Mul(load(part, s + j), hn::Set(d, scale)), from_mean), g + j);
    });
  }
}

template <class S>
const AttentionRows<S>* attention_table() {
  using T = Accumulator<S>;
  using Pointers = AttentionPointers<S>;
  static const AttentionRows<S> rows{
      .forward =
          [](const Pointers& a, int64_t begin, int64_t end) HWY_ATTR {
            with_row<T>(a.heads, a.dim, [&](auto row) HWY_ATTR { forward_of(row, a, begin, end); });
          },
      .dots =
          [](const Pointers& a, int64_t begin, int64_t end) HWY_ATTR {
            with_row<T>(a.heads, a.dim, [&](auto row) HWY_ATTR { output_dots_of(row, a, begin, end); });
          },
      .senders =
          [](const Pointers& a, int64_t begin, int64_t end) HWY_ATTR {
            with_row<T>(a.heads, a.dim, [&](auto row) HWY_ATTR { senders_of(row, a, begin, end); });
          },
      .receivers =
          [](const Pointers& a, int64_t begin, int64_t end, T* d_weight) HWY_ATTR {
            with_row<T>(a.heads, a.dim,
                        [&](auto row) HWY_ATTR { receivers_of(row, a, begin, end, d_weight); });
          },
      .head_scores =
          [](int64_t count, int64_t heads, int64_t dim, const S* x, const T* weight, T* scores) HWY_ATTR {
            with_row<T>(heads, dim,
                        [&](auto row) HWY_ATTR { head_scores_of(row, count, x, weight, scores); });
          },
      .head_scores_backward =
          [](int64_t count, int64_t heads, int64_t dim, const S* x, const T* weight, const T* d_scores,
             bool accumulate, S* d_x, T* d_weight) HWY_ATTR {
            with_row<T>(heads, dim, [&](auto row) HWY_ATTR {
              head_scores_backward_of(row, count, x, weight, d_scores, accumulate, d_x, d_weight);
            });
          },
      .softmax = softmax_rows<T>,
      .softmax_backward = softmax_rows_backward<T>};
  return &rows;
}
// HWY_EXPORT takes plain functions.
const AttentionRows<float>* attention_f32() { return attention_table<float>(); }
const AttentionRows<double>* attention_f64() { return attention_table<double>(); }
const AttentionRows<half>* attention_f16() { return attention_table<half>(); }
const AttentionRows<bfloat16>* attention_bf16() { return attention_table<bfloat16>(); }

}  // namespace meshgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshgrad::cpu {
HWY_EXPORT(attention_f32);
HWY_EXPORT(attention_f64);
HWY_EXPORT(attention_f16);
HWY_EXPORT(attention_bf16);

// isa() must run first: it limits the targets that the dispatch may choose.
template <>
const AttentionRows<float>& attention_rows<float>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(attention_f32)());
}
template <>
const AttentionRows<double>& attention_rows<double>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(attention_f64)());
}
template <>
const AttentionRows<half>& attention_rows<half>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(attention_f16)());
}
template <>
const AttentionRows<bfloat16>& attention_rows<bfloat16>() {
  return (isa(), *HWY_DYNAMIC_DISPATCH(attention_bf16)());
}
}  // namespace meshgrad::cpu
#endif
