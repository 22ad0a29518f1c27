// SPDX-License-Identifier: Apache-2.0
#include "support.h"

#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/random.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <type_traits>

namespace meshgrad::test {

const std::vector<Backend>& backends() {
  static const std::vector<Backend> list = [] {
    std::vector<Backend> found = {
        {"cpu", Device{}, false, {DType::f32, DType::f16, DType::bf16, DType::f64}, &kernels::cpu_tables()}};
    const std::vector<CudaDevice> devices = cuda_devices();
    if (!devices.empty()) {
      const bool simulated = devices.front().name == "simulated";
      if (simulated) found.clear();  // the CPU is the other binary's
      found.push_back({"cuda",
                       {DeviceKind::cuda, 0},
                       simulated,
                       {DType::f32, DType::f16, DType::bf16},
                       &kernels::gpu_tables()});
    }
    return found;
  }();
  return list;
}

Runtime Backend::runtime(int threads) const { return make_runtime(threads, device); }

std::vector<int64_t> Backend::sizes() const {
  return slow ? std::vector<int64_t>{0, 1, 33, 129} : awkward_sizes();
}

std::vector<int64_t> Backend::sizes_and(bool narrow, int64_t rows) const {
  std::vector<int64_t> all = sizes();
  if (narrow) all.push_back(many(rows));
  return all;
}

std::vector<int> Backend::thread_counts() const {
  return device.kind == DeviceKind::cpu ? std::vector<int>{1, 1, 2, 3, 5} : std::vector<int>{1, 1};
}

std::vector<int64_t> awkward_sizes() { return {0, 1, 31, 33, 127, 129, 211}; }

std::vector<int64_t> awkward_sizes_and(bool narrow, int64_t many) {
  std::vector<int64_t> sizes = awkward_sizes();
  if (narrow) sizes.push_back(many);
  return sizes;
}

std::vector<DType> storage_types() { return {DType::f32, DType::f64}; }

namespace {

double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return std::numeric_limits<double>::epsilon();
    case DType::f16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-7;
    default:
      return static_cast<double>(std::numeric_limits<float>::epsilon());
  }
}

}  // namespace

double tolerance(DType dtype, int64_t terms_summed, double magnitude) {
  const double terms = std::sqrt(static_cast<double>(std::max<int64_t>(terms_summed, 1)));
  const double summed = 8.0 * terms * epsilon_of(accumulator_of(dtype));
  const double rounded = size_of(dtype) == 2 ? 8.0 * epsilon_of(dtype) : 0.0;
  return (summed + rounded) * magnitude;
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

namespace {

/// The streams that write device tensors, by the tensors' memory.
std::map<const void*, const Stream*>& writers() {
  static std::map<const void*, const Stream*> streams;
  return streams;
}

template <class T>
Tensor uploaded(Runtime& runtime, const std::vector<T>& values, const Shape& shape) {
  Tensor tensor = exact_tensor(runtime, shape, dtype_of<T>());
  copy(Tensor::borrow(const_cast<T*>(values.data()), shape, dtype_of<T>()), tensor, runtime.stream());
  return tensor;
}

}  // namespace

Matrix stored_as(DType dtype, const Matrix& matrix) {
  Matrix result = matrix;
  dispatch_cpu_storage(dtype, [&]<class T>() {
    for (double& value : result.v) value = read_stored(stored<T>(value));
  });
  return result;
}

Tensor exact_tensor(Runtime& runtime, const Shape& shape, DType dtype) {
  const auto bytes = static_cast<size_t>(shape.elements() * size_of(dtype));
  if (runtime.device().kind == DeviceKind::cpu) {
    constexpr std::align_val_t kAlignment{64};
    void* const data = ::operator new(bytes, kAlignment);
    return Tensor::borrow(data, shape, dtype, [data] { ::operator delete(data, kAlignment); });
  }
  void* const data = gpu::allocate(runtime.device().index, std::max<int64_t>(1, static_cast<int64_t>(bytes)));
  // A stream lives as long as its allocator's storages; the tensor may outlive the runtime.
  const Tensor keeps_stream = Tensor::empty(runtime, {1}, DType::u8, Tag::data);
  const auto stream = std::make_shared<const Stream>(runtime.stream());
  writers()[data] = stream.get();
  const auto release = [data, stream, keeps_stream] {
    stream->synchronize();
    writers().erase(data);
    gpu::free(data);
  };
  return Tensor::borrow(data, shape, dtype, release, runtime.device());
}

Tensor to_tensor(Runtime& runtime, const Matrix& matrix, DType dtype) {
  Tensor tensor;
  dispatch_cpu_storage(dtype, [&]<class T>() {
    std::vector<T> values(matrix.v.size());
    std::transform(matrix.v.begin(), matrix.v.end(), values.begin(), stored<T>);
    tensor = uploaded(runtime, values, {matrix.rows, matrix.cols});
  });
  return tensor;
}

Tensor to_index(Runtime& runtime, const std::vector<int32_t>& values) {
  return uploaded(runtime, values, {static_cast<int64_t>(values.size())});
}

Tensor to_count(Runtime& runtime, int64_t count) {
  return uploaded(runtime, std::vector<int64_t>{count}, {1});
}

Tensor to_host(const Tensor& tensor) {
  if (tensor.device().kind == DeviceKind::cpu) return tensor;
  const auto writer = writers().find(tensor.storage()->data());
  check_internal(writer != writers().end(), "a tensor of tests/support, or to_host() with a stream");
  return meshgrad::to_host(tensor, *writer->second);
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
  const Tensor host = to_host(tensor);
  const auto fill = [&]<class T>() {
    std::transform(host.data<T>(), host.data<T>() + host.elements(), result.v.begin(), read_stored<T>);
  };
  if (tensor.dtype() == DType::i32) {
    fill.template operator()<int32_t>();
  } else if (tensor.dtype() == DType::u8) {
    fill.template operator()<uint8_t>();
  } else {
    dispatch_cpu_storage(tensor.dtype(), fill);
  }
  return result;
}

Tensor unwritten(Runtime& runtime, const Shape& shape, DType dtype) {
  Tensor tensor;
  dispatch_cpu_storage(dtype, [&]<class T>() {
    const auto nan = stored<T>(std::numeric_limits<double>::quiet_NaN());
    tensor = uploaded(runtime, std::vector<T>(static_cast<size_t>(shape.elements()), nan), shape);
  });
  return tensor;
}

bool equal_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || !(a.shape() == b.shape())) return false;
  return a.bytes() == 0 ||
         std::memcmp(to_host(a).raw(), to_host(b).raw(), static_cast<size_t>(a.bytes())) == 0;
}

std::string difference(const Tensor& actual, const Matrix& expected, int64_t terms, double at_least,
                       std::optional<DType> made_of) {
  const Matrix values = to_matrix(actual);
  if (values.v.size() != expected.v.size()) {
    return fmt::format("{} elements instead of {}", values.v.size(), expected.v.size());
  }
  const double allowed =
      tolerance(made_of.value_or(actual.dtype()), terms, std::max(at_least, magnitude(expected)));
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

std::vector<DType> Backend::gradient_types() const {
  std::vector<DType> types;
  for (const DType dtype : storage_types) {
    if (accumulator_of(dtype) == dtype) types.push_back(dtype);
  }
  return types;
}

Tensor mask_tensor(Runtime& runtime, const std::vector<uint8_t>& mask) {
  return Tensor::from<uint8_t>(runtime, mask, Shape{static_cast<int64_t>(mask.size())}, Tag::data, "mask");
}

std::vector<Device> devices() {
  std::vector<Device> found{Device{}};
  if (!cuda_devices().empty()) found.push_back({DeviceKind::cuda, 0});
  return found;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

size_t count_of(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return count;
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
  for (Tensor* const index : {&graph.senders, &graph.receivers, &graph.receiver_offsets,
                              &graph.sender_offsets, &graph.sender_order}) {
    const Tensor host = to_host(*index, runtime.stream());
    *index =
        uploaded(runtime, std::vector<int32_t>(host.data<int32_t>(), host.data<int32_t>() + host.elements()),
                 host.shape());
  }
  return graph;
}

}  // namespace meshgrad::test
