// SPDX-License-Identifier: Apache-2.0
// Attention among the slices of one head of one graph, a task each: all of them are one tile.
#include <meshgrad/kernels/cpu/attention_rows.h>
#include <meshgrad/kernels/cpu/slice_tile.h>
#include <meshgrad/kernels/tables.h>

#include <cmath>

namespace meshgrad::cpu {
namespace {

template <class T>
struct TokenTiles {
  SliceTile<T> queries, keys, values, d_out, result;  // [slices, dim]
  SliceTile<T> transposed;                            // [dim, slices]
  SliceTile<T> p, d_p;                                // [slices, slices]

  TokenTiles(TileMemory<T>& memory, const Shape& group) {
    const int64_t slices = group[0], dim = group[1];
    for (SliceTile<T>* tile : {&queries, &keys, &values, &d_out, &result}) *tile = memory.take(slices, dim);
    transposed = memory.take(dim, slices);
    for (SliceTile<T>* tile : {&p, &d_p}) *tile = memory.take(slices, slices);
  }
};

/// The rows of one group of tokens.
template <class S>
struct TokenGroup {
  using T = Accumulator<S>;
  int64_t slices, dim, first;  // first: element of the group
  TokenTiles<T> tiles;

  T scale() const { return T(1) / std::sqrt(static_cast<T>(dim)); }
  void load(const Tensor& from, const SliceTile<T>& to) const {
    row_ops<S>().load(slices, dim, from.data<S>() + first, dim, to.data, to.stride);
  }
  /// p: how much each query takes of each value.
  void load_weights(const Tensor& queries, const Tensor& keys) const {
    load(queries, tiles.queries);
    load(keys, tiles.keys);
    transpose(slices, dim, tiles.keys, tiles.transposed);
    multiply(slices, slices, tiles.queries.by_rows(dim), tiles.transposed, {}, tiles.p);
    attention_rows<T>().softmax(slices, slices, scale(), tiles.p.data, tiles.p.stride);
  }
  /// to [+]= a b.
  void store_product(const StridedMatrix<T>& a, const SliceTile<T>& b, const Tensor& to, bool add) const {
    if (!to.defined()) return;
    multiply(slices, dim, a, b, {}, tiles.result);
    store_rows(slices, dim, tiles.result, to.data<S>() + first, add);
  }
};

/// Calls body(group) for each `slices` rows of tensors like `rows`.
template <class S, class Body>
void over_groups(const Tensor& rows, int64_t slices, Runtime& runtime, const Stream& stream,
                 const Body& body) {
  using T = Accumulator<S>;
  const Shape group{slices, rows.width()};
  const WorkerTiles<T, TokenTiles<T>> workers(group, runtime);
  stream.parallel_for(rows.rows() / slices, [&](int64_t number) {
    body(TokenGroup<S>{slices, rows.width(), number * slices * rows.width(), workers.of_worker(group)});
  });
}

template <class S>
void attend_of(const TokenAttentionForward& args, Runtime& runtime, const Stream& stream) {
  over_groups<S>(args.queries, args.slices, runtime, stream, [&](const TokenGroup<S>& group) {
    group.load_weights(args.queries, args.keys);
    group.load(args.values, group.tiles.values);
    group.store_product(group.tiles.p.by_rows(args.slices), group.tiles.values, args.out, false);
  });
}

template <class S>
void attend_backward_of(const TokenAttentionBackward& args, Runtime& runtime, const Stream& stream) {
  using T = Accumulator<S>;
  over_groups<S>(args.queries, args.slices, runtime, stream, [&](const TokenGroup<S>& group) {
    const TokenTiles<T>& at = group.tiles;
    const int64_t slices = args.slices;
    group.load_weights(args.queries, args.keys);
    group.load(args.values, at.values);
    group.load(args.d_out, at.d_out);
    transpose(slices, group.dim, at.values, at.transposed);
    multiply(slices, slices, at.d_out.by_rows(group.dim), at.transposed, {}, at.d_p);
    attention_rows<T>().softmax_backward(slices, slices, group.scale(), at.p.data, at.p.stride, at.d_p.data,
                                         at.d_p.stride);
    group.store_product(at.d_p.by_rows(slices), at.keys, args.d_queries, args.accumulate_d_queries);
    group.store_product(at.d_p.transposed(slices), at.queries, args.d_keys, args.accumulate_d_keys);
    group.store_product(at.p.transposed(slices), at.d_out, args.d_values, args.accumulate_d_values);
  });
}

}  // namespace

void token_attention_forward(const TokenAttentionForward& args, Runtime& runtime, const Stream& stream) {
  dispatch_cpu_storage(args.out.dtype(), [&]<class S>() { attend_of<S>(args, runtime, stream); });
}

void token_attention_backward(const TokenAttentionBackward& args, Runtime& runtime, const Stream& stream) {
  dispatch_cpu_storage(args.d_out.dtype(), [&]<class S>() { attend_backward_of<S>(args, runtime, stream); });
}

}  // namespace meshgrad::cpu
