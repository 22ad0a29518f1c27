// SPDX-License-Identifier: Apache-2.0
// Matrix multiplications for which cuBLASLt has no algorithm, and what the simulated library refuses.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/kernels/cuda/gemm.h>

#include "device.h"
#include "reference/mlp.h"
#include "support.h"

namespace meshgrad::test {
namespace {

using simt::GemmAlgorithms;

struct Offered {
  explicit Offered(GemmAlgorithms algorithms) { simt::set_gemm_algorithms(algorithms); }
  ~Offered() { simt::set_gemm_algorithms(GemmAlgorithms::all); }
  Offered(const Offered&) = delete;
  Offered& operator=(const Offered&) = delete;
};

struct Sizes {
  int64_t m, n, k;
};
// One, either side of a tile of plain_gemm, and rows that no vector divides.
constexpr Sizes kSizes[] = {{1, 1, 1}, {33, 3, 11}, {64, 64, 16}, {65, 129, 17}, {130, 8, 63}};

Matrix transposed(const Matrix& x) {
  Matrix result(x.cols, x.rows);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.cols; ++j)
      result.v[static_cast<size_t>(j * x.rows + i)] = x.v[static_cast<size_t>(i * x.cols + j)];
  }
  return result;
}

Matrix sum_of(Matrix x, const Matrix& y) {
  for (size_t i = 0; i < x.v.size(); ++i) x.v[i] += y.v[i];
  return x;
}

struct Variant {
  DType in, out;
  bool transpose_a, transpose_b, bias, accumulate;
};
template <class Body>
void for_each_variant(Body&& body) {
  for (const DType in : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType out : {in, DType::f32}) {
      for (int bits = 0; bits < 16; ++bits)
        body(Variant{in, out, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0});
    }
  }
}

/// Says how c = a b (+ bias) (+ c) differs from the reference; empty if it does not.
std::string difference_of(Runtime& runtime, const Variant& what, const Sizes& s, uint64_t seed) {
  RandomMatrices random(seed);
  const Matrix a = stored_as(what.in, random.normal(s.m, s.k)),
               b = stored_as(what.in, random.normal(s.k, s.n));
  const Matrix bias = stored_as(what.out, random.normal(1, s.n));
  const Matrix c = stored_as(what.out, random.normal(s.m, s.n));
  const cuda::Gemm call{.a = to_tensor(runtime, what.transpose_a ? transposed(a) : a, what.in),
                        .b = to_tensor(runtime, what.transpose_b ? transposed(b) : b, what.in),
                        .c = to_tensor(runtime, c, what.out),
                        .transpose_a = what.transpose_a,
                        .transpose_b = what.transpose_b,
                        .accumulate = what.accumulate,
                        .bias = what.bias ? to_vector(runtime, bias, what.out) : Tensor()};
  cuda::gemm(call, runtime, runtime.stream());
  Matrix expected = what.bias ? reference::linear(a, b, bias) : reference::linear(a, b);
  if (what.accumulate) expected = sum_of(expected, c);
  return difference(call.c, expected, s.k + 2);
}

TEST_CASE("products are the reference's with any algorithm, or none") {
  uint64_t seed = 4100;
  for (const GemmAlgorithms algorithms :
       {GemmAlgorithms::all, GemmAlgorithms::none, GemmAlgorithms::declined}) {
    const Offered offered(algorithms);
    Runtime runtime({.device = {DeviceKind::cuda, 0}});
    for_each_variant([&](const Variant& what) {
      for (const Sizes& s : kSizes) {
        CAPTURE(static_cast<int>(algorithms));
        CAPTURE(name_of(what.in));
        CAPTURE(name_of(what.out));
        CAPTURE(what.transpose_a);
        CAPTURE(what.transpose_b);
        CAPTURE(what.bias);
        CAPTURE(what.accumulate);
        CAPTURE(s.m);
        CAPTURE(seed);
        CHECK(difference_of(runtime, what, s, seed++) == "");
      }
    });
  }
}

TEST_CASE("measured algorithms give the reference's products, too") {
  Runtime runtime({.device = {DeviceKind::cuda, 0}, .autotune = true});
  CHECK(difference_of(runtime, {.in = DType::f16, .out = DType::f16, .bias = true}, {64, 64, 64}, 1) == "");
  CHECK(difference_of(runtime, {.in = DType::f16, .out = DType::f16, .bias = true}, {50, 64, 64}, 2) == "");
}

TEST_CASE("a product without an algorithm is logged with its shape") {
  std::vector<std::string> messages;
  RuntimeOptions options{.device = {DeviceKind::cuda, 0}};
  options.log = [&](LogLevel, std::string_view text) { messages.emplace_back(text); };
  Runtime runtime(options);
  const auto product = [&](int64_t columns, bool bias) {
    difference_of(runtime, {.in = DType::f16, .out = DType::f16, .bias = bias}, {8, columns, 8}, 3);
  };
  product(8, true);
  product(4, true);  // without an epilogue there is one
  CHECK(messages.empty());
  product(3, true);
  product(5, false);
  REQUIRE(messages.size() == 1);
  CHECK(contains(messages.front(), "cuBLASLt has no algorithm for "));
  CHECK(contains(messages.front(), "8x3x8"));
}

TEST_CASE("a capture that would load a kernel names the product") {
  Runtime runtime({.device = {DeviceKind::cuda, 0}});
  const auto product = [&](const Tensor& c) {
    const Tensor a = Tensor::empty(runtime, {8, 64}, DType::f32, Tag::data);
    cuda::gemm({.a = a, .b = Tensor::empty(runtime, {64, 8}, DType::f32, Tag::data), .c = c, .bias = {}},
               runtime, runtime.stream());
  };
  const Tensor c = Tensor::empty(runtime, {8, 8}, DType::f32, Tag::data);
  void* const stream = runtime.stream().native();
  const auto captured = [&] {
    gpu::begin_capture(stream);
    std::string error;
    try {
      product(c);
    } catch (const DeviceError& refused) {
      error = refused.what();
    }
    gpu::abandon_capture(stream);
    return error;
  };
  CHECK(contains(captured(), "cublasLtCreate"));
  const Tensor other = Tensor::empty(runtime, {8, 16}, DType::f16, Tag::data);
  cuda::gemm({.a = Tensor::empty(runtime, {8, 8}, DType::f16, Tag::data),
              .b = Tensor::empty(runtime, {8, 16}, DType::f16, Tag::data),
              .c = other,
              .bias = {}},
             runtime, runtime.stream());
  CHECK(contains(captured(), "8x8x64"));
  product(c);
  CHECK(captured() == "");
}

}  // namespace
}  // namespace meshgrad::test
