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

}  // namespace

int64_t gradient_slabs(int64_t rows) {
  // 640 rows feed a 128 x 128 accumulator long enough to hide its set-up; fewer rows are still worth eight
  // slabs for the threads' sake, and 128 slabs feed any machine.
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  return std::clamp<int64_t>((rows + 639) / 640, std::clamp<int64_t>(tiles, 1, 8), 128);
}

template <class T>
PackedWeight<T>::PackedWeight(const Tensor& weight, bool transposed, Runtime& runtime) {
  const int64_t panel = tile_ops<T>().panel;
  const int64_t in = transposed ? weight.width() : weight.rows();
  const int64_t out = transposed ? weight.rows() : weight.width();
  const int64_t panels = (out + panel - 1) / panel;
  row_stride_ = panel;
  panel_stride_ = panel * in;
  data_ =
      Tensor::zeros(runtime, Shape{panels * panel_stride_}, dtype_of<T>(), Tag::workspace, "packed weights");
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t first = p * panel;
    const int64_t columns = std::min(panel, out - first);
    const T* from = weight.data<T>() + (transposed ? first * in : first);
    T* to = data_.data<T>() + p * panel_stride_;
    for (int64_t k = 0; k < in; ++k, to += panel) {
      if (transposed) {
        for (int64_t c = 0; c < columns; ++c) to[c] = from[c * in + k];
      } else {
        std::copy_n(from + k * out, columns, to);
      }
    }
  }
}

template <class T>
MlpTile<T>::MlpTile(const std::vector<MlpInput>& inputs, const MlpWeights& weights, const MlpSaved& saved,
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
  scratch_tiles_ = 3 + (backward ? static_cast<int64_t>(widths_.size()) : 0);
  scratch_ =
      Tensor::empty(runtime, Shape{runtime.stream().threads() * scratch_tiles_ * kTileRows * tile_row_},
                    dtype_of<T>(), Tag::workspace, "tiles");
}

template <class T>
TileScratch<T> MlpTile<T>::scratch() const {
  const int64_t tile = kTileRows * tile_row_;
  T* base = scratch_.data<T>() + ThreadPool::worker() * scratch_tiles_ * tile;
  TileScratch<T> s{base, base + tile, base + 2 * tile, {}};
  for (int64_t i = 3; i < scratch_tiles_; ++i) s.hidden[static_cast<size_t>(i - 3)] = base + i * tile;
  return s;
}

template <class T>
void MlpTile<T>::start(int64_t rows, T* z) const {
  ops_.broadcast(rows, first_width(), data_or_null<T>(weights_.first_bias), z, tile_row_);
}

template <class T>
void MlpTile<T>::add_inputs(int64_t first_row, int64_t rows, T* z) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const int64_t in = inputs_[i].weight.rows();
    ops_.gemm(rows, first_width(), in, inputs_[i].x.template data<T>() + first_row * in, in, 1,
              first_[i].panels(), z, tile_row_, true);
  }
}

template <class T>
T* MlpTile<T>::finish_forward(int64_t first_row, int64_t rows, TileScratch<T>& s) const {
  T* z = s.a;
  T* other = s.b;
  for (size_t layer = 0; layer < later_.size(); ++layer) {
    const int64_t width = widths_[layer];
    if (layer < saved_.pre_activations.size() && saved_.pre_activations[layer].defined()) {
      ops_.copy(rows, width, z, tile_row_,
                saved_.pre_activations[layer].template data<T>() + first_row * width, width);
    }
    ops_.activate(weights_.activation, rows, width, z, tile_row_, z, tile_row_);
    ops_.broadcast(rows, widths_[layer + 1], data_or_null<T>(weights_.biases[layer]), other, tile_row_);
    ops_.gemm(rows, widths_[layer + 1], width, z, tile_row_, 1, later_[layer].panels(), other, tile_row_,
              true);
    std::swap(z, other);
  }
  if (weights_.norm == Norm::none) return z;
  if (saved_.pre_norm.defined()) {
    ops_.copy(rows, out_width(), z, tile_row_, saved_.pre_norm.template data<T>() + first_row * out_width(),
              out_width());
  }
  ops_.norm(weights_.norm, rows, out_width(), z, tile_row_, weights_.gain.template data<T>(),
            data_or_null<T>(weights_.norm_bias), static_cast<T>(weights_.epsilon), z, tile_row_);
  return z;
}

template <class T>
void MlpTile<T>::load_saved(int64_t first_row, int64_t rows, TileScratch<T>& s) const {
  for (size_t layer = 0; layer < widths_.size(); ++layer) {
    const bool last = layer + 1 == widths_.size();
    if (last && weights_.norm == Norm::none) break;
    const Tensor& from = last ? saved_.pre_norm : saved_.pre_activations[layer];
    ops_.copy(rows, widths_[layer], from.template data<T>() + first_row * widths_[layer], widths_[layer],
              s.hidden[layer], tile_row_);
  }
}

template <class T>
void MlpTile<T>::recompute(int64_t first_row, int64_t rows, TileScratch<T>& s) const {
  add_inputs(first_row, rows, s.hidden[0]);
  for (size_t layer = 0; layer < later_.size(); ++layer) {
    if (layer + 1 == later_.size() && weights_.norm == Norm::none) break;
    ops_.activate(weights_.activation, rows, widths_[layer], s.hidden[layer], tile_row_, s.b, tile_row_);
    ops_.broadcast(rows, widths_[layer + 1], data_or_null<T>(weights_.biases[layer]), s.hidden[layer + 1],
                   tile_row_);
    ops_.gemm(rows, widths_[layer + 1], widths_[layer], s.b, tile_row_, 1, later_[layer].panels(),
              s.hidden[layer + 1], tile_row_, true);
  }
}

template <class T>
T* MlpTile<T>::backward(int64_t first_row, int64_t rows, TileScratch<T>& s, T* gradients) const {
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
    ops_.gemm(in, out, rows, s.b, 1, tile_row_, {d_z, ops_.panel, tile_row_},
              gradients + layout_.weights[layer], padded(out), true);
    ops_.column_sums(rows, out, d_z, tile_row_, gradients + layout_.biases[layer]);
    ops_.gemm(rows, in, out, d_z, tile_row_, 1, later_transposed_[layer].panels(), other, tile_row_, false);
    ops_.activate_backward(weights_.activation, rows, in, s.hidden[layer], tile_row_, other, tile_row_);
    std::swap(d_z, other);
  }
  ops_.column_sums(rows, first_width(), d_z, tile_row_, gradients + layout_.first_bias);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (layout_.first_weights[i] < 0) continue;
    const int64_t in = inputs_[i].weight.rows();
    ops_.gemm(in, first_width(), rows, inputs_[i].x.template data<T>() + first_row * in, 1, in,
              {d_z, ops_.panel, tile_row_}, gradients + layout_.first_weights[i], padded(first_width()),
              true);
  }
  return d_z;
}

template <class T>
void MlpTile<T>::input_gradient(size_t input, int64_t rows, const T* d_z1, T* out) const {
  ops_.gemm(rows, inputs_[input].weight.rows(), first_width(), d_z1, tile_row_, 1,
            first_transposed_[input].panels(), out, tile_row_, false);
}

template <class T>
void MlpTile<T>::plan_gradients(const std::vector<bool>& wanted) {
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

template <class T>
void MlpTile<T>::reduce(const T* gradients, int64_t slabs, const std::vector<Tensor>& d_first_weights,
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
        ops_.add(1, part.width, gradients + slab * layout_.size + part.from, 0, part.to, 0);
      }
    }
  });
}

template class PackedWeight<float>;
template class PackedWeight<double>;
template class MlpTile<float>;
template class MlpTile<double>;

}  // namespace meshgrad::cpu
