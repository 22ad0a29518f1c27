// SPDX-License-Identifier: Apache-2.0
// The engine of mlp, linear and message_passing on the CPU: an MLP applied to one tile of rows, forward
// and backward. Weights are packed once per call.
//
// Weight gradients are accumulated per slab. A slab is a fixed range of rows (gradient_slabs), processed by
// one thread, tile after tile; reduce() adds the slabs in order. So results do not depend on the number of
// threads.
#pragma once
#include <meshgrad/kernels/cpu/gemm.h>
#include <meshgrad/kernels/mlp.h>

#include <algorithm>
#include <array>

namespace meshgrad::cpu {

/// A weight packed in panels of columns for gemm.h, zero-padded to whole panels and steps.
template <class S>
class PackedWeight {
 public:
  /// Memory for W [in, out], or for its transpose. Keeps a pointer to `weight`.
  PackedWeight() = default;
  PackedWeight(const Tensor& weight, bool transposed, Runtime& runtime);
  /// Number of panels.
  int64_t count() const { return (columns_ + panel_ - 1) / panel_; }
  void pack(int64_t panel) const;  ///< to be called once for each panel, by any thread
  PanelMatrix<Operand<S>> panels() const { return {data_.data<Operand<S>>(), panel_stride_, row_stride_}; }

 private:
  Tensor data_;
  const Tensor* weight_ = nullptr;
  bool transposed_ = false;
  int64_t panel_ = 1, steps_ = 0, columns_ = 0;
  int64_t panel_stride_ = 0;
  int64_t row_stride_ = 0;
};

/// Offsets of one slab's gradients in its row of the gradient workspace: row vectors first, which tiles add
/// to and which therefore start at zero, then weights, which the first tile writes. Widths are padded.
struct GradientLayout {
  int64_t first_bias = 0;
  PerLayer<int64_t> biases;
  int64_t gain = -1, norm_bias = -1;
  int64_t row_sums = 0;             ///< total size of the row vectors
  PerInput<int64_t> first_weights;  ///< -1: not computed
  PerLayer<int64_t> weights;
  int64_t size = 0;
};

/// One slab's gradients. Its first tile writes the weights' gradients, later tiles add to them.
template <class T>
struct SlabGradients {
  T* sums;
  bool has_tiles = false;
};

/// Rows of pre-activations as MlpSaved defines them: in saved tensors, or recomputed in a tile.
template <class S>
struct Hidden {
  S* rows = nullptr;
  int64_t stride = 0;
  bool stream = false;  ///< written by non-temporal stores
};

/// Memory that will be read soon, in that order. Each multiplication prefetches one piece, so later passes
/// find their data in the L2 cache.
class PrefetchQueue {
 public:
  void clear() { pieces_.clear(), next_ = 0; }
  /// Rows first .. first + count - 1 of x, as far as they exist. Nothing for an undefined tensor.
  void add(const Tensor& x, int64_t first, int64_t count) {
    if (!x.defined() || first >= x.rows()) return;
    const int64_t row = x.bytes() / x.rows();
    pieces_.push_back(
        {static_cast<const std::byte*>(x.raw()) + first * row, std::min(count, x.rows() - first) * row});
  }
  Prefetch next() { return next_ < pieces_.size() ? pieces_[next_++] : Prefetch{}; }

 private:
  InlineVector<Prefetch, kMaxMlpInputs + kMaxMlpLayers + 2> pieces_;
  size_t next_ = 0;
};

/// One thread's workspace: tiles as wide as the widest layer.
template <class S>
struct TileScratch {
  Accumulator<S>*a, *b;                         ///< results in the accumulation type
  Operand<S>* input;                            ///< the first layer's rows, widened or padded
  Operand<S>*left, *right;                      ///< a layer's input and output, in turn
  Operand<S>*columns, *panels;                  ///< operands over rows, for weight gradients
  Accumulator<S>* row;                          ///< a single row
  std::array<Hidden<S>, kMaxMlpLayers> hidden;  ///< z_1 .. z_last, for backward
  PrefetchQueue prefetch;
};

/// d_z of a layer, in the layouts that the next multiplications need.
template <class S>
struct LayerGradient {
  StridedMatrix<Operand<S>> rows;  ///< as A [rows, width]: for d of the layer below
  PanelMatrix<Operand<S>> panels;  ///< as B [rows, width]: for the weight gradient
  const Accumulator<S>* tile;      ///< in the accumulation type; may be null except for d_z_1
};

/// One MLP call's shared state, read-only while tiles run. Activations are stored in S and summed in T.
/// Pre-activations are rounded to S whether they are saved or not, so recomputation gives the same bits.
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
  TileScratch<S> scratch() const;  ///< the calling worker's part

  /// The first layer's bias, padded like a row of a tile; null if there is none.
  const T* first_bias() const { return bias(0); }
  /// Initial sums of z_1 when nothing but the bias is added to the inputs' terms.
  InitialSums<T> first_start() const { return {first_bias(), 0}; }

  /// Begins a tile: queues prefetches of what it reads later and of what the next tile reads first, such as
  /// `d_out` (undefined in forward).
  void begin_tile(int64_t first_row, int64_t rows, const Tensor& d_out, TileScratch<S>& s) const;

  /// Runs all layers but the last, saving pre-activations if asked to, and returns the last layer's
  /// multiplication, z_last, for finish(). `start` holds the initial sums of z_1; it may be s.a.
  Gemm<S> forward_to_last(int64_t first_row, int64_t rows, InitialSums<T> start, TileScratch<S>& s) const {
    return run_hidden(first_row, rows, start, saved_rows(first_row), s);
  }
  /// Computes z_last, saves it if asked to, and writes y: its norm, or z_last itself without a norm.
  void finish(int64_t first_row, const Gemm<S>& last, const NormResult<S>& result, TileScratch<S>& s) const;

  /// Makes z_1 .. z_last available in s.hidden for backward: as saved, or recomputed from `start`.
  bool needs_recompute() const { return !saved_complete_; }
  void load_or_recompute_hidden(int64_t first_row, int64_t rows, InitialSums<T> start,
                                TileScratch<S>& s) const;
  /// Backward of all layers: from d_y in s.a to d_z_1, which is also written to `stored` unless that is null.
  /// Adds weight gradients to the slab's. The result points into `s`.
  LayerGradient<S> backward(int64_t first_row, int64_t rows, TileScratch<S>& s, SlabGradients<T>& slab,
                            S* stored = nullptr) const;
  /// d_x = d_z_1 W^T of an input, as a multiplication still to be run.
  Gemm<S> input_gradient(size_t input, int64_t rows, const LayerGradient<S>& d_z1) const;

  /// Lays out a slab's gradients. wanted[i]: whether d of input i's weight is computed. Before any
  /// backward().
  void plan_gradients(const PerInput<bool>& wanted);
  /// Workspace for the gradients of all slabs. Call begin_slab() before and end_slab() after a slab's tiles.
  Tensor allocate_gradient_slabs(int64_t slabs, Runtime& runtime) const {
    return Tensor::empty(runtime, Shape{slabs, layout_.size}, dtype_of<T>(), Tag::workspace,
                         "gradient slabs");
  }
  SlabGradients<T> begin_slab(const Tensor& slabs, int64_t slab) const {
    T* const sums = slabs.data<T>() + slab * layout_.size;
    std::fill_n(sums, layout_.row_sums, T(0));
    return {sums};
  }
  /// A slab without tiles contributes zeros.
  void end_slab(const SlabGradients<T>& slab) const {
    if (!slab.has_tiles) std::fill_n(slab.sums, layout_.size, T(0));
  }
  /// Adds the slabs' gradients to the destination tensors, in the order of slabs.
  void reduce(const Tensor& slabs, const PerInput<Tensor>& d_first_weights,
              const MlpWeightGradients& d_weights, const Stream& stream) const;

 private:
  static constexpr bool kTilesAreOperands = std::is_same_v<Operand<S>, T>;
  /// An input's rows as A [rows, width], and transposed, as A [width, rows] of its weight's gradient.
  StridedMatrix<Operand<S>> input_by_rows(size_t input, int64_t first_row, int64_t rows,
                                          TileScratch<S>& s) const;
  StridedMatrix<Operand<S>> input_by_columns(size_t input, int64_t first_row, int64_t rows,
                                             TileScratch<S>& s) const;
  /// act(z) transposed, as A [width, rows] of the next weight's gradient.
  StridedMatrix<Operand<S>> by_columns(const Hidden<S>& z, Activation activation, int64_t rows, int64_t width,
                                       TileScratch<S>& s) const;
  /// A tile's rows as A [rows, width].
  StridedMatrix<Operand<S>> by_rows(const Operand<S>* rows, int64_t width) const {
    return {rows, tile_row_, kDepth<S>, (width + kDepth<S> - 1) / kDepth<S>};
  }
  /// A tile's rows as B: a panel is a range of columns of the tile, so nothing is packed.
  PanelMatrix<Operand<S>> as_panels(const Operand<S>* rows) const {
    return {rows, gemm_.panel * kDepth<S>, tile_row_ * kDepth<S>};
  }
  using HiddenRows = std::array<Hidden<S>, kMaxMlpLayers>;
  HiddenRows saved_rows(int64_t first_row) const;
  Gemm<S> run_hidden(int64_t first_row, int64_t rows, InitialSums<T> start, const HiddenRows& saved,
                     TileScratch<S>& s) const;
  /// d_z_last from d_y in s.a: the norm's backward, and the last bias's gradient.
  LayerGradient<S> last_gradient(int64_t rows, TileScratch<S>& s, T* gradients, S* stored) const;
  /// Pairs read one element past rows of an odd width: sets it to 0.
  void pad_odd_rows(int64_t rows, int64_t width, Operand<S>* operand) const;
  /// Adds A^T B over the tile's rows to a weight's gradient.
  void add_weight_gradient(int64_t in, int64_t out, const StridedMatrix<Operand<S>>& a,
                           const PanelMatrix<Operand<S>>& b, const SlabGradients<T>& slab, int64_t offset,
                           PrefetchQueue& prefetch) const {
    T* const to = slab.sums + offset;
    gemm_.sum({in, out, a, b, {slab.has_tiles ? to : nullptr, padded(out)}, prefetch.next()}, to,
              padded(out));
  }
  const T* bias(size_t layer) const {
    return has_bias_[layer] ? biases_.data<T>() + static_cast<int64_t>(layer) * tile_row_ : nullptr;
  }
  void pack_weights(const Stream& stream) const;
  void pack_biases(Runtime& runtime);
  int64_t scratch_size() const;  // of a worker, in T

  const RowOps<S>& ops_ = row_ops<S>();
  const RowOps<T>& accumulator_ops_ = row_ops<T>();
  const GemmOps<S>& gemm_ = gemm_ops<S>();
  const PerInput<MlpInput>& inputs_;
  const MlpWeights& weights_;
  const MlpSaved& saved_;
  bool saved_complete_ = false;
  PerLayer<int64_t> widths_;  // of z_1 .. z_last
  PerInput<PackedWeight<S>> first_, first_transposed_;
  PerLayer<PackedWeight<S>> later_, later_transposed_;
  Tensor biases_;  // [layers, tile_row]: padded like rows of a tile
  PerLayer<bool> has_bias_;
  GradientLayout layout_;
  int64_t tile_row_ = 0;
  int64_t hidden_tiles_ = 0;
  Tensor scratch_;
};

/// Calls `body.template operator()<S>()` with the storage type for matrix multiplication: bf16 becomes
/// WideBfloat16 on CPUs without bfloat16 dot products.
template <class Body>
decltype(auto) dispatch_gemm_storage(DType dtype, Body&& body) {
  if (dtype == DType::bf16 && !multiplies_bf16_pairs()) return body.template operator()<WideBfloat16>();
  return dispatch_cpu_storage(dtype, body);
}

/// Number of slabs of a backward pass over `rows` rows. Depends only on the number of rows, so that sums do
/// not depend on threads.
int64_t gradient_slabs(int64_t rows);

}  // namespace meshgrad::cpu
