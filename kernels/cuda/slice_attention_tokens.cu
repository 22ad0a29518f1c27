// SPDX-License-Identifier: Apache-2.0
// Attention among the slices of one head of one graph, a block each; queries in tiles.
#include <meshgrad/kernels/cuda/slice_attention.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

/// Places in shared memory, in floats; `rows` queries are a tile.
struct TokenLayout {
  int slices, dim;
  bool backward;
  int rows = 0, floats = 0;
  int keys = 0, values = 0, queries = 0, p = 0;
  int d_keys = 0, d_values = 0, d_out = 0, d_p = 0;

  void place() {
    SharedPlaces places;
    keys = places.take(slices, odd(dim));
    values = places.take(slices, odd(dim));
    queries = places.take(rows, odd(dim));
    p = places.take(rows, odd(slices));
    if (backward) {
      d_keys = places.take(slices, odd(dim));
      d_values = places.take(slices, odd(dim));
      d_out = places.take(rows, odd(dim));
      d_p = places.take(rows, odd(slices));
    }
    floats = places.used;
  }
};

template <class T>
struct TokenArgs {
  TokenLayout at;
  int64_t groups;
  float scale;
  const T *queries, *keys, *values;
  T* out;
  const T* d_out;
  T *d_queries, *d_keys, *d_values;  // null: not wanted
  bool add_queries, add_keys, add_values;
};

template <class T>
struct TokenBlock {
  const TokenArgs<T>& args;
  int slices, dim;
  SharedMatrix keys, values, queries, p, d_keys, d_values, d_out, d_p;

  __device__ explicit TokenBlock(const TokenArgs<T>& of)
      : args(of),
        slices(of.at.slices),
        dim(of.at.dim),
        keys(matrix_at(of.at.keys, dim)),
        values(matrix_at(of.at.values, dim)),
        queries(matrix_at(of.at.queries, dim)),
        p(matrix_at(of.at.p, slices)),
        d_keys(matrix_at(of.at.d_keys, dim)),
        d_values(matrix_at(of.at.d_values, dim)),
        d_out(matrix_at(of.at.d_out, dim)),
        d_p(matrix_at(of.at.d_p, slices)) {}
  /// p of the queries first .. first + rows - 1 of a group, whose keys and values are loaded. Begins and ends
  /// with a barrier.
  __device__ void load_weights(int64_t group, int first, int rows) const {
    __syncthreads();  // keys and values are loaded, and the last tile is read
    const int64_t row = group * slices + first;
    load_block(queries, args.queries + row * dim, dim, args.at.rows, rows, dim);
    if (args.at.backward) load_block(d_out, args.d_out + row * dim, dim, args.at.rows, rows, dim);
    __syncthreads();  // the tile is loaded
    block_product(
        args.at.rows, slices, dim, [this](int i, int k) { return queries.at(i, k); },
        [this](int k, int j) { return keys.at(j, k); },
        [this](int i, int j, float sum) { p.at(i, j) = sum; });
    __syncthreads();  // scores are complete
    block_softmax(p, args.at.rows, rows, slices, args.scale);
    __syncthreads();  // and weights
  }
};

template <class T>
__global__ void token_attention_kernel(TokenArgs<T> args) {
  const TokenBlock<T> b(args);
  for (int64_t group = blockIdx.x; group < args.groups; group += gridDim.x) {
    const int64_t first_row = group * b.slices;
    __syncthreads();  // the last group is read
    load_block(b.keys, args.keys + first_row * b.dim, b.dim, b.slices, b.slices, b.dim);
    load_block(b.values, args.values + first_row * b.dim, b.dim, b.slices, b.slices, b.dim);
    for (int first = 0; first < b.slices; first += args.at.rows) {
      const int rows = min(args.at.rows, b.slices - first);
      b.load_weights(group, first, rows);
      block_product(
          rows, b.dim, b.slices, [&](int i, int k) { return b.p.at(i, k); },
          [&](int k, int j) { return b.values.at(k, j); },
          [&](int i, int j, float sum) {
            args.out[(first_row + first + i) * b.dim + j] = to_storage<T>(sum);
          });
    }
  }
}

template <class T>
__device__ void token_tile_backward(const TokenBlock<T>& b, int64_t first_row, int rows) {
  const TokenArgs<T>& args = b.args;
  const int tile = args.at.rows;
  block_product(
      tile, b.slices, b.dim, [&](int i, int k) { return b.d_out.at(i, k); },
      [&](int k, int j) { return b.values.at(j, k); },
      [&](int i, int j, float sum) { b.d_p.at(i, j) = sum; });
  block_product(
      b.slices, b.dim, tile, [&](int i, int k) { return b.p.at(k, i); },
      [&](int k, int j) { return b.d_out.at(k, j); },
      [&](int i, int j, float sum) { b.d_values.at(i, j) += sum; });
  __syncthreads();  // d_p is complete
  block_softmax_backward(b.p, b.d_p, tile, b.slices, args.scale);
  __syncthreads();  // and through the softmax
  block_product(
      b.slices, b.dim, tile, [&](int i, int k) { return b.d_p.at(k, i); },
      [&](int k, int j) { return b.queries.at(k, j); },
      [&](int i, int j, float sum) { b.d_keys.at(i, j) += sum; });
  if (args.d_queries == nullptr) return;
  block_product(
      rows, b.dim, b.slices, [&](int i, int k) { return b.d_p.at(i, k); },
      [&](int k, int j) { return b.keys.at(k, j); },
      [&](int i, int j, float sum) {
        store_value(args.d_queries + (first_row + i) * b.dim + j, sum, args.add_queries);
      });
}

template <class T>
__global__ void token_attention_backward_kernel(TokenArgs<T> args) {
  const TokenBlock<T> b(args);
  const auto store = [&](T* to, const SharedMatrix& from, bool add) {
    for (int item = static_cast<int>(threadIdx.x); to != nullptr && item < b.slices * b.dim;
         item += kSliceThreads)
      store_value(to + item, from.at(item / b.dim, item % b.dim), add);
  };
  for (int64_t group = blockIdx.x; group < args.groups; group += gridDim.x) {
    const int64_t first_row = group * b.slices, first_element = first_row * b.dim;
    __syncthreads();  // the last group's gradients are stored
    load_block(b.keys, args.keys + first_element, b.dim, b.slices, b.slices, b.dim);
    load_block(b.values, args.values + first_element, b.dim, b.slices, b.slices, b.dim);
    load_block(b.d_keys, args.keys, b.dim, b.slices, 0, b.dim);
    load_block(b.d_values, args.values, b.dim, b.slices, 0, b.dim);
    for (int first = 0; first < b.slices; first += args.at.rows) {
      const int rows = min(args.at.rows, b.slices - first);
      b.load_weights(group, first, rows);
      token_tile_backward(b, first_row + first, rows);
    }
    __syncthreads();  // sums over the queries are complete
    store(args.d_keys == nullptr ? nullptr : args.d_keys + first_element, b.d_keys, args.add_keys);
    store(args.d_values == nullptr ? nullptr : args.d_values + first_element, b.d_values, args.add_values);
  }
}

template <class T, class Call>
TokenArgs<T> token_args(const Call& call, bool backward, const Stream& stream) {
  const int64_t dim = call.queries.width();
  TokenArgs<T> args{};
  const TokenLayout of{
      .slices = static_cast<int>(call.slices), .dim = static_cast<int>(dim), .backward = backward};
  args.at = largest_layout(of, stream.device().index);
  args.groups = call.queries.rows() / call.slices;
  args.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  args.queries = call.queries.template data<T>();
  args.keys = call.keys.template data<T>();
  args.values = call.values.template data<T>();
  return args;
}

template <class T>
LaunchShape token_shape(const TokenArgs<T>& args, const Stream& stream) {
  return {persistent_blocks(stream, args.groups, 1, 16), kSliceThreads, args.at.floats * 4};
}

}  // namespace

void token_attention_forward(const TokenAttentionForward& call, Runtime&, const Stream& stream) {
  dispatch_gpu_storage(call.out.dtype(), [&]<class T>() {
    TokenArgs<T> args = token_args<T>(call, false, stream);
    args.out = call.out.data<T>();
    launch("token_attention.forward", token_attention_kernel<T>, token_shape(args, stream), stream, args);
  });
}

void token_attention_backward(const TokenAttentionBackward& call, Runtime&, const Stream& stream) {
  dispatch_gpu_storage(call.d_out.dtype(), [&]<class T>() {
    TokenArgs<T> args = token_args<T>(call, true, stream);
    args.d_out = call.d_out.data<T>();
    args.d_queries = call.d_queries.data_or_null<T>();
    args.d_keys = call.d_keys.data_or_null<T>();
    args.d_values = call.d_values.data_or_null<T>();
    args.add_queries = call.accumulate_d_queries;
    args.add_keys = call.accumulate_d_keys;
    args.add_values = call.accumulate_d_values;
    launch("token_attention.backward", token_attention_backward_kernel<T>, token_shape(args, stream), stream,
           args);
  });
}

}  // namespace meshgrad::cuda
