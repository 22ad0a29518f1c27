// SPDX-License-Identifier: Apache-2.0
#include "support.h"

#include <meshgrad/engine/random.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

namespace meshgrad::test {

const std::vector<Backend>& backends() {
  static const std::vector<Backend> list = {{"cpu", &cpu::linear_kernels, &cpu::mlp_kernels,
                                             &cpu::message_passing_kernels, &cpu::segment_sum_kernels,
                                             &cpu::elementwise_kernels, &cpu::reduction_kernels,
                                             &cpu::optimizer_kernels}};
  return list;
}

std::vector<int64_t> awkward_sizes() { return {0, 1, 31, 33, 127, 129, 211}; }

std::vector<int64_t> awkward_sizes_and(bool narrow, int64_t many) {
  std::vector<int64_t> sizes = awkward_sizes();
  if (narrow) sizes.push_back(many);
  return sizes;
}

std::vector<DType> storage_types() { return {DType::f32, DType::f64}; }

double tolerance(DType dtype, int64_t terms_summed, double magnitude) {
  const double epsilon = dtype == DType::f64 ? std::numeric_limits<double>::epsilon()
                                             : static_cast<double>(std::numeric_limits<float>::epsilon());
  return 8.0 * epsilon * std::sqrt(static_cast<double>(std::max<int64_t>(terms_summed, 1))) * magnitude;
}

double magnitude(const Matrix& matrix) {
  double largest = 0.0;
  for (const double value : matrix.v) largest = std::max(largest, std::abs(value));
  return largest;
}

Runtime make_runtime(int threads, Device device) { return Runtime({.device = device, .threads = threads}); }

Matrix RandomMatrices::normal(int64_t rows, int64_t cols, double scale) {
  Matrix result(rows, cols);
  ++draws_;
  for (size_t i = 0; i < result.v.size(); ++i) result.v[i] = scale * meshgrad::normal(seed_, draws_, i);
  return result;
}

Matrix RandomMatrices::grid(int64_t rows, int64_t cols, double step, double reach) {
  Matrix result(rows, cols);
  ++draws_;
  const auto steps = static_cast<int64_t>(reach / step);
  for (size_t i = 0; i < result.v.size(); ++i) {
    const auto choice =
        static_cast<int64_t>(uniform_below(seed_, draws_, i, static_cast<uint64_t>(2 * steps + 1)));
    result.v[i] = step * static_cast<double>(choice - steps);
  }
  return result;
}

std::vector<uint8_t> RandomMatrices::mask(int64_t rows, double share) {
  std::vector<uint8_t> result(static_cast<size_t>(rows));
  ++draws_;
  for (size_t i = 0; i < result.size(); ++i) result[i] = uniform(seed_, draws_, i) < share ? 1 : 0;
  return result;
}

std::vector<int32_t> RandomMatrices::indices(int64_t count, int64_t below) {
  std::vector<int32_t> result(static_cast<size_t>(count));
  ++draws_;
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = static_cast<int32_t>(uniform_below(seed_, draws_, i, static_cast<uint64_t>(below)));
  }
  return result;
}

Matrix stored_as(DType dtype, const Matrix& matrix) {
  Matrix result = matrix;
  if (dtype == DType::f32) {
    for (double& value : result.v) value = static_cast<double>(static_cast<float>(value));
  }
  return result;
}

Tensor exact_tensor(const Shape& shape, DType dtype) {
  constexpr std::align_val_t kAlignment{64};
  void* const data = ::operator new(static_cast<size_t>(shape.elements() * size_of(dtype)), kAlignment);
  return Tensor::borrow(data, shape, dtype, [data] { ::operator delete(data, kAlignment); });
}

Tensor to_tensor(Runtime&, const Matrix& matrix, DType dtype) {
  const Tensor tensor = exact_tensor(Shape{matrix.rows, matrix.cols}, dtype);
  dispatch_storage(dtype, [&]<class T>() {
    std::transform(matrix.v.begin(), matrix.v.end(), tensor.data<T>(),
                   [](double x) { return static_cast<T>(x); });
  });
  return tensor;
}

Tensor to_vector(Runtime& runtime, const Matrix& row, DType dtype) {
  return to_tensor(runtime, row, dtype).reshaped(Shape{row.rows * row.cols});
}

Tensor to_vector_if_given(Runtime& runtime, const Matrix& row, DType dtype) {
  return row.given() ? to_vector(runtime, row, dtype) : Tensor();
}

Matrix to_matrix(const Tensor& tensor) {
  const bool vector = tensor.shape().rank() < 2;
  Matrix result(vector ? 1 : tensor.rows(), vector ? tensor.elements() : tensor.width());
  const auto read = [&]<class T>(const T* data) {
    for (size_t i = 0; i < result.v.size(); ++i) result.v[i] = static_cast<double>(data[i]);
  };
  switch (tensor.dtype()) {
    case DType::f32:
      read(tensor.data<float>());
      break;
    case DType::f64:
      read(tensor.data<double>());
      break;
    case DType::i32:
      read(tensor.data<int32_t>());
      break;
    case DType::u8:
      read(tensor.data<uint8_t>());
      break;
    default:
      throw internal_error("to_matrix reads f32, f64, i32 and u8");
  }
  return result;
}

Tensor unwritten(Runtime&, const Shape& shape, DType dtype) {
  const Tensor tensor = exact_tensor(shape, dtype);
  dispatch_storage(dtype, [&]<class T>() {
    std::fill_n(tensor.data<T>(), tensor.elements(), std::numeric_limits<T>::quiet_NaN());
  });
  return tensor;
}

bool equal_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || !(a.shape() == b.shape())) return false;
  return a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

std::string difference(const Tensor& actual, const Matrix& expected, int64_t terms, double at_least) {
  const Matrix values = to_matrix(actual);
  if (values.v.size() != expected.v.size()) {
    return fmt::format("{} elements instead of {}", values.v.size(), expected.v.size());
  }
  const double allowed = tolerance(actual.dtype(), terms, std::max(at_least, magnitude(expected)));
  for (size_t i = 0; i < values.v.size(); ++i) {
    const double error = std::abs(values.v[i] - expected.v[i]);
    if (error <= allowed) continue;  // written so that a NaN does not pass
    const auto width = static_cast<size_t>(std::max<int64_t>(expected.cols, 1));
    return fmt::format("{}{} at [{}, {}]: {:.9g} instead of {:.9g}, off by {:.3g} where {:.3g} is allowed",
                       name_of(actual.dtype()), actual.shape().text(), i / width, i % width, values.v[i],
                       expected.v[i], error, allowed);
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

reference::Edges random_edges(RandomMatrices& random, int64_t nodes, int64_t edges) {
  reference::Edges result{nodes, nodes, {}, {}};
  if (nodes == 0) return result;
  const int64_t used = nodes >= 4 ? nodes - 1 : nodes;
  result.senders = random.indices(edges, used);
  result.receivers = random.indices(edges, used);
  const auto hub = static_cast<int32_t>(used / 2);
  for (size_t e = 0; e < result.senders.size(); ++e) {
    if (e % 8 == 0) result.receivers[e] = hub;
    if (e % 8 == 3) result.senders[e] = hub;
    if (e % 16 == 5) result.receivers[e] = result.senders[e];
  }
  std::sort(result.receivers.begin(), result.receivers.end());
  return result;
}

Graph to_graph(Runtime& runtime, const reference::Edges& edges) {
  Graph graph = build_graph(runtime, edges.nodes, edges.senders, edges.receivers);
  graph.owned_nodes = edges.owned_nodes;
  graph.receiver_offsets = graph.receiver_offsets.row_range(0, edges.owned_nodes + 1);
  return graph;
}

}  // namespace meshgrad::test
