// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cpu/mlp_tile.h>

#include <algorithm>
#include <utility>

namespace meshgrad::cpu {
namespace {

template <class T>
const T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

/// Tiles of a TileScratch without the hidden ones.
template <class S>
constexpr int64_t kFixedTiles = 3 + (std::is_same_v<S, Accumulator<S>> ? 0 : 1) +
                                (std::is_same_v<Operand<S>, Accumulator<S>> ? 0 : 2);

}  // namespace

int64_t gradient_slabs(int64_t rows) {
  // 640 rows feed a 128 x 128 accumulator long enough to hide its set-up; fewer rows are still worth eight
  // slabs for the threads' sake, and 128 slabs feed any machine.
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  return std::clamp<int64_t>((rows + 639) / 640, std::clamp<int64_t>(tiles, 1, 8), 128);
}

template <class S>
PackedWeight<S>::PackedWeight(const Tensor& weight, bool transposed, Runtime& runtime) {
  using To = Operand<S>;
  Tensor source = weight;
  if constexpr (!std::is_same_v<S, To>) {
    source = Tensor::empty(runtime, weight.shape(), dtype_of<To>(), Tag::workspace, "widened weights");
    runtime.stream().run([&] {
      tile_ops<S>().load(1, weight.elements(), weight.data<S>(), 0, source.template data<To>(), 0);
    });
  }
  constexpr int64_t kStep = kDepth<S>;
  const int64_t panel = tile_ops<S>().panel;
  const int64_t in = transposed ? weight.width() : weight.rows();
  const int64_t out = transposed ? weight.rows() : weight.width();
  const int64_t panels = (out + panel - 1) / panel;
  row_stride_ = panel * kStep;
  panel_stride_ = row_stride_ * ((in + kStep - 1) / kStep);
  data_ =
      Tensor::zeros(runtime, Shape{panels * panel_stride_}, dtype_of<To>(), Tag::workspace, "packed weights");
  const int64_t column_stride = transposed ? in : 1;
  const int64_t row_stride = transposed ? 1 : out;
  runtime.stream().run([&] {
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t first = p * panel;
      const int64_t columns = std::min(panel, out - first);
      for (int64_t k = 0; k < in; ++k) {
        const To* from = source.template data<To>() + first * column_stride + k * row_stride;
        To* to = data_.data<To>() + p * panel_stride_ + k / kStep * row_stride_ + k % kStep;
        for (int64_t c = 0; c < columns; ++c) to[c * kStep] = from[c * column_stride];
      }
    }
  });
}

template <class S>
MlpTile<S>::MlpTile(const std::vector<MlpInput>& inputs, const MlpWeights& weights, const MlpSaved& saved,
                    Direction direction, Runtime& runtime)
    : inputs_(inputs), weights_(weights), saved_(saved) {
  const bool backward = direction == Direction::backward;
  widths_.push_back(inputs.front().weight.width());
  for (const Tensor& weight : weights.weights) widths_.push_back(weight.width());
  int64_t widest = *std::max_element(widths_.begin(), widths_.end());
  for (const MlpInput& input : inputs) widest = std::max(widest, input.weight.rows());
  tile_row_ = padded(widest);

  saved_complete_ = saved_is_complete(weights, saved);
  for (const MlpInput& input : inputs) {
    if (!backward || !saved_complete_) first_.emplace_back(input.weight, false, runtime);
    if (backward) first_transposed_.emplace_back(input.weight, true, runtime);
  }
  for (const Tensor& weight : weights.weights) {
    if (!backward || !saved_complete_) later_.emplace_back(weight, false, runtime);
    if (backward) later_transposed_.emplace_back(weight, true, runtime);
  }
  scratch_tiles_ = kFixedTiles<S> + (backward ? static_cast<int64_t>(widths_.size()) : 0);
  scratch_ =
      Tensor::empty(runtime, Shape{runtime.stream().threads() * scratch_tiles_ * kTileRows * tile_row_},
                    dtype_of<T>(), Tag::workspace, "tiles");
}

template <class S>
TileScratch<S> MlpTile<S>::scratch() const {
  T* next = scratch_.data<T>() + ThreadPool::worker() * scratch_tiles_ * kTileRows * tile_row_;
  const auto take = [&] { return std::exchange(next, next + kTileRows * tile_row_); };
  TileScratch<S> s{take(), take(), take(), nullptr, nullptr, nullptr, {}};
  if constexpr (!std::is_same_v<S, T>) s.x = take();
  if constexpr (!std::is_same_v<Operand<S>, T>) {
    s.left = reinterpret_cast<Operand<S>*>(take());
    s.right = reinterpret_cast<Operand<S>*>(take());
  }
  for (int64_t i = 0; i < scratch_tiles_ - kFixedTiles<S>; ++i) s.hidden[static_cast<size_t>(i)] = take();
  return s;
}

template <class S>
Factor<S> MlpTile<S>::by_rows(int64_t rows, int64_t width, const T* tile, TileScratch<S>& s) const {
  if constexpr (kDepth<S> == 1) {
    return {tile, tile_row_, 1, width};
  } else {
    ops_.store(rows, width, tile, tile_row_, s.left, tile_row_);
    for (int64_t i = 0; width % 2 != 0 && i < rows; ++i) s.left[i * tile_row_ + width] = S();
    return {s.left, tile_row_, 2, (width + 1) / 2};
  }
}

template <class S>
Factor<S> MlpTile<S>::input_by_rows(size_t input, int64_t first_row, int64_t rows, TileScratch<S>& s) const {
  const int64_t in = inputs_[input].weight.rows();
  const S* x = inputs_[input].x.template data<S>() + first_row * in;
  if constexpr (std::is_same_v<S, Operand<S>>) {
    if (in % kDepth<S> == 0) return {x, in, kDepth<S>, in / kDepth<S>};
  }
  if constexpr (!std::is_same_v<S, T>) ops_.load(rows, in, x, in, s.x, tile_row_);
  return by_rows(rows, in, s.x, s);
}

template <class S>
Factor<S> MlpTile<S>::by_columns(int64_t rows, int64_t width, const T* tile, TileScratch<S>& s) const {
  if constexpr (kDepth<S> == 1) {
    return {tile, 1, tile_row_, rows};
  } else {
    ops_.pair_rows(rows, width, tile, tile_row_, s.left, 2 * tile_row_);
    return {s.left, 2, 2 * tile_row_, (rows + 1) / 2};
  }
}

template <class S>
Factor<S> MlpTile<S>::input_by_columns(size_t input, int64_t first_row, int64_t rows,
                                       TileScratch<S>& s) const {
  const int64_t in = inputs_[input].weight.rows();
  const S* x = inputs_[input].x.template data<S>() + first_row * in;
  if constexpr (kDepth<S> == 2) {
    ops_.pair_stored_rows(rows, in, x, in, s.left, 2 * tile_row_);
    return {s.left, 2, 2 * tile_row_, (rows + 1) / 2};
  } else if constexpr (std::is_same_v<S, T>) {
    return {x, 1, in, rows};
  } else {
    ops_.load(rows, in, x, in, s.x, tile_row_);
    return by_columns(rows, in, s.x, s);
  }
}

template <class S>
PanelMatrix<Operand<S>> MlpTile<S>::as_panels(int64_t rows, int64_t width, const T* tile,
                                              TileScratch<S>& s) const {
  if constexpr (kDepth<S> == 1) {
    return {tile, ops_.panel, tile_row_};
  } else {
    ops_.pair_rows(rows, width, tile, tile_row_, s.right, 2 * tile_row_);
    return {s.right, 2 * ops_.panel, 2 * tile_row_};
  }
}

template <class S>
void MlpTile<S>::start(int64_t rows, T* z) const {
  ops_.broadcast(rows, first_width(), data_or_null<T>(weights_.first_bias), z, tile_row_);
}

template <class S>
void MlpTile<S>::add_inputs(int64_t first_row, int64_t rows, TileScratch<S>& s, T* z) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    product(rows, first_width(), input_by_rows(i, first_row, rows, s), first_[i].panels(), z, tile_row_,
            true);
  }
}

template <class S>
Accumulator<S>* MlpTile<S>::finish_forward(int64_t first_row, int64_t rows, TileScratch<S>& s) const {
  T* z = s.a;
  T* other = s.b;
  const auto stored = [&](const Tensor& saved, int64_t width) {
    return saved.defined() ? saved.template data<S>() + first_row * width : nullptr;
  };
  for (size_t layer = 0; layer < later_.size(); ++layer) {
    const int64_t width = widths_[layer];
    S* saved = layer < saved_.pre_activations.size() ? stored(saved_.pre_activations[layer], width) : nullptr;
    ops_.settle(rows, width, z, tile_row_, saved, width);
    ops_.activate(weights_.activation, rows, width, z, tile_row_, z, tile_row_);
    ops_.broadcast(rows, widths_[layer + 1], data_or_null<T>(weights_.biases[layer]), other, tile_row_);
    product(rows, widths_[layer + 1], by_rows(rows, width, z, s), later_[layer].panels(), other, tile_row_,
            true);
    std::swap(z, other);
  }
  if (weights_.norm == Norm::none) return z;
  ops_.settle(rows, out_width(), z, tile_row_, stored(saved_.pre_norm, out_width()), out_width());
  ops_.norm(weights_.norm, rows, out_width(), z, tile_row_, weights_.gain.template data<T>(),
            data_or_null<T>(weights_.norm_bias), static_cast<T>(weights_.epsilon), z, tile_row_);
  return z;
}

template <class S>
void MlpTile<S>::load_saved(int64_t first_row, int64_t rows, TileScratch<S>& s) const {
  for (size_t layer = 0; layer < widths_.size(); ++layer) {
    const bool last = layer + 1 == widths_.size();
    if (last && weights_.norm == Norm::none) break;
    const Tensor& from = last ? saved_.pre_norm : saved_.pre_activations[layer];
    ops_.load(rows, widths_[layer], from.template data<S>() + first_row * widths_[layer], widths_[layer],
              s.hidden[layer], tile_row_);
  }
}

template <class S>
void MlpTile<S>::recompute(int64_t first_row, int64_t rows, TileScratch<S>& s) const {
  add_inputs(first_row, rows, s, s.hidden[0]);
  ops_.settle(rows, first_width(), s.hidden[0], tile_row_, nullptr, 0);
  for (size_t layer = 0; layer < later_.size(); ++layer) {
    if (layer + 1 == later_.size() && weights_.norm == Norm::none) break;
    T* next = s.hidden[layer + 1];
    ops_.activate(weights_.activation, rows, widths_[layer], s.hidden[layer], tile_row_, s.b, tile_row_);
    ops_.broadcast(rows, widths_[layer + 1], data_or_null<T>(weights_.biases[layer]), next, tile_row_);
    product(rows, widths_[layer + 1], by_rows(rows, widths_[layer], s.b, s), later_[layer].panels(), next,
            tile_row_, true);
    ops_.settle(rows, widths_[layer + 1], next, tile_row_, nullptr, 0);
  }
}

template <class S>
Accumulator<S>* MlpTile<S>::backward(int64_t first_row, int64_t rows, TileScratch<S>& s, T* gradients) const {
  T* d_z = s.a;
  T* other = s.c;
  if (weights_.norm != Norm::none) {
    ops_.norm_backward(weights_.norm, rows, out_width(), s.hidden[widths_.size() - 1], tile_row_,
                       weights_.gain.template data<T>(), static_cast<T>(weights_.epsilon), d_z, tile_row_,
                       d_z, tile_row_, gradients + layout_.gain,
                       layout_.norm_bias >= 0 ? gradients + layout_.norm_bias : nullptr);
  }
  for (size_t layer = later_transposed_.size(); layer-- > 0;) {
    const int64_t in = widths_[layer];
    const int64_t out = widths_[layer + 1];
    ops_.activate(weights_.activation, rows, in, s.hidden[layer], tile_row_, s.b, tile_row_);
    product(in, out, by_columns(rows, in, s.b, s), as_panels(rows, out, d_z, s),
            gradients + layout_.weights[layer], padded(out), true);
    ops_.column_sums(rows, out, d_z, tile_row_, gradients + layout_.biases[layer]);
    product(rows, in, by_rows(rows, out, d_z, s), later_transposed_[layer].panels(), other, tile_row_, false);
    ops_.activate_backward(weights_.activation, rows, in, s.hidden[layer], tile_row_, other, tile_row_);
    std::swap(d_z, other);
  }
  ops_.column_sums(rows, first_width(), d_z, tile_row_, gradients + layout_.first_bias);
  const PanelMatrix<Operand<S>> d_panels = as_panels(rows, first_width(), d_z, s);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (layout_.first_weights[i] < 0) continue;
    product(inputs_[i].weight.rows(), first_width(), input_by_columns(i, first_row, rows, s), d_panels,
            gradients + layout_.first_weights[i], padded(first_width()), true);
  }
  return d_z;
}

template <class S>
void MlpTile<S>::input_gradient(size_t input, int64_t rows, const T* d_z1, TileScratch<S>& s) const {
  product(rows, inputs_[input].weight.rows(), by_rows(rows, first_width(), d_z1, s),
          first_transposed_[input].panels(), s.b, tile_row_, false);
}

template <class S>
void MlpTile<S>::plan_gradients(const std::vector<bool>& wanted) {
  int64_t size = 0;
  const auto take = [&size](int64_t elements) { return std::exchange(size, size + elements); };
  layout_.first_bias = take(padded(first_width()));
  for (size_t i = 0; i < inputs_.size(); ++i) {
    layout_.first_weights.push_back(wanted[i] ? take(inputs_[i].weight.rows() * padded(first_width())) : -1);
  }
  for (size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
    layout_.weights.push_back(take(widths_[layer] * padded(widths_[layer + 1])));
    layout_.biases.push_back(take(padded(widths_[layer + 1])));
  }
  if (weights_.norm != Norm::none) layout_.gain = take(padded(out_width()));
  if (weights_.norm == Norm::layer) layout_.norm_bias = take(padded(out_width()));
  layout_.size = size;
}

template <class S>
void MlpTile<S>::reduce(const T* gradients, int64_t slabs, const std::vector<Tensor>& d_first_weights,
                        const MlpWeightGradients& d_weights, const Stream& stream) const {
  struct Part {
    T* to;
    int64_t from;  // offset in a slab
    int64_t width;
  };
  std::vector<Part> parts;  // rows of the destinations
  const auto add_part = [&parts](const Tensor& to, int64_t from, int64_t rows, int64_t width) {
    if (!to.defined() || from < 0) return;
    for (int64_t r = 0; r < rows; ++r)
      parts.push_back({to.template data<T>() + r * width, from + r * padded(width), width});
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
  const auto count = static_cast<int64_t>(parts.size());
  stream.parallel_for((count + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    for (int64_t p = task * kRowsPerTask; p < std::min(count, (task + 1) * kRowsPerTask); ++p) {
      const Part& part = parts[static_cast<size_t>(p)];
      for (int64_t slab = 0; slab < slabs; ++slab) {
        tile_ops<T>().add(1, part.width, gradients + slab * layout_.size + part.from, 0, part.to, 0);
      }
    }
  });
}

template class MlpTile<float>;
template class MlpTile<double>;
template class MlpTile<half>;
template class MlpTile<bfloat16>;

}  // namespace meshgrad::cpu
