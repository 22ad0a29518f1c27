// SPDX-License-Identifier: Apache-2.0
// The engine behind mlp, linear and message_passing on the CPU: an MLP applied to one tile of rows, forward
// and backward, with weights packed once a call and gradients accumulated by slab.
#pragma once
#include <meshgrad/kernels/cpu/gemm.h>
#include <meshgrad/kernels/mlp.h>

#include <algorithm>
#include <array>

namespace meshgrad::cpu {

/// A weight packed in panels, zero-padded to whole panels and steps.
template <class S>
class PackedWeight {
 public:
  /// Room for W [in, out], or its transpose [out, in] as seen by the product. `weight` stays where it is.
  PackedWeight() = default;
  PackedWeight(const Tensor& weight, bool transposed, Runtime& runtime);
  int64_t count() const { return (columns_ + panel_ - 1) / panel_; }
  void pack(int64_t panel) const;  ///< once, for each
  PanelMatrix<Operand<S>> panels() const { return {data_.data<Operand<S>>(), panel_stride_, row_stride_}; }

 private:
  Tensor data_;
  const Tensor* weight_ = nullptr;
  bool transposed_ = false;
  int64_t panel_ = 1, steps_ = 0, columns_ = 0;
  int64_t panel_stride_ = 0;
  int64_t row_stride_ = 0;
};

/// Where one slab's gradients lie in its part of the accumulator: sums of rows, then the weights'; widths are
/// padded.
struct GradientLayout {
  int64_t first_bias = 0;
  PerLayer<int64_t> biases;
  int64_t gain = -1, norm_bias = -1;
  int64_t row_sums = 0;             ///< size of all these
  PerInput<int64_t> first_weights;  ///< -1: not wanted
  PerLayer<int64_t> weights;
  int64_t size = 0;
};

/// One slab's gradients. The first tile writes those of weights, the others add to them.
template <class T>
struct SlabGradients {
  T* sums;
  bool has_tiles = false;
};

/// Rows of pre-activations, or of what is kept of them (see MlpSaved): saved ones, or those of a tile.
template <class S>
struct Hidden {
  S* rows = nullptr;
  int64_t stride = 0;
  bool stream = false;  ///< see HiddenResult
};

/// Memory that tiles read soon, in that order: one product after the other fetches a piece, so that the pass
/// that reads it need not wait.
class FetchQueue {
 public:
  void clear() { waiting_.clear(), taken_ = 0; }
  /// Rows from `first` of x, those that there are; none of a tensor that is undefined.
  void add(const Tensor& x, int64_t first, int64_t count) {
    if (!x.defined() || first >= x.rows()) return;
    const int64_t row = x.bytes() / x.rows();
    waiting_.push_back(
        {static_cast<const std::byte*>(x.raw()) + first * row, std::min(count, x.rows() - first) * row});
  }
  Ahead next() { return taken_ < waiting_.size() ? waiting_[taken_++] : Ahead{}; }

 private:
  InlineVector<Ahead, kMaxMlpInputs + kMaxMlpLayers + 2> waiting_;
  size_t taken_ = 0;
};

/// Scratch of one thread: tiles of the widest layer, and operands of products.
template <class S>
struct TileScratch {
  Accumulator<S>*a, *b;
  Operand<S>*input, *left, *right, *columns, *panels;
  Accumulator<S>* row;                          ///< one alone
  std::array<Hidden<S>, kMaxMlpLayers> hidden;  ///< z_1 .. z_last, for backward
  FetchQueue fetch;
};

/// d_z of a layer, in the shapes that products want.
template <class S>
struct LayerGradient {
  Factor<Operand<S>> rows;         ///< as A [rows, width]
  PanelMatrix<Operand<S>> panels;  ///< as B [rows, width]
  const Accumulator<S>* tile;      ///< that of d_z_1; others may have none
};

/// Everything of one MLP call that threads share; read-only while tiles run. Activations are stored in S and
/// summed in T. What forward may save is rounded to S in the tile, whether it is saved or not: backward finds
/// the same bits when it recomputes.
template <class S>
class MlpTile {
 public:
  using T = Accumulator<S>;
  enum class Direction { forward, backward };
  MlpTile(const PerInput<MlpInput>& inputs, const MlpWeights& weights, const MlpSaved& saved,
          Direction direction, Runtime& runtime);

  int64_t tile_row() const { return tile_row_; }  ///< leading dimension of tiles
  int64_t first_width() const { return widths_.front(); }
  int64_t out_width() const { return widths_.back(); }
  TileScratch<S> scratch() const;  ///< of the calling worker

  /// The first layer's bias, as a row of a tile; null for none.
  const T* first_bias() const { return bias(0); }
  /// What z_1 is beside the inputs' products, where nothing else is added.
  Start<T> first_start() const { return {first_bias(), 0}; }

  /// Begins a tile: lets its products fetch what is read later, and what the tile of as many rows behind it
  /// begins with, such as its `d_out` (undefined in forward).
  void begin_tile(int64_t first_row, int64_t rows, const Tensor& d_out, TileScratch<S>& s) const;

  /// Runs the layers up to the last, saving what was asked for, and returns the product that is left: z_last
  /// before it is rounded. `start` is what z_1 is beside the inputs' products; it may be s.a.
  Product<S> before_last(int64_t first_row, int64_t rows, Start<T> start, TileScratch<S>& s) const {
    return run_hidden(first_row, rows, start, saved_rows(first_row), s);
  }
  /// z_last, saved if that was asked for, and what a norm makes of it; without one it is y itself.
  void finish(int64_t first_row, const Product<S>& last, const NormResult<S>& result,
              TileScratch<S>& s) const;

  /// Finds z_1 .. z_last for backward: as saved, or computed again from `start`.
  bool needs_recompute() const { return !saved_complete_; }
  void find_hidden(int64_t first_row, int64_t rows, Start<T> start, TileScratch<S>& s) const;
  /// From d_y in s.a to d_z_1, which also goes to `stored` unless that is null; adds weight gradients to the
  /// slab's. The result lies in `s`.
  LayerGradient<S> backward(int64_t first_row, int64_t rows, TileScratch<S>& s, SlabGradients<T>& slab,
                            S* stored = nullptr) const;
  /// d_x of an input, as a product.
  Product<S> input_gradient(size_t input, int64_t rows, const LayerGradient<S>& d_z1) const;

  /// Chooses which first-layer weight gradients are wanted; before any backward.
  void plan_gradients(const PerInput<bool>& wanted);
  /// Room for the gradients of all slabs, of which each is begun, and ended behind its last tile.
  Tensor slabs_of_gradients(int64_t slabs, Runtime& runtime) const {
    return Tensor::empty(runtime, Shape{slabs, layout_.size}, dtype_of<T>(), Tag::workspace,
                         "gradient slabs");
  }
  SlabGradients<T> begin_slab(const Tensor& slabs, int64_t slab) const {
    T* const sums = slabs.data<T>() + slab * layout_.size;
    std::fill_n(sums, layout_.row_sums, T(0));
    return {sums};
  }
  void end_slab(const SlabGradients<T>& slab) const {
    if (!slab.has_tiles) std::fill_n(slab.sums, layout_.size, T(0));
  }
  /// Adds the slabs' gradients, in order, to the destination tensors.
  void reduce(const Tensor& slabs, const PerInput<Tensor>& d_first_weights,
              const MlpWeightGradients& d_weights, const Stream& stream) const;

 private:
  static constexpr bool kTilesAreOperands = std::is_same_v<Operand<S>, T>;
  /// An input's rows as A [rows, width], and as A [width, rows] of its weight's gradient.
  Factor<Operand<S>> input_by_rows(size_t input, int64_t first_row, int64_t rows, TileScratch<S>& s) const;
  Factor<Operand<S>> input_by_columns(size_t input, int64_t first_row, int64_t rows, TileScratch<S>& s) const;
  /// act(z) as A [width, rows].
  Factor<Operand<S>> by_columns(const Hidden<S>& z, Activation activation, int64_t rows, int64_t width,
                                TileScratch<S>& s) const;
  Factor<Operand<S>> by_rows(const Operand<S>* rows, int64_t width) const {
    return {rows, tile_row_, kDepth<S>, (width + kDepth<S> - 1) / kDepth<S>};
  }
  PanelMatrix<Operand<S>> as_panels(const Operand<S>* rows) const {
    return {rows, products_.panel * kDepth<S>, tile_row_ * kDepth<S>};
  }
  using HiddenRows = std::array<Hidden<S>, kMaxMlpLayers>;
  HiddenRows saved_rows(int64_t first_row) const;
  Product<S> run_hidden(int64_t first_row, int64_t rows, Start<T> start, const HiddenRows& keep,
                        TileScratch<S>& s) const;
  LayerGradient<S> last_gradient(int64_t rows, TileScratch<S>& s, T* gradients, S* stored) const;
  /// What is behind rows of an odd width is multiplied, too.
  void end_rows(int64_t rows, int64_t width, Operand<S>* operand) const;
  /// Adds A^T B over the tile's rows to a weight's gradient.
  void add_weight_gradient(int64_t in, int64_t out, const Factor<Operand<S>>& a,
                           const PanelMatrix<Operand<S>>& b, const SlabGradients<T>& slab, int64_t offset,
                           FetchQueue& fetch) const {
    T* const to = slab.sums + offset;
    products_.sum({in, out, a, b, {slab.has_tiles ? to : nullptr, padded(out)}, fetch.next()}, to,
                  padded(out));
  }
  const T* bias(size_t layer) const {
    return has_bias_[layer] ? biases_.data<T>() + static_cast<int64_t>(layer) * tile_row_ : nullptr;
  }
  void pack_weights(const Stream& stream) const;
  void pack_biases(Runtime& runtime);
  int64_t scratch_size() const;  // of a worker, in T

  const TileOps<S>& ops_ = tile_ops<S>();
  const TileOps<T>& in_tiles_ = tile_ops<T>();
  const Products<S>& products_ = products<S>();
  const PerInput<MlpInput>& inputs_;
  const MlpWeights& weights_;
  const MlpSaved& saved_;
  bool saved_complete_ = false;
  PerLayer<int64_t> widths_;  // of z_1 .. z_last
  PerInput<PackedWeight<S>> first_, first_transposed_;
  PerLayer<PackedWeight<S>> later_, later_transposed_;
  Tensor biases_;  // rows of a tile
  PerLayer<bool> has_bias_;
  GradientLayout layout_;
  int64_t tile_row_ = 0;
  int64_t hidden_tiles_ = 0;
  Tensor scratch_;
};

/// Calls `body.template operator()<S>()` with the storage type of kernels that multiply.
template <class Body>
decltype(auto) dispatch_products(DType dtype, Body&& body) {
  if (dtype == DType::bf16 && !multiplies_pairs()) return body.template operator()<WideBfloat16>();
  return dispatch_cpu_storage(dtype, body);
}

/// Slabs of a backward pass over `rows` rows: cut by the problem, so that sums do not depend on threads.
int64_t gradient_slabs(int64_t rows);

}  // namespace meshgrad::cpu
