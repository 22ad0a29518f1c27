// SPDX-License-Identifier: Apache-2.0
// The engine behind mlp, linear and message_passing on the CPU: an MLP applied to one tile of rows, forward
// and backward, with weights packed once a call and gradients accumulated by slab.
#pragma once
#include <meshgrad/kernels/cpu/tile.h>
#include <meshgrad/kernels/mlp.h>

#include <array>

namespace meshgrad::cpu {

/// A weight packed in panels, zero-padded to whole panels and steps.
template <class S>
class PackedWeight {
 public:
  /// W [in, out], or its transpose [out, in] as seen by the product.
  PackedWeight() = default;
  PackedWeight(const Tensor& weight, bool transposed, Runtime& runtime);
  PanelMatrix<Operand<S>> panels() const { return {data_.data<Operand<S>>(), panel_stride_, row_stride_}; }

 private:
  Tensor data_;
  int64_t panel_stride_ = 0;
  int64_t row_stride_ = 0;
};

/// Where one slab's gradients lie in its part of the accumulator; widths are padded.
struct GradientLayout {
  std::vector<int64_t> first_weights;  ///< per input, -1: not wanted
  int64_t first_bias = 0;
  std::vector<int64_t> weights, biases;
  int64_t gain = -1, norm_bias = -1;
  int64_t size = 0;
};

/// Scratch tiles of one thread. Those of the products' operands exist where tiles are not operands
/// themselves.
template <class S>
struct TileScratch {
  using T = Accumulator<S>;
  T* a;  ///< three tiles of the widest layer
  T* b;
  T* c;
  T* x;  ///< an input, widened
  Operand<S>* left;
  Operand<S>* right;
  std::array<T*, kMaxMlpLayers> hidden;  ///< z_1 .. z_last, for backward
};

/// A of a product: see TileOps::gemm.
template <class S>
struct Factor {
  const Operand<S>* data;
  int64_t row, column, steps;
};

/// Everything of one MLP call that threads share; read-only while tiles run. Activations are stored in S and
/// summed in T. What forward may save is rounded to S in the tile, whether it is saved or not: backward finds
/// the same bits when it recomputes.
template <class S>
class MlpTile {
 public:
  using T = Accumulator<S>;
  enum class Direction { forward, backward };
  MlpTile(const std::vector<MlpInput>& inputs, const MlpWeights& weights, const MlpSaved& saved,
          Direction direction, Runtime& runtime);

  int64_t tile_row() const { return tile_row_; }  ///< leading dimension of tiles
  int64_t first_width() const { return widths_.front(); }
  int64_t out_width() const { return widths_.back(); }
  TileScratch<S> scratch() const;  ///< of the calling worker

  /// z_1 of the tile holds what is added to the inputs' products (bias, gathered terms); adds them.
  void add_inputs(int64_t first_row, int64_t rows, TileScratch<S>& s, T* z) const;
  /// First-layer bias into every row of a tile.
  void start(int64_t rows, T* z) const;
  /// Runs the layers on s.a = z_1, saving what was asked for; returns the tile that holds y.
  T* finish_forward(int64_t first_row, int64_t rows, TileScratch<S>& s) const;

  /// Recomputes or loads z_1 .. z_last into s.hidden. `z1` (hidden[0]) holds the added terms when
  /// recomputing.
  bool needs_recompute() const { return !saved_complete_; }
  void load_saved(int64_t first_row, int64_t rows, TileScratch<S>& s) const;
  void recompute(int64_t first_row, int64_t rows, TileScratch<S>& s) const;
  /// From d_y in s.a to d_z_1, whose tile is returned; adds weight gradients to `gradients` (a slab's part).
  T* backward(int64_t first_row, int64_t rows, TileScratch<S>& s, T* gradients) const;
  /// d_x of an input into the tile s.b (overwritten), from the d_z_1 tile.
  void input_gradient(size_t input, int64_t rows, const T* d_z1, TileScratch<S>& s) const;

  const GradientLayout& layout() const { return layout_; }
  /// Chooses which first-layer weight gradients are wanted; before any backward.
  void plan_gradients(const std::vector<bool>& wanted);
  /// Adds the slabs' gradients, in order, to the destination tensors.
  void reduce(const T* gradients, int64_t slabs, const std::vector<Tensor>& d_first_weights,
              const MlpWeightGradients& d_weights, const Stream& stream) const;

 private:
  /// A tile, or an input's rows, as A [rows, width].
  Factor<S> by_rows(int64_t rows, int64_t width, const T* tile, TileScratch<S>& s) const;
  Factor<S> input_by_rows(size_t input, int64_t first_row, int64_t rows, TileScratch<S>& s) const;
  /// The same, as A [width, rows] of a weight gradient; and the tile that is its B [rows, width].
  Factor<S> by_columns(int64_t rows, int64_t width, const T* tile, TileScratch<S>& s) const;
  Factor<S> input_by_columns(size_t input, int64_t first_row, int64_t rows, TileScratch<S>& s) const;
  PanelMatrix<Operand<S>> as_panels(int64_t rows, int64_t width, const T* tile, TileScratch<S>& s) const;
  /// c [m, n] (=, +=) A B.
  void product(int64_t m, int64_t n, const Factor<S>& a, const PanelMatrix<Operand<S>>& b, T* c,
               int64_t c_row, bool accumulate) const {
    ops_.gemm(m, n, a.steps, a.data, a.row, a.column, b, c, c_row, accumulate);
  }

  const TileOps<S>& ops_ = tile_ops<S>();
  const std::vector<MlpInput>& inputs_;
  const MlpWeights& weights_;
  const MlpSaved& saved_;
  bool saved_complete_ = false;
  std::vector<int64_t> widths_;  // of z_1 .. z_last
  std::vector<PackedWeight<S>> first_, first_transposed_, later_, later_transposed_;
  GradientLayout layout_;
  int64_t tile_row_ = 0;
  int64_t scratch_tiles_ = 0;
  Tensor scratch_;
};

/// Slabs of a backward pass over `rows` rows: cut by the problem, so that sums do not depend on threads.
int64_t gradient_slabs(int64_t rows);

}  // namespace meshgrad::cpu
