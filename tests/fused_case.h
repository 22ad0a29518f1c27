// SPDX-License-Identifier: Apache-2.0
// An MLP with the widths of the fused kernels, on the device and for the reference, and gradients to compare.
// For the tests of fused kernels of nodes and edges.
#pragma once
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/runtime.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bounded.h"

namespace meshgrad::test {

/// Whether the device runs edge updates of width 256 fused: backward takes 174,592 bytes of shared memory.
inline bool fuses_wide_edges() { return gpu::shared_bytes(0) >= 174'592; }

/// A device, with transfers from and to it. Rows of a tensor past `count` are NaN.
struct Gpu {
  Runtime runtime = make_runtime(1, {DeviceKind::cuda, 0});
  const Stream& stream() { return runtime.stream(); }

  template <class T>
  Tensor upload(const Matrix& m, int64_t capacity) {
    std::vector<T> values(static_cast<size_t>(std::max(capacity, m.rows) * m.cols),
                          T(std::numeric_limits<float>::quiet_NaN()));
    for (size_t i = 0; i < m.v.size(); ++i) values[i] = T(static_cast<float>(m.v[i]));
    return Tensor::from<T>(runtime, values, {std::max(capacity, m.rows), m.cols}, Tag::data);
  }
  Tensor tensor(const Matrix& m, DType dtype, int64_t capacity = 0) {
    return dispatch_gpu_storage(dtype, [&]<class T>() { return upload<T>(m, capacity); });
  }
  Tensor vector(const Matrix& row) {
    return row.given() ? tensor(row, DType::f32).reshaped(Shape{row.cols}) : Tensor();
  }
  Tensor unwritten(int64_t rows, int64_t cols, DType dtype) {
    return tensor(Matrix(rows, cols, std::numeric_limits<double>::quiet_NaN()), dtype);
  }
  /// The first `rows`; checks that the rows after them are untouched.
  Matrix download(const Tensor& tensor, int64_t rows) {
    const Tensor host = to_host(tensor, stream());
    const int64_t width = tensor.shape().rank() < 2 ? tensor.elements() : tensor.width();
    Matrix all(tensor.elements() / std::max<int64_t>(width, 1), width);
    dispatch_gpu_storage(tensor.dtype(), [&]<class T>() {
      for (size_t i = 0; i < all.v.size(); ++i) {
        all.v[i] = static_cast<double>(static_cast<float>(host.data<T>()[i]));
      }
    });
    const auto first_behind = static_cast<size_t>(rows * width);
    bool untouched = true;
    for (size_t i = first_behind; i < all.v.size(); ++i) untouched = untouched && std::isnan(all.v[i]);
    CHECK(untouched);
    all.v.resize(first_behind);
    all.rows = rows;
    return all;
  }
  Matrix download(const Tensor& tensor) {
    return download(tensor, tensor.shape().rank() < 2 ? 1 : tensor.rows());
  }
};

/// An MLP of a width that the fused kernels support; it follows their rounding step by step.
struct FusedMlp {
  std::vector<int64_t> inputs;
  int64_t width, layers, out;
  Norm norm;
  DType dtype;
  reference::Mlp ref;
  MlpWeights weights;

  FusedMlp(Gpu& gpu, RandomMatrices& random, std::vector<int64_t> input_widths, int64_t hidden, int64_t count,
           int64_t last, Norm kind, DType type)
      : inputs(std::move(input_widths)), width(hidden), layers(count), out(last), norm(kind), dtype(type) {
    for (const int64_t in : inputs) ref.first_weights.push_back(random.grid(in, width, 0.25, 0.5));
    ref.first_bias = random.grid(1, width, 0.125, 1.0);
    for (int64_t layer = 1; layer < layers; ++layer) {
      const int64_t to = layer == layers - 1 ? out : width;
      ref.weights.push_back(random.grid(width, to, 0.25, 0.5));
      ref.biases.push_back(random.grid(1, to, 0.125, 1.0));
      weights.weights.push_back(gpu.tensor(ref.weights.back(), dtype));
      weights.biases.push_back(gpu.vector(ref.biases.back()));
    }
    ref.norm = weights.norm = norm;
    ref.epsilon = weights.epsilon = 25.0;  // large enough to matter beside sums of this size
    if (norm != Norm::none) ref.gain = rounded(DType::bf16, random.normal(1, out));
    if (norm == Norm::layer) ref.norm_bias = rounded(DType::bf16, random.normal(1, out));
    weights.first_bias = gpu.vector(ref.first_bias);
    weights.gain = gpu.vector(ref.gain);
    weights.norm_bias = gpu.vector(ref.norm_bias);
  }

  /// z of all layers; each hidden one as it is before relu and rounding.
  std::vector<Matrix> sums(Matrix z) const {
    std::vector<Matrix> all{std::move(z)};
    for (size_t layer = 0; layer < ref.weights.size(); ++layer)
      all.push_back(reference::linear(hidden(all.back()), ref.weights[layer], ref.biases[layer]));
    return all;
  }
  Matrix hidden(const Matrix& z) const { return rounded(dtype, reference::activation(Activation::relu, z)); }
  Bounded finished(const Matrix& z) const {
    if (norm == Norm::none) return Bounded(z);
    Matrix y = reference::norm(norm, z, ref.gain, ref.norm_bias, ref.epsilon);
    const double largest = std::max(magnitude(y), 1.0) * std::max(magnitude(ref.gain), 1.0);
    return from_f32(std::move(y), width, largest);
  }
};

/// Gradients with initial values that are not zero, on the device and on the host.
struct Started {
  std::vector<Tensor> tensors;
  std::vector<Matrix> before;
  Tensor add(Gpu& gpu, RandomMatrices& random, int64_t rows, int64_t cols, bool vector = false) {
    before.push_back(random.grid(rows, cols, 0.125, 1.0));
    tensors.push_back(vector ? gpu.vector(before.back()) : gpu.tensor(before.back(), DType::f32));
    return tensors.back();
  }
  MlpWeightGradients of(Gpu& gpu, RandomMatrices& random, const FusedMlp& mlp) {
    MlpWeightGradients gradients;
    gradients.first_bias = add(gpu, random, 1, mlp.width, true);
    for (const Matrix& weight : mlp.ref.weights) {
      gradients.weights.push_back(add(gpu, random, weight.rows, weight.cols));
      gradients.biases.push_back(add(gpu, random, 1, weight.cols, true));
    }
    if (mlp.norm != Norm::none) gradients.gain = add(gpu, random, 1, mlp.out, true);
    if (mlp.norm == Norm::layer) gradients.norm_bias = add(gpu, random, 1, mlp.out, true);
    return gradients;
  }
  /// Against the reference's, in the order in which they were added.
  void check(Gpu& gpu, const std::vector<Bounded>& ref) {
    REQUIRE(ref.size() == tensors.size());
    for (size_t i = 0; i < ref.size(); ++i) {
      CAPTURE(i);
      CHECK(outside(gpu.download(tensors[i]), ref[i], before[i]) == "");
    }
  }
};

/// d_z_1 from d_y, unrounded, and the gradients of everything after it in the order of Started::of.
struct FusedGradients {
  Bounded d_first;
  std::vector<Bounded> of_weights;
  FusedGradients(const FusedMlp& mlp, const std::vector<Matrix>& z, const Matrix& d_y) {
    const auto last = reference::norm_backward(mlp.norm, z.back(), mlp.ref.gain, d_y, mlp.ref.epsilon);
    const double flowing = magnitude(d_y) * std::max(magnitude(mlp.ref.gain), 1.0);
    Bounded d_z(last.d_x);
    if (mlp.norm != Norm::none) {
      // A difference of terms no larger than d_y gain times a row's scale, which is 1 / sqrt(epsilon) at
      // most.
      d_z = from_f32(last.d_x, mlp.width, flowing / std::sqrt(mlp.ref.epsilon));
    }
    std::vector<Bounded> weights_and_biases;
    for (size_t layer = mlp.ref.weights.size(); layer-- > 0;) {
      weights_and_biases.push_back(column_sums(d_z));
      const Bounded d_stored = stored(mlp.dtype, d_z);
      weights_and_biases.push_back(weight_gradient(mlp.hidden(z[layer]), d_stored));
      d_z = masked(product(d_stored, transposed(mlp.ref.weights[layer])), z[layer]);
    }
    of_weights.push_back(column_sums(d_z));
    of_weights.insert(of_weights.end(), weights_and_biases.rbegin(), weights_and_biases.rend());
    const auto rows = static_cast<double>(d_y.rows);
    const auto add = [&](const Matrix& gradient) {
      of_weights.push_back(from_f32(gradient, d_y.rows * mlp.width, std::max(rows, 1.0) * flowing));
    };
    if (mlp.norm != Norm::none) add(last.d_gain);
    if (mlp.norm == Norm::layer) add(last.d_bias);
    d_first = d_z;
  }
};

}  // namespace meshgrad::test
