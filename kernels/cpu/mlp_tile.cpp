// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/cpu/mlp_tile.h>

#include <algorithm>
#include <utility>

namespace meshgrad::cpu {
namespace {

/// Tiles of a TileScratch besides recomputed hidden layers: a, b, input, left, right, columns, panels.
constexpr int64_t kFixedTiles = 7;

/// Saved tensors of at least this size are written by non-temporal stores: they are next read in the backward
/// pass, long after a cache of a few MiB would have evicted them.
constexpr int64_t kStreamedBytes = int64_t{1} << 22;

/// Non-temporal stores need whole aligned cache lines.
template <class S>
bool is_aligned(const S* rows, int64_t width) {
  constexpr size_t kLine = 64;
  return reinterpret_cast<uintptr_t>(rows) % kLine == 0 &&
         static_cast<size_t>(width) * sizeof(S) % kLine == 0;
}

}  // namespace

int64_t gradient_slabs(int64_t rows) {
  // About 640 rows per slab amortise initialising and reducing 128 x 128 accumulators. A multiple of eight
  // slabs divides evenly among most numbers of threads, so smaller problems are still cut into eight. 128
  // slabs suffice for any machine and bound the workspace.
  constexpr int64_t kShare = 8;
  const int64_t tiles = (rows + kTileRows<float> - 1) / kTileRows<float>;
  if (tiles <= kShare) return std::max<int64_t>(tiles, 1);
  return std::clamp<int64_t>((rows + kShare * 320) / (kShare * 640), 1, 16) * kShare;
}

template <class S>
PackedWeight<S>::PackedWeight(const Tensor& weight, bool transposed, Runtime& runtime)
    : weight_(&weight),
      transposed_(transposed),
      panel_(gemm_ops<S>().panel),
      steps_(transposed ? weight.width() : weight.rows()),
      columns_(transposed ? weight.rows() : weight.width()) {
  constexpr int64_t kStep = kDepth<S>;
  row_stride_ = panel_ * kStep;
  panel_stride_ = row_stride_ * ((steps_ + kStep - 1) / kStep);
  data_ = Tensor::empty(runtime, Shape{count() * panel_stride_}, dtype_of<Operand<S>>(), Tag::workspace,
                        "packed weights");
}

/// A panel holds `panel_` columns, step by step: [steps][panel_][depth]. Untransposed, a step's columns are a
/// range of a row of W, so packing copies rows (and interleaves two for pairs). Transposed, a column is a row
/// of W, whose elements are scattered to every step.
template <class S>
void PackedWeight<S>::pack(int64_t panel) const {
  using To = Operand<S>;
  constexpr int64_t kStep = kDepth<S>;
  const int64_t first = panel * panel_;
  const int64_t columns = std::min(panel_, columns_ - first);
  To* const to = data_.data<To>() + panel * panel_stride_;
  if (columns < panel_ || steps_ % kStep != 0) std::fill_n(to, panel_stride_, To());
  if (!transposed_) {
    const S* const from = weight_->data<S>() + first;
    if constexpr (kStep == 2) {
      row_ops<S>().pair_activated_rows(Activation::none, steps_, columns, from, columns_, to, row_stride_);
    } else {
      row_ops<S>().load(steps_, columns, from, columns_, to, row_stride_);
    }
    return;
  }
  constexpr int64_t kPiece = 256;  // elements widened at once, on the stack
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t begin = 0; begin < steps_; begin += kPiece) {
      const int64_t count = std::min(kPiece, steps_ - begin);
      const S* const stored = weight_->data<S>() + (first + c) * steps_ + begin;
      const To* from;
      [[maybe_unused]] To widened[kPiece];
      if constexpr (std::is_same_v<S, To>) {
        from = stored;
      } else {
        row_ops<S>().load(1, count, stored, 0, widened, 0);
        from = widened;
      }
      To* const column = to + begin / kStep * row_stride_ + c * kStep;
      for (int64_t k = 0; k < count; k += kStep)
        std::copy_n(from + k, std::min(kStep, count - k), column + k / kStep * row_stride_);
    }
  }
}

template <class S>
MlpTile<S>::MlpTile(const PerInput<MlpInput>& inputs, const MlpWeights& weights, const MlpSaved& saved,
                    Direction direction, Runtime& runtime)
    : inputs_(inputs), weights_(weights), saved_(saved) {
  const bool backward = direction == Direction::backward;
  widths_.push_back(inputs.front().weight.width());
  for (const Tensor& weight : weights.weights) widths_.push_back(weight.width());
  int64_t widest = *std::max_element(widths_.begin(), widths_.end());
  for (const MlpInput& input : inputs) widest = std::max(widest, input.weight.rows());
  // Not a power of two: the elements of one column would otherwise map to few cache sets and evict each
  // other.
  tile_row_ = padded(widest) + kPad / 4;

  saved_complete_ = saved_is_complete(weights, saved);
  // Backward multiplies by transposed weights; it needs W itself only to recompute.
  for (const MlpInput& input : inputs) {
    if (!backward || !saved_complete_) first_.push_back({input.weight, false, runtime});
    if (backward) first_transposed_.push_back({input.weight, true, runtime});
  }
  for (const Tensor& weight : weights.weights) {
    if (!backward || !saved_complete_) later_.push_back({weight, false, runtime});
    if (backward) later_transposed_.push_back({weight, true, runtime});
  }
  pack_weights(runtime.stream());
  pack_biases(runtime);
  hidden_tiles_ = backward && !saved_complete_ ? static_cast<int64_t>(widths_.size()) : 0;
  scratch_ = Tensor::empty(runtime, Shape{runtime.stream().threads() * scratch_size()}, dtype_of<T>(),
                           Tag::workspace, "tiles");
}

/// All panels of all weights are one list of tasks.
template <class S>
void MlpTile<S>::pack_weights(const Stream& stream) const {
  InlineVector<const PackedWeight<S>*, 2 * (kMaxMlpInputs + kMaxMlpLayers)> all;
  int64_t panels = 0;
  const auto add = [&](const auto& weights) {
    for (const PackedWeight<S>& weight : weights) all.push_back(&weight), panels += weight.count();
  };
  add(first_), add(first_transposed_), add(later_), add(later_transposed_);
  stream.parallel_for(panels, [&](int64_t panel) {
    const auto* weight = all.begin();
    while (panel >= (*weight)->count()) panel -= (*weight++)->count();
    (*weight)->pack(panel);
  });
}

/// Biases are padded with zeros to rows of a tile, since initial sums are read in whole vectors.
template <class S>
void MlpTile<S>::pack_biases(Runtime& runtime) {
  const auto layers = static_cast<int64_t>(1 + weights_.biases.size());
  biases_ = Tensor::zeros(runtime, Shape{layers, tile_row_}, dtype_of<T>(), Tag::workspace, "packed biases");
  const auto pack = [&](const Tensor& bias) {
    const auto layer = static_cast<int64_t>(has_bias_.size());
    has_bias_.push_back(bias.defined());
    if (!bias.defined()) return;
    runtime.stream().run([&] {
      std::copy_n(bias.template data<T>(), bias.elements(), biases_.template data<T>() + layer * tile_row_);
    });
  };
  pack(weights_.first_bias);
  for (const Tensor& bias : weights_.biases) pack(bias);
}

/// In elements of T; operands and stored rows are no larger.
template <class S>
int64_t MlpTile<S>::scratch_size() const {
  return ((kFixedTiles + hidden_tiles_) * kTileRows<S> + 1) * tile_row_;
}

template <class S>
TileScratch<S> MlpTile<S>::scratch() const {
  T* next = scratch_.data<T>() + ThreadPool::worker() * scratch_size();
  const auto take = [&] { return std::exchange(next, next + kTileRows<S> * tile_row_); };
  const auto operand = [&] { return reinterpret_cast<Operand<S>*>(take()); };
  TileScratch<S> s{take(), take(), operand(), operand(), operand(), operand(), operand(), nullptr, {}, {}};
  for (int64_t i = 0; i < hidden_tiles_; ++i)
    s.hidden[static_cast<size_t>(i)] = {reinterpret_cast<S*>(take()), tile_row_};
  s.row = next;
  return s;
}

template <class S>
void MlpTile<S>::pad_odd_rows([[maybe_unused]] int64_t rows, [[maybe_unused]] int64_t width,
                              [[maybe_unused]] Operand<S>* operand) const {
  if constexpr (kDepth<S> == 2) {
    for (int64_t i = 0; width % 2 != 0 && i < rows; ++i) operand[i * tile_row_ + width] = S();
  }
}

/// Read in place where rows are operands already; otherwise widened, or padded to whole pairs, into s.input.
template <class S>
StridedMatrix<Operand<S>> MlpTile<S>::input_by_rows(size_t input, int64_t first_row, int64_t rows,
                                                    TileScratch<S>& s) const {
  const int64_t in = inputs_[input].weight.rows();
  const S* x = inputs_[input].x.template data<S>() + first_row * in;
  if constexpr (std::is_same_v<S, Operand<S>>) {
    if (in % kDepth<S> == 0) return {x, in, kDepth<S>, in / kDepth<S>};
    for (int64_t i = 0; i < rows; ++i) std::copy_n(x + i * in, in, s.input + i * tile_row_);
    pad_odd_rows(rows, in, s.input);
  } else {
    ops_.load(rows, in, x, in, s.input, tile_row_);
  }
  return by_rows(s.input, in);
}

template <class S>
StridedMatrix<Operand<S>> MlpTile<S>::input_by_columns(size_t input, int64_t first_row, int64_t rows,
                                                       TileScratch<S>& s) const {
  const int64_t in = inputs_[input].weight.rows();
  S* x = inputs_[input].x.template data<S>() + first_row * in;
  if constexpr (std::is_same_v<S, T>) {
    return {x, 1, in, rows};
  } else {
    return by_columns({x, in}, Activation::none, rows, in, s);
  }
}

template <class S>
StridedMatrix<Operand<S>> MlpTile<S>::by_columns(const Hidden<S>& z, Activation activation, int64_t rows,
                                                 int64_t width, TileScratch<S>& s) const {
  if constexpr (kDepth<S> == 2) {
    ops_.pair_activated_rows(activation, rows, width, z.rows, z.stride, s.columns, 2 * tile_row_);
    return {s.columns, 2, 2 * tile_row_, (rows + 1) / 2};
  } else {
    if constexpr (std::is_same_v<S, T>) {
      // The saved max(z, 0) is act(z) of relu.

      if (activation == Activation::relu || activation == Activation::none)
        return {z.rows, 1, z.stride, rows};
    }
    ops_.activate(activation, rows, width, z.rows, z.stride, s.columns, tile_row_);
    return {s.columns, 1, tile_row_, rows};
  }
}

/// A tile's rows of the saved tensors; null where nothing is saved.
template <class S>
typename MlpTile<S>::HiddenRows MlpTile<S>::saved_rows(int64_t first_row) const {
  HiddenRows rows;
  for (size_t layer = 0; layer < widths_.size(); ++layer) {
    const bool last = layer + 1 == widths_.size();
    if (!last && layer >= saved_.pre_activations.size()) continue;
    const Tensor& saved = last ? saved_.pre_norm : saved_.pre_activations[layer];
    if (!saved.defined()) continue;
    S* const first = saved.template data<S>() + first_row * widths_[layer];
    rows[layer] = {first, widths_[layer],
                   saved.bytes() >= kStreamedBytes && is_aligned(first, widths_[layer])};
  }
  return rows;
}

/// z_1 is the sum over inputs of x_i W_i: each multiplication starts from the sums of the one before. Its
/// last one, and that of each later layer, ends in the hidden epilogue, which writes the next operand; left
/// and right take turns as input and output.
template <class S>
Gemm<S> MlpTile<S>::run_hidden(int64_t first_row, int64_t rows, InitialSums<T> start, const HiddenRows& saved,
                               TileScratch<S>& s) const {
  Gemm<S> product{rows, first_width(), {}, {}, start, s.prefetch.next()};
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (i > 0) {
      gemm_.sum(product, s.a, tile_row_);
      product.start = {s.a, tile_row_};
      product.prefetch = s.prefetch.next();
    }
    product.a = input_by_rows(i, first_row, rows, s);
    product.b = first_[i].panels();
  }
  for (size_t layer = 0; layer < later_.size(); ++layer) {
    Operand<S>* const h = layer % 2 == 0 ? s.left : s.right;
    gemm_.hidden(product, {.activation = weights_.activation,
                           .z = saved[layer].rows,
                           .z_stride = saved[layer].stride,
                           .stream_z = saved[layer].stream,
                           .h = h,
                           .h_stride = tile_row_});
    pad_odd_rows(rows, widths_[layer], h);
    product = {rows,
               widths_[layer + 1],
               by_rows(h, widths_[layer]),
               later_[layer].panels(),
               {bias(layer + 1), 0},
               s.prefetch.next()};
  }
  return product;
}

template <class S>
void MlpTile<S>::finish(int64_t first_row, const Gemm<S>& last, const NormResult<S>& result,
                        TileScratch<S>& s) const {
  const int64_t out = out_width();
  if (weights_.norm != Norm::none) {
    const Hidden<S> saved = saved_rows(first_row)[widths_.size() - 1];
    gemm_.hidden(last, {.z = saved.rows,
                        .z_stride = saved.stride,
                        .stream_z = saved.stream,
                        .tile = s.b,
                        .tile_stride = tile_row_});
    return ops_.norm(weights_.norm, last.m, out, s.b, tile_row_, weights_.gain.template data<T>(),
                     weights_.norm_bias.defined() ? weights_.norm_bias.template data<T>() : nullptr,
                     static_cast<T>(weights_.epsilon), result);
  }
  // Without a norm: to storage, to a tile, or (rare) both, for which it is simply computed twice.
  if (result.out != nullptr) gemm_.stored(last, {result.out, out, result.residual, out});
  if (result.tile == nullptr) return;
  gemm_.sum(last, result.tile, result.tile_row);
  if (result.residual_in_tile && result.residual != nullptr)
    ops_.add(last.m, out, result.residual, out, result.tile, result.tile_row);
}

/// In the order of use: backward reads hidden layers from the last to the first, then inputs for their
/// weights' gradients, then the next tile's last layers. The piece that is used first was queued by the tile
/// before.
template <class S>
void MlpTile<S>::begin_tile(int64_t first_row, int64_t rows, const Tensor& d_out, TileScratch<S>& s) const {
  const int64_t next = first_row + rows;
  const bool reads_saved = saved_complete_ && !later_transposed_.empty();
  s.prefetch.clear();
  if (reads_saved) {
    for (size_t layer = later_transposed_.size() - 1; layer-- > 0;)
      s.prefetch.add(saved_.pre_activations[layer], first_row, rows);
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (layout_.first_weights[i] >= 0) s.prefetch.add(inputs_[i].x, first_row, rows);
    s.prefetch.add(saved_.pre_norm, next, rows);
    s.prefetch.add(d_out, next, rows);
    s.prefetch.add(saved_.pre_activations.back(), next, rows);
  } else {
    for (const MlpInput& input : inputs_) s.prefetch.add(input.x, next, rows);
    s.prefetch.add(d_out, next, rows);
  }
}

template <class S>
void MlpTile<S>::load_or_recompute_hidden(int64_t first_row, int64_t rows, InitialSums<T> start,
                                          TileScratch<S>& s) const {
  if (saved_complete_) {
    s.hidden = saved_rows(first_row);
    return;
  }
  const Gemm<S> last = run_hidden(first_row, rows, start, s.hidden, s);
  const Hidden<S>& z = s.hidden[widths_.size() - 1];
  if (weights_.norm != Norm::none) gemm_.hidden(last, {.z = z.rows, .z_stride = z.stride});
}

template <class S>
LayerGradient<S> MlpTile<S>::last_gradient(int64_t rows, TileScratch<S>& s, T* gradients, S* stored) const {
  const int64_t out = out_width();
  T* const bias_sums = gradients + (later_transposed_.empty() ? layout_.first_bias : layout_.biases.back());
  if (weights_.norm != Norm::none) {
    const Hidden<S>& z = s.hidden[widths_.size() - 1];
    ops_.norm_backward(weights_.norm, rows, out, z.rows, z.stride, weights_.gain.template data<T>(),
                       static_cast<T>(weights_.epsilon), s.a, tile_row_, s.a, tile_row_,
                       gradients + layout_.gain,
                       layout_.norm_bias >= 0 ? gradients + layout_.norm_bias : nullptr, bias_sums);
  } else {
    accumulator_ops_.sum_rows({.accumulate = true}, 0, rows, out, s.a, tile_row_, bias_sums);
  }
  if (later_transposed_.empty() && stored != nullptr) ops_.store(rows, out, s.a, tile_row_, stored, out);
  if constexpr (kTilesAreOperands) {
    return {by_rows(s.a, out), as_panels(s.a), s.a};
  } else {
    ops_.store(rows, out, s.a, tile_row_, s.left, tile_row_);
    pad_odd_rows(rows, out, s.left);
    ops_.pair_rows(rows, out, s.a, tile_row_, s.panels, 2 * tile_row_);
    return {by_rows(s.left, out), as_panels(s.panels), s.a};
  }
}

/// Per layer k from the last to the second: d_W_k += h_{k-1}^T d_z_k, then d_z_{k-1} = (d_z_k W_k^T)
/// act'(z_{k-1}), whose epilogue also sums the bias gradient and writes the operands of the next two
/// multiplications. The first layer's weight gradients follow, one per input.
template <class S>
LayerGradient<S> MlpTile<S>::backward(int64_t first_row, int64_t rows, TileScratch<S>& s,
                                      SlabGradients<T>& slab, S* stored) const {
  LayerGradient<S> d = last_gradient(rows, s, slab.sums, stored);
  for (size_t layer = later_transposed_.size(); layer-- > 0;) {
    const int64_t in = widths_[layer];
    const Hidden<S>& z = s.hidden[layer];
    add_weight_gradient(in, widths_[layer + 1], by_columns(z, weights_.activation, rows, in, s), d.panels,
                        slab, layout_.weights[layer], s.prefetch);
    // The two operand tiles take turns: d.rows is read while `next` is written.
    Operand<S>* const next = d.rows.data == s.left ? s.right : s.left;
    GradientResult<S> to{.activation = weights_.activation, .z = z.rows, .z_stride = z.stride};
    to.column_sums = slab.sums + (layer == 0 ? layout_.first_bias : layout_.biases[layer - 1]);
    if (layer == 0) {
      to.stored = stored;
      to.stored_stride = in;
      to.tile = s.b;
    }
    if constexpr (kTilesAreOperands) {
      to.tile = next;
    } else {
      to.rows = next;
      to.rows_stride = tile_row_;
      to.pairs = s.panels;
      to.pairs_stride = 2 * tile_row_;
    }
    to.tile_stride = tile_row_;
    gemm_.gradient({rows, in, d.rows, later_transposed_[layer].panels(), {}, s.prefetch.next()}, to);
    pad_odd_rows(rows, in, next);
    d = {by_rows(next, in), as_panels(kTilesAreOperands ? next : s.panels), to.tile};
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (layout_.first_weights[i] < 0) continue;
    add_weight_gradient(inputs_[i].weight.rows(), first_width(), input_by_columns(i, first_row, rows, s),
                        d.panels, slab, layout_.first_weights[i], s.prefetch);
  }
  slab.has_tiles = true;
  return d;
}

template <class S>
Gemm<S> MlpTile<S>::input_gradient(size_t input, int64_t rows, const LayerGradient<S>& d_z1) const {
  return {rows, inputs_[input].weight.rows(), d_z1.rows, first_transposed_[input].panels(), {}};
}

/// Row vectors come first, as begin_slab zeroes them with one fill.
template <class S>
void MlpTile<S>::plan_gradients(const PerInput<bool>& wanted) {
  int64_t size = 0;
  const auto take = [&size](int64_t elements) { return std::exchange(size, size + elements); };
  layout_.first_bias = take(padded(first_width()));
  for (size_t layer = 1; layer < widths_.size(); ++layer)
    layout_.biases.push_back(take(padded(widths_[layer])));
  if (weights_.norm != Norm::none) layout_.gain = take(padded(out_width()));
  if (weights_.norm == Norm::layer) layout_.norm_bias = take(padded(out_width()));
  layout_.row_sums = size;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    layout_.first_weights.push_back(wanted[i] ? take(inputs_[i].weight.rows() * padded(first_width())) : -1);
  }
  for (size_t layer = 1; layer < widths_.size(); ++layer)
    layout_.weights.push_back(take(widths_[layer - 1] * padded(widths_[layer])));
  layout_.size = size;
}

/// All destinations are treated as one list of rows, divided into tasks of kRowsPerTask. Each row adds its
/// slabs in ascending order, so the bits do not depend on which thread does it.
template <class S>
void MlpTile<S>::reduce(const Tensor& slabs, const PerInput<Tensor>& d_first_weights,
                        const MlpWeightGradients& d_weights, const Stream& stream) const {
  struct Part {
    T* to;
    int64_t from;  // offset in a slab
    int64_t first_row, rows, width;
  };
  InlineVector<Part, kMaxMlpInputs + 2 * kMaxMlpLayers + 3> parts;
  int64_t all_rows = 0;  // of all destinations together
  const auto add_part = [&](const Tensor& to, int64_t from, int64_t rows, int64_t width) {
    if (!to.defined() || from < 0) return;
    parts.push_back({to.template data<T>(), from, std::exchange(all_rows, all_rows + rows), rows, width});
  };
  add_part(d_weights.first_bias, layout_.first_bias, 1, first_width());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    add_part(d_first_weights[i], layout_.first_weights[i], inputs_[i].weight.rows(), first_width());
  }
  for (size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
    add_part(d_weights.weights[layer], layout_.weights[layer], widths_[layer], widths_[layer + 1]);
    add_part(d_weights.biases[layer], layout_.biases[layer], 1, widths_[layer + 1]);
  }
  add_part(d_weights.gain, layout_.gain, 1, out_width());
  add_part(d_weights.norm_bias, layout_.norm_bias, 1, out_width());
  constexpr int64_t kRowsPerTask = 16;
  stream.parallel_for((all_rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    const int64_t end = std::min(all_rows, (task + 1) * kRowsPerTask);
    const Part* part = parts.begin();
    for (int64_t row = task * kRowsPerTask; row < end;) {
      while (row >= part->first_row + part->rows) ++part;
      int64_t r = row - part->first_row;
      const int64_t rows = std::min(end, part->first_row + part->rows) - row;
      const T* const from = slabs.data<T>() + part->from;
      for (const int64_t last = r + rows; r < last; ++r)
        accumulator_ops_.sum_rows({.accumulate = true}, 0, slabs.rows(), part->width,
                                  from + r * padded(part->width), layout_.size, part->to + r * part->width);
      row += rows;
    }
  });
}

template class MlpTile<float>;
template class MlpTile<double>;
template class MlpTile<half>;
template class MlpTile<bfloat16>;
template class MlpTile<WideBfloat16>;

}  // namespace meshgrad::cpu
