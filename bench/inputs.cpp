// SPDX-License-Identifier: Apache-2.0
#include "inputs.h"

#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/random.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "support.h"

namespace meshgrad::bench {
namespace {

void fill_bytes(const Tensor& tensor, int byte, const Stream& stream) {
  if (tensor.device().kind == DeviceKind::cpu) {
    std::memset(tensor.raw(), byte, static_cast<size_t>(tensor.bytes()));
  } else {
    gpu::fill(stream.device().index, tensor.raw(), byte, tensor.bytes(), stream.native());
  }
}

}  // namespace

void fill_rows(const Tensor& tensor, const Matrix& base, Runtime& runtime) {
  dispatch_cpu_storage(tensor.dtype(), [&]<class T>() {
    std::vector<T> values(base.v.size());
    std::transform(base.v.begin(), base.v.end(), values.begin(), test::stored<T>);
    const Tensor first = tensor.shape().rank() < 2 ? tensor : tensor.row_range(0, base.rows);
    copy(Tensor::borrow(values.data(), Shape{static_cast<int64_t>(values.size())}, tensor.dtype()), first,
         runtime.stream());
    runtime.stream().synchronize();
  });
  if (tensor.shape().rank() < 2) return;
  for (int64_t have = base.rows; have < tensor.rows(); have *= 2) {
    const int64_t more = std::min(have, tensor.rows() - have);
    copy(tensor.row_range(0, more), tensor.row_range(have, have + more), runtime.stream());
  }
}

std::vector<double> values_of(const Tensor& tensor, const Stream& stream) {
  const Tensor host = to_host(tensor, stream);
  std::vector<double> values(static_cast<size_t>(host.elements()));
  dispatch_cpu_storage(host.dtype(), [&]<class T>() {
    const T* const from = host.data<T>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = test::read_stored(from[i]);
  });
  return values;
}

namespace {

/// Node i receives from i +- 1, i +- side and i +- (side + 1), modulo the nodes or, in a square, within it.
reference::Edges mesh_edges(int64_t nodes, int64_t side, bool square) {
  reference::Edges edges{nodes, nodes, {}, {}};
  for (int64_t node = 0; node < nodes; ++node) {
    for (const auto& [down, right] : {std::pair{0, 1}, {0, -1}, {1, 0}, {-1, 0}, {1, 1}, {-1, -1}}) {
      const int64_t row = node / side + down, column = node % side + right;
      if (square && (row < 0 || row >= side || column < 0 || column >= side)) continue;
      const int64_t sender = node + down * side + right;
      edges.senders.push_back(static_cast<int32_t>((sender % nodes + nodes) % nodes));
      edges.receivers.push_back(static_cast<int32_t>(node));
    }
  }
  return edges;
}

}  // namespace

Mesh make_mesh(Runtime& runtime, const Scale& scale) {
  reference::Edges whole = mesh_edges(scale.nodes(), scale.side(), scale.square);
  Graph graph = build_graph(runtime, scale.nodes(), whole.senders, whole.receivers);
  return {std::move(graph), mesh_edges(scale.period, scale.side(), scale.square), std::move(whole)};
}

Case::Case(Runtime& runtime, const Scale& scale, DType storage, std::string_view name)
    : runtime_(runtime), scale_(scale), storage_(storage), seed_(hash_of(name)) {}

Input Case::make(const Shape& shape, int64_t base_rows, DType dtype, double step, double around,
                 double timed_scale) {
  Input input{Tensor::empty(runtime_, shape, dtype, Tag::data, "benchmark input"),
              Matrix(base_rows, shape.elements() / (shape.rank() < 2 ? 1 : shape.rows()))};
  ++draws_;
  for (size_t i = 0; i < input.base.v.size(); ++i) {
    input.base.v[i] = around + step * (static_cast<double>(uniform_below(seed_, draws_, i, 3)) - 1.0);
  }
  fill_rows(input.tensor, input.base, runtime_);
  inputs_.push_back({input.tensor, timed_scale, around, base_rows});
  return input;
}

Input Case::rows(int64_t base_rows, int64_t width) { return rows(base_rows, width, storage_); }
Input Case::rows(int64_t base_rows, int64_t width, DType dtype) {
  return make(Shape{scale_.copies * base_rows, width}, base_rows, dtype, 1.0, 0.0, 1.0);
}
Input Case::weight(int64_t in, int64_t out) {
  return make(Shape{in, out}, in, storage_, 0.125, 0.0, 1.0 / std::sqrt(static_cast<double>(in)));
}
Input Case::vector(int64_t width, double around) {
  return make(Shape{width}, 1, accumulator(), 0.125, around, 0.1);
}

Tensor Case::written(const Shape& shape, DType dtype) {
  written_.push_back(Tensor::empty(runtime_, shape, dtype, Tag::activations, "benchmark output"));
  return written_.back();
}
Tensor Case::accumulated(const Shape& shape) {
  accumulated_.push_back(Tensor::zeros(runtime_, shape, accumulator(), Tag::gradients, "benchmark sum"));
  return accumulated_.back();
}

void Case::expect(std::string what, const Tensor& actual, const Matrix& expected, int64_t terms,
                  double at_least) {
  expectations_.push_back({std::move(what), actual, expected, static_cast<double>(terms), at_least, 1.0});
}
void Case::expect_total(std::string what, const Tensor& actual, const Matrix& of_one_copy, int64_t terms,
                        double at_least) {
  const auto copies = static_cast<double>(scale_.copies);
  expectations_.push_back(
      {std::move(what), actual, of_one_copy, static_cast<double>(terms) * copies, at_least, copies});
}

std::string Case::difference(const Expectation& e) const {
  const std::vector<double> values = values_of(e.actual, runtime_.stream());
  const size_t period = e.expected.v.size();
  if (period == 0 || values.size() % period != 0) return e.what + ": of another size than the reference's";
  const double magnitude = std::max(e.at_least, test::magnitude(e.expected)) * e.times;
  const double allowed = test::tolerance(storage_, static_cast<int64_t>(e.terms), magnitude);
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = e.times * e.expected.v[i % period];
    if (std::abs(values[i] - expected) <= allowed) continue;  // a NaN does not pass
    const auto width = static_cast<size_t>(e.expected.cols);
    return fmt::format("{} [{}, {}]: {:.6g} where the reference has {:.6g}, {:.2g} allowed", e.what,
                       i / width, i % width, values[i], expected, allowed);
  }
  return {};
}

std::string Case::check(const std::function<void()>& prepare, const std::function<void()>& run,
                        const std::function<void(Case&)>& ref) {
  constexpr int kNan = 0xff;  // all ones is a NaN of every floating type
  for (const Tensor& tensor : written_) fill_bytes(tensor, kNan, stream());
  if (prepare) prepare();
  for (const Tensor& tensor : accumulated_) fill_zero(tensor, stream());
  run();
  ref(*this);
  std::string text;
  for (const Expectation& expectation : expectations_) {
    if (text.empty()) text = difference(expectation);
  }
  expectations_.clear();
  return text;
}

void Case::randomise() {
  for (const Filled& input : inputs_) {
    Matrix values(input.base_rows,
                  input.tensor.elements() / (input.tensor.shape().rank() < 2 ? 1 : input.tensor.rows()));
    ++draws_;
    for (size_t i = 0; i < values.v.size(); ++i) {
      values.v[i] = input.around + input.scale * normal(seed_, draws_, i);
    }
    fill_rows(input.tensor, values, runtime_);
  }
}

}  // namespace meshgrad::bench
