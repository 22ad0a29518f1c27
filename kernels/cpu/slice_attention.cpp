// SPDX-License-Identifier: Apache-2.0
// All four passes over the nodes are one: of each tile of nodes and each head the soft weights s, and of them
// what the call asks for (SliceCall). With x the values or d_out, and u the tokens, or their gradient by N:
//   sums  += s^T x               tokens, and the gradient of what is spread
//   out    = s u                 what is spread, and the gradient of the values
//   d_s    = x u^T - c           c: what a token's gradient has through N; then W, b, t and the keys
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/cpu/attention_rows.h>
#include <meshgrad/kernels/cpu/slice_tile.h>
#include <meshgrad/kernels/slice_attention.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>

namespace meshgrad::cpu {
namespace {

constexpr int64_t kSliceRows = kTileRows<float>;  // of a tile

/// One call's tensors as pointers; null: not read, or not wanted.
template <class S>
struct SliceCall {
  using T = Accumulator<S>;
  int64_t heads, dim, slices, graphs, width, slots;
  const int32_t* starts;
  const S* keys;
  Tensor memory;  // of the three
  SliceTile<T> weight, weight_transposed, bias;
  const T* temperatures;
  const S* x = nullptr;
  const S *tokens = nullptr, *d_tokens = nullptr;  // d_tokens: u is d_tokens / (sizes + epsilon)
  const T* sizes = nullptr;
  T* sums = nullptr;  // [slots, heads slices, dim + 1]; the last column: sums of s
  S* out = nullptr;
  bool add_out = false;
  T* parameter_sums = nullptr;  // [slots, parameters()]: of W, b and t; null: no gradients
  S* d_keys = nullptr;
  bool add_d_keys = false;

  int64_t parameters() const { return dim * slices + slices + heads; }
  int64_t rows_of_graph() const { return heads * slices; }  // tokens
  /// A graph has as many slots as it has slabs, or more: the first is floor(starts[g] / slab) + g.
  int64_t first_slot(int64_t graph) const { return starts[graph] / kSliceSlab + graph; }
  int64_t slabs(int64_t graph) const {
    return (starts[graph + 1] - starts[graph] + kSliceSlab - 1) / kSliceSlab;
  }
  T temperature(int64_t head) const {
    return std::clamp(temperatures[head], static_cast<T>(kLeastTemperature),
                      static_cast<T>(kMostTemperature));
  }
};

template <class S>
SliceCall<S> call_of(const SliceWeights& a, Runtime& runtime, const Stream& stream) {
  using T = Accumulator<S>;
  SliceCall<S> call{.heads = a.heads,
                    .dim = a.columns(),
                    .slices = a.slices(),
                    .graphs = a.graphs(),
                    .width = a.width(),
                    .slots = a.graphs() > 0 ? a.nodes.capacity / kSliceSlab + a.graphs() : 0,
                    .starts = a.starts.data<int32_t>(),
                    .keys = a.keys.data<S>(),
                    .memory = {},
                    .weight = {},
                    .weight_transposed = {},
                    .bias = {},
                    .temperatures = a.temperatures.data<T>()};
  const auto take = [&](TileMemory<T> memory) {
    call.weight = memory.take(call.dim, call.slices);
    call.weight_transposed = memory.take(call.slices, call.dim);
    call.bias = memory.take(1, call.slices);
    return memory.used;
  };
  call.memory = Tensor::empty(runtime, Shape{take({})}, dtype_of<T>(), Tag::workspace, "slice weights");
  take({call.memory.template data<T>()});
  stream.run([&] {
    row_ops<S>().load(call.dim, call.slices, a.weight.data<S>(), call.slices, call.weight.data,
                      call.weight.stride);
    transpose(call.dim, call.slices, call.weight, call.weight_transposed);
    std::copy_n(a.bias.data<T>(), call.slices, call.bias.data);
  });
  return call;
}

template <class S>
struct PassTiles {
  using T = Accumulator<S>;
  SliceTile<T> keys, x, out, d_keys;       // [rows, width]
  SliceTile<T> s, d_s;                     // [rows, slices]
  SliceTile<T> units, sums;                // u and s^T x: [heads slices, dim]
  SliceTile<T> units_transposed;           // [heads dim, slices]
  SliceTile<T> shifts, sizes;              // -c and sums of s: [heads, slices]
  SliceTile<T> d_weight, d_bias, d_temps;  // [dim, slices], [slices], [heads]

  PassTiles(TileMemory<T>& memory, const SliceCall<S>& call) {
    const int64_t tokens = call.rows_of_graph();
    for (SliceTile<T>* tile : {&keys, &x, &out, &d_keys}) *tile = memory.take(kSliceRows, call.width);
    for (SliceTile<T>* tile : {&s, &d_s}) *tile = memory.take(kSliceRows, call.slices);
    for (SliceTile<T>* tile : {&units, &sums}) *tile = memory.take(tokens, call.dim);
    units_transposed = memory.take(call.heads * call.dim, call.slices);
    for (SliceTile<T>* tile : {&shifts, &sizes}) *tile = memory.take(call.heads, call.slices);
    d_weight = memory.take(call.dim, call.slices);
    d_bias = memory.take(1, call.slices);
    d_temps = memory.take(1, call.heads);
  }
};

/// The pass over one slab.
template <class S>
class SlabPass {
 public:
  using T = Accumulator<S>;
  SlabPass(const SliceCall<S>& call, const PassTiles<S>& tiles) : call_(call), at_(tiles) {}

  void run(int64_t slot) const {
    int64_t graph = 0;  // the last one that begins at this slot or before
    for (int64_t end = call_.graphs; end - graph > 1;) {
      const int64_t middle = (graph + end) / 2;
      (call_.first_slot(middle) <= slot ? graph : end) = middle;
    }
    const int64_t begin = call_.starts[graph] + (slot - call_.first_slot(graph)) * kSliceSlab;
    const int64_t end = std::min<int64_t>(call_.starts[graph + 1], begin + kSliceSlab);
    clear();
    if (begin < end && (call_.out != nullptr || call_.parameter_sums != nullptr)) load_units(graph);
    for (int64_t row = begin; row < end; row += kSliceRows) tile(row, std::min(kSliceRows, end - row));
    store_sums(slot);
  }

 private:
  void clear() const {
    const auto zero = [](const SliceTile<T>& tile, int64_t rows) {
      std::fill_n(tile.data, rows * tile.stride, T(0));
    };
    zero(at_.sums, call_.rows_of_graph());
    zero(at_.sizes, call_.heads);
    zero(at_.shifts, call_.heads);
    zero(at_.d_weight, call_.dim);
    zero(at_.d_bias, 1);
    zero(at_.d_temps, 1);
  }

  void load_units(int64_t graph) const {
    const int64_t tokens = call_.rows_of_graph(), first = graph * tokens, dim = call_.dim;
    const S* const from = call_.d_tokens != nullptr ? call_.d_tokens : call_.tokens;
    row_ops<S>().load(tokens, dim, from + first * dim, dim, at_.units.data, at_.units.stride);
    for (int64_t i = 0; call_.d_tokens != nullptr && i < tokens; ++i) {
      const T share = T(1) / (call_.sizes[first + i] + static_cast<T>(kSliceEpsilon));
      T shift = T(0);
      for (int64_t j = 0; j < dim; ++j) {
        T& unit = at_.units.data[i * at_.units.stride + j];
        unit *= share;
        shift -= unit * static_cast<T>(call_.tokens[(first + i) * dim + j]);
      }
      at_.shifts.data[i / call_.slices * at_.shifts.stride + i % call_.slices] = shift;
    }
    for (int64_t h = 0; call_.parameter_sums != nullptr && h < call_.heads; ++h)
      transpose(call_.slices, dim, at_.units.from_row(h * call_.slices),
                at_.units_transposed.from_row(h * dim));
  }

  void tile(int64_t row, int64_t rows) const {
    const RowOps<S>& ops = row_ops<S>();
    const int64_t width = call_.width, at = row * width;
    ops.load(rows, width, call_.keys + at, width, at_.keys.data, at_.keys.stride);
    if (call_.x != nullptr) ops.load(rows, width, call_.x + at, width, at_.x.data, at_.x.stride);
    // In this order, as a product of one head writes over columns of the next.
    for (int64_t h = 0; h < call_.heads; ++h) head(h, rows);
    if (call_.out != nullptr) store_rows(rows, width, at_.out, call_.out + at, call_.add_out);
    if (call_.d_keys != nullptr) store_rows(rows, width, at_.d_keys, call_.d_keys + at, call_.add_d_keys);
  }

  void head(int64_t h, int64_t rows) const {
    const int64_t dim = call_.dim, slices = call_.slices;
    const SliceTile<T> keys = at_.keys.from_column(h * dim), x = at_.x.from_column(h * dim);
    multiply(rows, slices, keys.by_rows(dim), call_.weight, {call_.bias.data, 0}, at_.s);
    attention_rows<T>().softmax(rows, slices, T(1) / call_.temperature(h), at_.s.data, at_.s.stride);
    if (call_.sums != nullptr) {
      multiply_add(slices, dim, at_.s.transposed(rows), x, at_.sums.from_row(h * slices));
      add_rows(rows, at_.s, at_.sizes.from_row(h).data);
    }
    if (call_.out != nullptr)
      multiply(rows, dim, at_.s.by_rows(slices), at_.units.from_row(h * slices), {},
               at_.out.from_column(h * dim));
    if (call_.parameter_sums != nullptr) gradients(h, rows, keys, x);
  }

  void gradients(int64_t h, int64_t rows, const SliceTile<T>& keys, const SliceTile<T>& x) const {
    const int64_t dim = call_.dim, slices = call_.slices;
    const SliceTile<T> d_keys = at_.d_keys.from_column(h * dim);
    const T temperature = call_.temperature(h);
    multiply(rows, slices, x.by_rows(dim), at_.units_transposed.from_row(h * dim),
             {at_.shifts.from_row(h).data, 0}, at_.d_s);
    attention_rows<T>().softmax_backward(rows, slices, T(1) / temperature, at_.s.data, at_.s.stride,
                                         at_.d_s.data, at_.d_s.stride);
    multiply(rows, dim, at_.d_s.by_rows(slices), call_.weight_transposed, {}, d_keys);
    multiply_add(dim, slices, keys.transposed(rows), at_.d_s, at_.d_weight);
    add_rows(rows, at_.d_s, at_.d_bias.data);
    if (call_.temperatures[h] != temperature) return;
    // The logits are (keys W + b) / t, of which d_s has the gradient times 1 / t.
    T dot = T(0);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < dim; ++j)
        dot += keys.data[i * keys.stride + j] * d_keys.data[i * d_keys.stride + j];
      for (int64_t m = 0; m < slices; ++m) dot += at_.d_s.data[i * at_.d_s.stride + m] * call_.bias.data[m];
    }
    at_.d_temps.data[h] -= dot / temperature;
  }

  /// to [slices] += the tile's rows.
  void add_rows(int64_t rows, const SliceTile<T>& tile, T* to) const {
    row_ops<T>().sum_rows({.accumulate = true}, 0, rows, call_.slices, tile.data, tile.stride, to);
  }

  void store_sums(int64_t slot) const {
    const int64_t dim = call_.dim, slices = call_.slices, tokens = call_.rows_of_graph();
    if (call_.sums != nullptr) {
      T* const to = call_.sums + slot * tokens * (dim + 1);
      for (int64_t i = 0; i < tokens; ++i) {
        std::copy_n(at_.sums.from_row(i).data, dim, to + i * (dim + 1));
        to[i * (dim + 1) + dim] = at_.sizes.from_row(i / slices).data[i % slices];
      }
    }
    if (call_.parameter_sums != nullptr) {
      T* const to = call_.parameter_sums + slot * call_.parameters();
      for (int64_t k = 0; k < dim; ++k) std::copy_n(at_.d_weight.from_row(k).data, slices, to + k * slices);
      std::copy_n(at_.d_bias.data, slices, to + dim * slices);
      std::copy_n(at_.d_temps.data, call_.heads, to + dim * slices + slices);
    }
  }

  const SliceCall<S>& call_;
  const PassTiles<S>& at_;
};

template <class S>
void run_pass(const SliceCall<S>& call, Runtime& runtime, const Stream& stream) {
  const WorkerTiles<Accumulator<S>, PassTiles<S>> workers(call, runtime);
  stream.parallel_for(call.slots, [&](int64_t slot) {
    const PassTiles<S> tiles = workers.of_worker(call);
    SlabPass<S>(call, tiles).run(slot);
  });
}

template <class S>
Tensor slab_sums(const SliceCall<S>& call, Runtime& runtime) {
  return Tensor::empty(runtime, Shape{call.slots * call.rows_of_graph(), call.dim + 1},
                       dtype_of<Accumulator<S>>(), Tag::workspace, "slice sums");
}

/// Calls body(token, sums) with the sums [dim + 1] over the slabs of its graph.
template <class S, class Body>
void over_tokens(const SliceCall<S>& call, const Stream& stream, const Body& body) {
  using T = Accumulator<S>;
  const int64_t dim = call.dim, tokens = call.rows_of_graph();
  stream.parallel_for(call.graphs * call.heads, [&](int64_t task) {
    const int64_t graph = task / call.heads, first = task % call.heads * call.slices;
    T sums[kMaxSliceColumns + 1];
    for (int64_t i = first; i < first + call.slices; ++i) {
      std::fill_n(sums, dim + 1, T(0));
      for (int64_t slab = 0; slab < call.slabs(graph); ++slab) {
        const T* const from = call.sums + ((call.first_slot(graph) + slab) * tokens + i) * (dim + 1);
        for (int64_t j = 0; j <= dim; ++j) sums[j] += from[j];
      }
      body(graph * tokens + i, sums);
    }
  });
}

/// Runs a pass that makes gradients of the soft weights, too.
template <class S>
void run_with_gradients(SliceCall<S>& call, const SliceWeightGradients& d, Runtime& runtime,
                        const Stream& stream) {
  using T = Accumulator<S>;
  const Tensor parameters = Tensor::empty(runtime, Shape{call.slots, call.parameters()}, dtype_of<T>(),
                                          Tag::workspace, "gradient slabs");
  call.parameter_sums = parameters.data<T>();
  call.d_keys = d.d_keys.data_or_null<S>();
  call.add_d_keys = d.accumulate_d_keys;
  run_pass(call, runtime, stream);
  stream.run([&] {
    int64_t column = 0;
    const auto add = [&](const Tensor& to, int64_t count) {
      if (to.defined())
        row_ops<T>().sum_rows({.accumulate = true}, 0, call.slots, count, call.parameter_sums + column,
                              call.parameters(), to.data<T>());
      column += count;
    };
    add(d.d_weight, call.dim * call.slices);
    add(d.d_bias, call.slices);
    add(d.d_temperatures, call.heads);
  });
}

template <class S>
void tokens_forward_of(const SliceTokensForward& args, Runtime& runtime, const Stream& stream) {
  using T = Accumulator<S>;
  SliceCall<S> call = call_of<S>(args.weights, runtime, stream);
  const Tensor sums = slab_sums(call, runtime);
  call.x = args.values.data<S>();
  call.sums = sums.data<T>();
  run_pass(call, runtime, stream);
  over_tokens(call, stream, [&](int64_t token, const T* of_token) {
    const T size = of_token[call.dim];
    args.sizes.data<T>()[token] = size;
    for (int64_t j = 0; j < call.dim; ++j)
      args.tokens.data<S>()[token * call.dim + j] = S(of_token[j] / (size + static_cast<T>(kSliceEpsilon)));
  });
}

template <class S>
void tokens_backward_of(const SliceTokensBackward& args, Runtime& runtime, const Stream& stream) {
  SliceCall<S> call = call_of<S>(args.weights, runtime, stream);
  call.x = args.values.data<S>();
  call.tokens = args.tokens.data<S>();
  call.d_tokens = args.d_tokens.data<S>();
  call.sizes = args.sizes.data<Accumulator<S>>();
  call.out = args.d_values.data_or_null<S>();
  call.add_out = args.accumulate_d_values;
  run_with_gradients(call, args.gradients, runtime, stream);
}

template <class S>
void spread_forward_of(const SliceSpreadForward& args, Runtime& runtime, const Stream& stream) {
  SliceCall<S> call = call_of<S>(args.weights, runtime, stream);
  call.tokens = args.tokens.data<S>();
  call.out = args.out.data<S>();
  run_pass(call, runtime, stream);
}

template <class S>
void spread_backward_of(const SliceSpreadBackward& args, Runtime& runtime, const Stream& stream) {
  using T = Accumulator<S>;
  SliceCall<S> call = call_of<S>(args.weights, runtime, stream);
  const Tensor sums = slab_sums(call, runtime);
  call.x = args.d_out.data<S>();
  call.tokens = args.tokens.data<S>();
  call.sums = sums.data<T>();
  run_with_gradients(call, args.gradients, runtime, stream);
  if (!args.d_tokens.defined()) return;
  over_tokens(call, stream, [&](int64_t token, const T* of_token) {
    for (int64_t j = 0; j < call.dim; ++j) {
      S& to = args.d_tokens.data<S>()[token * call.dim + j];
      to = S(args.accumulate_d_tokens ? static_cast<T>(to) + of_token[j] : of_token[j]);
    }
  });
}

}  // namespace

const SliceAttentionKernels slice_attention_kernels{
    .slice_tokens_forward =
        [](const SliceTokensForward& args, Runtime& runtime, const Stream& stream) {
          dispatch_cpu_storage(args.values.dtype(),
                               [&]<class S>() { tokens_forward_of<S>(args, runtime, stream); });
        },
    .slice_tokens_backward =
        [](const SliceTokensBackward& args, Runtime& runtime, const Stream& stream) {
          dispatch_cpu_storage(args.values.dtype(),
                               [&]<class S>() { tokens_backward_of<S>(args, runtime, stream); });
        },
    .slice_spread_forward =
        [](const SliceSpreadForward& args, Runtime& runtime, const Stream& stream) {
          dispatch_cpu_storage(args.out.dtype(),
                               [&]<class S>() { spread_forward_of<S>(args, runtime, stream); });
        },
    .slice_spread_backward =
        [](const SliceSpreadBackward& args, Runtime& runtime, const Stream& stream) {
          dispatch_cpu_storage(args.d_out.dtype(),
                               [&]<class S>() { spread_backward_of<S>(args, runtime, stream); });
        },
    .token_attention_forward = token_attention_forward,
    .token_attention_backward = token_attention_backward,
};

}  // namespace meshgrad::cpu
