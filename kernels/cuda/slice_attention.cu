// SPDX-License-Identifier: Apache-2.0
// All four passes over the nodes are one kernel. A block takes slabs of one head; of each tile of a slab's
// nodes it makes the soft weights s, and of them what the call asks for. With x the values or d_out, and u
// the tokens, or their gradient by N:
//   kSums      sums += s^T x      tokens, and the gradient of what is spread
//   kSpread    out = s u          what is spread, and the gradient of the values
//   kGradient  d_s = x u^T - c    c: what a token's gradient has through N; then W, b, t and the keys
// Sums of a slab go to a slot of their own, and another kernel adds them slab by slab; those of W, b and t
// are a row for each block. A graph has as many slots as it has slabs, or more: the first is floor(starts[g]
// / slab) + g, so that no block needs to know more than where graphs start.
#include <meshgrad/kernels/cuda/column_sums.h>
#include <meshgrad/kernels/cuda/slice_attention.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

/// Places in shared memory, in floats; `rows` nodes are a tile.
struct SliceLayout {
  int dim, slices;
  bool has_sums, has_units, has_gradient;
  int rows = 0, floats = 0;
  int weight = 0, bias = 0, keys = 0, x = 0, s = 0, sums = 0, sizes = 0, units = 0, shifts = 0;
  int d_s = 0, d_weight = 0, d_bias = 0;

  void place() {
    SharedPlaces places;
    weight = places.take(dim, odd(slices));
    bias = places.take(1, slices);
    keys = places.take(rows, odd(dim));
    s = places.take(rows, odd(slices));
    if (has_sums || has_gradient) x = places.take(rows, odd(dim));
    if (has_sums) sums = places.take(slices, odd(dim)), sizes = places.take(1, slices);
    if (has_units) units = places.take(slices, odd(dim)), shifts = places.take(1, slices);
    if (has_gradient) {
      d_s = places.take(rows, odd(slices));
      d_weight = places.take(dim, odd(slices));
      d_bias = places.take(1, slices);
    }
    floats = places.used;
  }
};

template <class T>
struct SliceArgs {
  SliceLayout at;
  int heads;
  int64_t graphs, slots, width;
  const int32_t* starts;
  const T *keys, *weight;
  const float *bias, *temperatures;
  const T* x;
  const float* units;  // [tokens, dim + 1]: u, and c
  float* sums;         // [slots, heads, slices, dim + 1]; the last column: N
  T* out;              // null: not wanted
  T* d_keys;           // likewise
  bool add_out, add_d_keys;
  float* parameter_sums;  // [blocks, dim slices + slices + heads]
};

__device__ inline int64_t first_slot(const int32_t* starts, int64_t graph) {
  return starts[graph] / kSliceSlab + graph;
}

/// A slot's nodes; none of a slot that its graph does not need.
struct Slab {
  int64_t graph, begin, end;
  __device__ Slab(const int32_t* starts, int64_t graphs, int64_t slot) {
    int64_t low = 0, high = graphs;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (first_slot(starts, middle) <= slot) {
        low = middle;
      } else {
        high = middle;
      }
    }
    graph = low;
    begin = starts[low] + (slot - first_slot(starts, low)) * kSliceSlab;
    end = min(int64_t{starts[low + 1]}, begin + kSliceSlab);
  }
};

/// A block's part of the work: one head.
template <class T>
struct SliceBlock {
  const SliceArgs<T>& args;
  int dim, slices, rows, head;
  float temperature;
  SharedMatrix weight, keys, x, s, sums, units, d_s, d_weight;
  float *bias, *sizes, *shifts, *d_bias;

  __device__ explicit SliceBlock(const SliceArgs<T>& of)
      : args(of),
        dim(of.at.dim),
        slices(of.at.slices),
        rows(of.at.rows),
        head(static_cast<int>(blockIdx.x % of.heads)) {
    const auto least = static_cast<float>(kLeastTemperature), most = static_cast<float>(kMostTemperature);
    const float given = args.temperatures[head];
    temperature = given < least ? least : given > most ? most : given;  // a NaN stays one
    weight = matrix_at(of.at.weight, slices);
    keys = matrix_at(of.at.keys, dim);
    x = matrix_at(of.at.x, dim);
    s = matrix_at(of.at.s, slices);
    sums = matrix_at(of.at.sums, dim);
    units = matrix_at(of.at.units, dim);
    d_s = matrix_at(of.at.d_s, slices);
    d_weight = matrix_at(of.at.d_weight, slices);
    float* const shared = dynamic_shared<float>();
    bias = shared + of.at.bias;
    sizes = shared + of.at.sizes;
    shifts = shared + of.at.shifts;
    d_bias = shared + of.at.d_bias;
  }

  /// Calls body(i) for i < count, in one thread each.
  template <class Body>
  __device__ static void each(int count, const Body& body) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kSliceThreads) body(i);
  }
  __device__ void begin() const {
    load_block(weight, args.weight, slices, dim, dim, slices);
    each(slices, [&](int m) { bias[m] = args.bias[m]; });
    if (!args.at.has_gradient) return;
    each(dim * slices, [&](int i) { d_weight.at(i / slices, i % slices) = 0.0f; });
    each(slices, [&](int m) { d_bias[m] = 0.0f; });
  }
  __device__ void begin_slab(int64_t graph) const {
    if (args.at.has_units) {
      const float* const from = args.units + (graph * args.heads + head) * slices * (dim + 1);
      each(slices * dim, [&](int i) { units.at(i / dim, i % dim) = from[i / dim * (dim + 1) + i % dim]; });
      each(slices, [&](int m) { shifts[m] = from[m * (dim + 1) + dim]; });
    }
    if (args.at.has_sums) {
      each(slices * dim, [&](int i) { sums.at(i / dim, i % dim) = 0.0f; });
      each(slices, [&](int m) { sizes[m] = 0.0f; });
    }
  }
  /// This head's columns of a row of nodes.
  __device__ int64_t element(int64_t node) const { return node * args.width + head * dim; }
  __device__ void load_tile(int64_t first, int count) const {
    load_block(keys, args.keys + element(first), args.width, rows, count, dim);
    if (args.at.has_sums || args.at.has_gradient)
      load_block(x, args.x + element(first), args.width, rows, count, dim);
  }
  __device__ void scores() const {
    block_product(
        rows, slices, dim, [this](int i, int k) { return keys.at(i, k); },
        [this](int k, int j) { return weight.at(k, j); },
        [this](int i, int j, float sum) { s.at(i, j) = sum + bias[j]; });
    if (!args.at.has_gradient) return;
    block_product(
        rows, slices, dim, [this](int i, int k) { return x.at(i, k); },
        [this](int k, int j) { return units.at(j, k); },
        [this](int i, int j, float sum) { d_s.at(i, j) = sum - shifts[j]; });
  }
  __device__ void add_sums() const {
    block_product(
        slices, dim, rows, [this](int i, int k) { return s.at(k, i); },
        [this](int k, int j) { return x.at(k, j); },
        [this](int i, int j, float sum) { sums.at(i, j) += sum; });
    each(slices, [&](int m) {
      for (int i = 0; i < rows; ++i) sizes[m] += s.at(i, m);
    });
  }
  __device__ void spread(int64_t first, int count) const {
    if (args.out == nullptr) return;
    block_product(
        count, dim, slices, [this](int i, int k) { return s.at(i, k); },
        [this](int k, int j) { return units.at(k, j); },
        [&](int i, int j, float sum) { store_value(args.out + element(first + i) + j, sum, args.add_out); });
  }
  __device__ void gradients(int64_t first, int count) const {
    block_product(
        dim, slices, rows, [this](int i, int k) { return keys.at(k, i); },
        [this](int k, int j) { return d_s.at(k, j); },
        [this](int i, int j, float sum) { d_weight.at(i, j) += sum; });
    each(slices, [&](int m) {
      for (int i = 0; i < rows; ++i) d_bias[m] += d_s.at(i, m);
    });
    if (args.d_keys == nullptr) return;
    block_product(
        count, dim, slices, [this](int i, int k) { return d_s.at(i, k); },
        [this](int k, int j) { return weight.at(j, k); },
        [&](int i, int j, float sum) {
          store_value(args.d_keys + element(first + i) + j, sum, args.add_d_keys);
        });
  }
  __device__ void store_sums(int64_t slot) const {
    float* const to = args.sums + (slot * args.heads + head) * slices * (dim + 1);
    each(slices * dim, [&](int i) { to[i / dim * (dim + 1) + i % dim] = sums.at(i / dim, i % dim); });
    each(slices, [&](int m) { to[m * (dim + 1) + dim] = sizes[m]; });
  }
  /// The scores are (keys W + b) / t, and d_s has their gradient times 1 / t: so that of t is minus the sum
  /// of W d_W + b d_b, divided by t. `partials` is [kSliceWarps].
  __device__ void store_gradients(float* partials) const {
    float* const to = args.parameter_sums + int64_t{blockIdx.x} * (dim * slices + slices + args.heads);
    float dot = 0.0f;
    each(dim * slices, [&](int i) {
      const float d = d_weight.at(i / slices, i % slices);
      to[i] = d;
      dot += d * weight.at(i / slices, i % slices);
    });
    each(slices, [&](int m) {
      to[dim * slices + m] = d_bias[m];
      dot += d_bias[m] * bias[m];
    });
    dot = warp_sum(dot);
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = dot;
    __syncthreads();  // the warps' sums are complete
    each(args.heads, [&](int h) {
      float sum = 0.0f;
      for (int warp = 0; warp < kSliceWarps; ++warp) sum += partials[warp];
      const bool own = h == head && args.temperatures[head] == temperature;
      to[dim * slices + slices + h] = own ? -sum / temperature : 0.0f;
    });
  }
};

template <class T, bool kSums, bool kSpread, bool kGradient>
__global__ void slice_pass_kernel(SliceArgs<T> args) {
  MESHGRAD_SHARED(float, partials, kSliceWarps);
  const SliceBlock<T> b(args);
  b.begin();
  const int64_t step = gridDim.x / args.heads;
  for (int64_t slot = blockIdx.x / args.heads; slot < args.slots; slot += step) {
    const Slab slab(args.starts, args.graphs, slot);
    if (slab.begin >= slab.end) continue;
    __syncthreads();  // the last slab's sums are stored
    b.begin_slab(slab.graph);
    for (int64_t first = slab.begin; first < slab.end; first += b.rows) {
      const int count = static_cast<int>(min(int64_t{b.rows}, slab.end - first));
      __syncthreads();  // the last tile is read
      b.load_tile(first, count);
      __syncthreads();  // this one is loaded
      b.scores();
      __syncthreads();  // scores are complete
      block_softmax(b.s, b.rows, count, b.slices, 1.0f / b.temperature);
      __syncthreads();  // and the soft weights
      if constexpr (kSums) b.add_sums();
      if constexpr (kSpread) b.spread(first, count);
      if constexpr (kGradient) {
        block_softmax_backward(b.s, b.d_s, b.rows, b.slices, 1.0f / b.temperature);
        __syncthreads();  // gradients of the scores are complete
        b.gradients(first, count);
      }
    }
    __syncthreads();  // sums are complete
    if constexpr (kSums) b.store_sums(slot);
  }
  __syncthreads();  // also where there was no slab
  if constexpr (kGradient) b.store_gradients(partials);
}

/// A warp takes a token.
template <class T>
struct TokenSumArgs {
  int heads, slices, dim;
  int64_t graphs;
  const int32_t* starts;
  const float* sums;
  T* tokens;
  float* sizes;  // null: sums are not divided by them
  bool add;
};

template <class T>
__global__ void token_sums_kernel(TokenSumArgs<T> args) {
  const int64_t of_graph = int64_t{args.heads} * args.slices, tokens = args.graphs * of_graph;
  const int lane = static_cast<int>(threadIdx.x) % 32, columns = args.dim + 1;
  const int64_t first = int64_t{blockIdx.x} * kSliceWarps + threadIdx.x / 32;
  for (int64_t token = first; token < tokens; token += int64_t{gridDim.x} * kSliceWarps) {
    const int64_t graph = token / of_graph, nodes = args.starts[graph + 1] - args.starts[graph];
    const float* const from =
        args.sums + (first_slot(args.starts, graph) * of_graph + token % of_graph) * columns;
    const int slabs = static_cast<int>((nodes + kSliceSlab - 1) / kSliceSlab);
    const auto sum_of = [&](int column) {
      float sum = 0.0f;
#pragma unroll 8
      for (int slab = 0; slab < slabs; ++slab) sum += from[slab * of_graph * columns + column];
      return sum;
    };
    const float size = args.sizes != nullptr ? sum_of(args.dim) : 0.0f;
    if (args.sizes != nullptr && lane == 0) args.sizes[token] = size;
    const float divisor = args.sizes != nullptr ? size + static_cast<float>(kSliceEpsilon) : 1.0f;
    for (int column = lane; column < args.dim; column += 32)
      store_value(args.tokens + token * args.dim + column, sum_of(column) / divisor, args.add);
  }
}

/// A warp takes a token.
template <class T>
struct UnitArgs {
  int64_t tokens;
  int dim;
  const T *of, *d_of;  // d_of: null for u = tokens, c = 0
  const float* sizes;
  float* units;
};

template <class T>
__global__ void token_units_kernel(UnitArgs<T> args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = int64_t{blockIdx.x} * kSliceWarps + threadIdx.x / 32;
  for (int64_t token = first; token < args.tokens; token += int64_t{gridDim.x} * kSliceWarps) {
    const T* const from = args.of + token * args.dim;
    float* const to = args.units + token * (args.dim + 1);
    float shift = 0.0f;
    for (int column = lane; column < args.dim; column += 32) {
      const float value = to_float(from[column]);
      float unit = value;
      if (args.d_of != nullptr) {
        unit = to_float(args.d_of[token * args.dim + column]) /
               (args.sizes[token] + static_cast<float>(kSliceEpsilon));
        shift += unit * value;
      }
      to[column] = unit;
    }
    shift = warp_sum(shift);
    if (lane == 0) to[args.dim] = shift;
  }
}

/// One call: its arguments, and memory that they point to.
template <class T>
struct SliceCall {
  const SliceWeights& weights;
  Runtime& runtime;
  const Stream& stream;
  SliceArgs<T> args{};
  Tensor sums, units, parameter_sums;

  SliceCall(const SliceWeights& a, Runtime& on, const Stream& in) : weights(a), runtime(on), stream(in) {
    args.at.dim = static_cast<int>(a.columns());
    args.at.slices = static_cast<int>(a.slices());
    args.heads = static_cast<int>(a.heads);
    args.graphs = a.graphs();
    args.slots = a.graphs() > 0 ? a.nodes.capacity / kSliceSlab + a.graphs() : 0;
    args.width = a.width();
    args.starts = a.starts.data<int32_t>();
    args.keys = a.keys.data<T>();
    args.weight = a.weight.data<T>();
    args.bias = a.bias.data<float>();
    args.temperatures = a.temperatures.data<float>();
  }
  Tensor workspace(int64_t rows, int64_t width, std::string_view name) const {
    return Tensor::empty(runtime, {rows, width}, DType::f32, Tag::workspace, name);
  }
  /// Of blocks that take a token a warp.
  LaunchShape token_blocks() const {
    return {persistent_blocks(stream, weights.tokens(), kSliceWarps, 16), kSliceThreads, 0};
  }
  void make_sums(const Tensor& x) {
    sums = workspace(args.slots * args.heads * args.at.slices, args.at.dim + 1, "slice sums");
    args.sums = sums.data<float>();
    args.x = x.data<T>();
  }
  void make_units(const char* name, const Tensor& of, const Tensor& d_of, const Tensor& sizes) {
    units = workspace(weights.tokens(), args.at.dim + 1, "slice tokens");
    args.units = units.data<float>();
    launch(name, token_units_kernel<T>, token_blocks(), stream,
           UnitArgs<T>{weights.tokens(), args.at.dim, of.data<T>(), d_of.data_or_null<T>(),
                       sizes.data_or_null<float>(), units.data<float>()});
  }
  /// Blocks of a head. With gradients as many as the device needs, whatever the number of slots, which
  /// depends on capacities: a block's sums would.
  template <bool kSums, bool kSpread, bool kGradient>
  void run(const char* name) {
    args.at.has_sums = kSums;
    args.at.has_units = kSpread || kGradient;
    args.at.has_gradient = kGradient;
    args.at = largest_layout(args.at, stream.device().index);
    const int64_t share = std::max<int64_t>(1, (kGradient ? 1 : 4) * partial_blocks(stream) / args.heads);
    const int64_t blocks = (kGradient ? share : std::min(share, args.slots)) * args.heads;
    if constexpr (kGradient) {
      parameter_sums = workspace(blocks, (args.at.dim + 1) * args.at.slices + args.heads, "slice partials");
      args.parameter_sums = parameter_sums.data<float>();
    }
    launch(name, slice_pass_kernel<T, kSums, kSpread, kGradient>, {blocks, kSliceThreads, args.at.floats * 4},
           stream, args);
  }
  template <bool kSums, bool kSpread>
  void run_backward(const char* name, const SliceWeightGradients& d) {
    args.d_keys = d.d_keys.data_or_null<T>();
    args.add_d_keys = d.accumulate_d_keys;
    run<kSums, kSpread, true>(name);
    const int64_t d_weight = int64_t{args.at.dim} * args.at.slices;
    if (d.d_weight.defined()) add_partials(parameter_sums, 0, d.d_weight, stream);
    if (d.d_bias.defined()) add_partials(parameter_sums, d_weight, d.d_bias, stream);
    if (d.d_temperatures.defined())
      add_partials(parameter_sums, d_weight + args.at.slices, d.d_temperatures, stream);
  }
  void add_slabs_to(const char* name, const Tensor& tokens, const Tensor& sizes, bool add) const {
    launch(name, token_sums_kernel<T>, token_blocks(), stream,
           TokenSumArgs<T>{args.heads, args.at.slices, args.at.dim, args.graphs, args.starts, args.sums,
                           tokens.data<T>(), sizes.data_or_null<float>(), add});
  }
};

void slice_tokens_forward(const SliceTokensForward& args, Runtime& runtime, const Stream& stream) {
  dispatch_gpu_storage(args.values.dtype(), [&]<class T>() {
    SliceCall<T> call(args.weights, runtime, stream);
    call.make_sums(args.values);
    call.template run<true, false, false>("slice_tokens.forward");
    call.add_slabs_to("slice_tokens.finish", args.tokens, args.sizes, false);
  });
}

void slice_tokens_backward(const SliceTokensBackward& args, Runtime& runtime, const Stream& stream) {
  if (args.weights.graphs() == 0) return;
  dispatch_gpu_storage(args.values.dtype(), [&]<class T>() {
    SliceCall<T> call(args.weights, runtime, stream);
    call.args.x = args.values.data<T>();
    call.args.out = args.d_values.data_or_null<T>();
    call.args.add_out = args.accumulate_d_values;
    call.make_units("slice_tokens.units", args.tokens, args.d_tokens, args.sizes);
    call.template run_backward<false, true>("slice_tokens.backward", args.gradients);
  });
}

void slice_spread_forward(const SliceSpreadForward& args, Runtime& runtime, const Stream& stream) {
  dispatch_gpu_storage(args.out.dtype(), [&]<class T>() {
    SliceCall<T> call(args.weights, runtime, stream);
    call.args.out = args.out.data<T>();
    call.make_units("slice_spread.units", args.tokens, {}, {});
    call.template run<false, true, false>("slice_spread.forward");
  });
}

void slice_spread_backward(const SliceSpreadBackward& args, Runtime& runtime, const Stream& stream) {
  if (args.weights.graphs() == 0) return;
  dispatch_gpu_storage(args.d_out.dtype(), [&]<class T>() {
    SliceCall<T> call(args.weights, runtime, stream);
    call.make_sums(args.d_out);
    call.make_units("slice_spread.units", args.tokens, {}, {});
    call.template run_backward<true, false>("slice_spread.backward", args.gradients);
    if (args.d_tokens.defined())
      call.add_slabs_to("slice_spread.finish", args.d_tokens, {}, args.accumulate_d_tokens);
  });
}

}  // namespace

const SliceAttentionKernels slice_attention_kernels{
    .slice_tokens_forward = slice_tokens_forward,
    .slice_tokens_backward = slice_tokens_backward,
    .slice_spread_forward = slice_spread_forward,
    .slice_spread_backward = slice_spread_backward,
    .token_attention_forward = token_attention_forward,
    .token_attention_backward = token_attention_backward,
};

}  // namespace meshgrad::cuda
