// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication with fused epilogues, against the same operations one after the other.
#include <doctest/doctest.h>
#include <meshgrad/kernels/cpu/gemm.h>
#include <meshgrad/kernels/cpu_isa.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/amx_emulated.h"
#include "support.h"

namespace meshgrad::test {
namespace {

using cpu::kDepth;
using cpu::kTileRows;
using cpu::Operand;

constexpr int64_t kStride = 144;  // of tiles and operands, in elements
constexpr float kUntouched = -12345.0f;

template <class S>
using T = Accumulator<S>;

/// Operands of a matrix multiplication, and its sums by plain loops.
template <class S>
struct GemmCase {
  int64_t panel, m, n, k, steps;
  std::vector<Operand<S>> a, b;
  std::vector<T<S>> start;
  std::vector<double> sums;

  GemmCase(RandomMatrices& random, const cpu::GemmOps<S>& gemm_ops, int64_t rows, int64_t columns,
           int64_t depth)
      : panel(gemm_ops.panel),
        m(rows),
        n(columns),
        k(depth),
        steps((depth + kDepth<S> - 1) / kDepth<S>),
        a(static_cast<size_t>(kTileRows<S> * kStride)),
        b(static_cast<size_t>(2 * kStride * (depth + 1))),
        start(static_cast<size_t>(kTileRows<S> * kStride)),
        sums(static_cast<size_t>(rows * columns)) {
    const Matrix x = random.normal(m, k), w = random.normal(k, n), s = random.normal(m, n);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const auto at = [](int64_t row, int64_t column, int64_t width) {
          return static_cast<size_t>(row * width + column);
        };
        start[at(i, j, kStride)] = static_cast<T<S>>(s.v[at(i, j, n)]);
        double sum = static_cast<double>(start[at(i, j, kStride)]);
        for (int64_t l = 0; l < k; ++l) {
          Operand<S>& left = a[at(i, l, kStride)];
          left = Operand<S>(static_cast<T<S>>(x.v[at(i, l, k)]));
          Operand<S>& right =
              b[static_cast<size_t>(j / panel * panel_stride() + l / kDepth<S> * row_stride() +
                                    j % panel * kDepth<S> + l % kDepth<S>)];
          right = Operand<S>(static_cast<T<S>>(w.v[at(l, j, n)]));
          sum += static_cast<double>(static_cast<T<S>>(left)) * static_cast<double>(static_cast<T<S>>(right));
        }
        sums[at(i, j, n)] = sum;
      }
    }
  }
  int64_t row_stride() const { return panel * kDepth<S>; }
  int64_t panel_stride() const { return row_stride() * steps; }
  cpu::Gemm<S> product() const {
    return {m,
            n,
            {a.data(), kStride, kDepth<S>, steps},
            {b.data(), panel_stride(), row_stride()},
            {start.data(), kStride}};
  }
};

/// This machine's tables for pairs of bfloat16: the one in use, and the emulation of AMX.
std::vector<const cpu::GemmOps<bfloat16>*> of_pairs() {
  std::vector<const cpu::GemmOps<bfloat16>*> tables;
  if (cpu::multiplies_bf16_pairs()) tables.push_back(&cpu::gemm_ops<bfloat16>());
  if (cpu::emulated_amx_gemm() != nullptr) tables.push_back(cpu::emulated_amx_gemm());
  return tables;
}

/// Calls body(table) for every table of this machine.
template <class Body>
void with_all_products(const Body& body) {
  body(cpu::gemm_ops<float>());
  body(cpu::gemm_ops<double>());
  body(cpu::gemm_ops<half>());
  body(cpu::gemm_ops<cpu::WideBfloat16>());
  for (const auto* gemm_ops : of_pairs()) body(*gemm_ops);
}

template <class V>
double number(V value) {
  if constexpr (sizeof(V) == 2) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

template <class S>
double close(double value) {
  const double unit = sizeof(S) == 2 ? (std::is_same_v<S, half> ? 0x1p-10 : 0x1p-7)
                                     : 64.0 * static_cast<double>(std::numeric_limits<T<S>>::epsilon());
  return unit * (1.0 + std::abs(value));
}

template <class S>
void check_products(const cpu::GemmOps<S>& gemm_ops) {
  RandomMatrices random(17);
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{48, 128, 128},
                                {1, 1, 1},
                                {21, 33, 96},
                                {64, 96, 63},
                                {50, 128, 31},
                                {33, 128, 32},
                                {13, 37, 5},
                                {7, 64, 3},
                                {47, 100, 33},
                                {2, 17, 2}}) {
    CAPTURE(m);
    CAPTURE(n);
    const GemmCase<S> c(random, gemm_ops, m, n, k);
    const auto at = [](int64_t i, int64_t j, int64_t stride) { return static_cast<size_t>(i * stride + j); };
    std::vector<T<S>> tile(kTileRows<S> * kStride), d(tile.size()), sums(2 * kStride, T<S>(1));
    std::vector<S> z(static_cast<size_t>(m * n) + 64, S(kUntouched)), out(z), stored(z);
    std::vector<Operand<S>> h(tile.size()), rows(h), pairs(2 * h.size());
    gemm_ops.sum(c.product(), tile.data(), kStride);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const double sum = c.sums[at(i, j, n)];
        REQUIRE(std::abs(number(tile[at(i, j, kStride)]) - sum) <= close<T<S>>(sum) * 16);
      }

    // Saved pre-activations and the next operand follow from the sums bit for bit.
    gemm_ops.hidden(c.product(), {.activation = Activation::relu,
                                  .z = z.data(),
                                  .z_stride = n,
                                  .tile = d.data(),
                                  .tile_stride = kStride,
                                  .h = h.data(),
                                  .h_stride = kStride});
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const double rounded = number(d[at(i, j, kStride)]);
        REQUIRE(std::abs(rounded - number(tile[at(i, j, kStride)])) <= close<S>(rounded));
        REQUIRE(number(z[at(i, j, n)]) == std::max(rounded, 0.0));
        REQUIRE(number(h[at(i, j, kStride)]) == std::max(rounded, 0.0));
      }
    CHECK(number(z[static_cast<size_t>(m * n)]) == number(S(kUntouched)));

    gemm_ops.stored(c.product(), {out.data(), n, z.data(), n});
    cpu::GradientResult<S> gradient{.activation = Activation::relu, .z = z.data(), .z_stride = n};
    gradient.tile = d.data();
    gradient.tile_stride = gradient.rows_stride = kStride;
    gradient.column_sums = sums.data();
    gradient.stored = stored.data();
    gradient.stored_stride = n;
    gradient.rows = rows.data();
    gradient.pairs = pairs.data();
    gradient.pairs_stride = 2 * kStride;
    gemm_ops.gradient(c.product(), gradient);
    for (int64_t j = 0; j < n; ++j) {
      double column = 1.0;
      for (int64_t i = 0; i < m; ++i) {
        const double sum = number(tile[at(i, j, kStride)]);
        const double expected = number(z[at(i, j, n)]) > 0.0 ? sum : 0.0;
        const double got = number(d[at(i, j, kStride)]);
        const double with_z = sum + number(z[at(i, j, n)]);
        column += got;
        REQUIRE(got == expected);
        REQUIRE(std::abs(number(out[at(i, j, n)]) - with_z) <= close<S>(with_z));
        REQUIRE(std::abs(number(stored[at(i, j, n)]) - got) <= close<S>(got));
        if constexpr (kDepth<S> == 2) {
          REQUIRE(rows[at(i, j, kStride)].bits == stored[at(i, j, n)].bits);
          REQUIRE(pairs[at(i / 2, 2 * j + i % 2, 2 * kStride)].bits == stored[at(i, j, n)].bits);
        }
      }
      REQUIRE(std::abs(number(sums[static_cast<size_t>(j)]) - column) <= close<T<S>>(column) * 16);
      if constexpr (kDepth<S> == 2) {
        if (m % 2 == 1) REQUIRE(pairs[at(m / 2, 2 * j + 1, 2 * kStride)].bits == 0);
      }
    }
    CHECK(number(out[static_cast<size_t>(m * n)]) == number(S(kUntouched)));
    CHECK(number(stored[static_cast<size_t>(m * n)]) == number(S(kUntouched)));
  }
}

TEST_CASE("epilogues match their steps done one by one") {
  with_all_products([](const auto& gemm_ops) { check_products(gemm_ops); });
}

/// Weight gradients: A transposed, with rows in pairs; initial accumulators are zero or existing sums.
void check_sums_by_columns(const cpu::GemmOps<bfloat16>& gemm_ops, bool begin) {
  RandomMatrices random(3);
  for (const auto& [m, n, rows] :
       {std::tuple<int64_t, int64_t, int64_t>{128, 128, 64}, {128, 64, 48}, {5, 33, 41}, {40, 128, 1}}) {
    CAPTURE(m);
    CAPTURE(rows);
    const Matrix x = random.normal(rows, m), d = random.normal(rows, n), start = random.normal(m, n);
    const int64_t steps = (rows + 1) / 2, panel_stride = 2 * gemm_ops.panel * 32;
    std::vector<bfloat16> a(64 * 2 * kStride), b(static_cast<size_t>(3 * panel_stride));
    std::vector<float> c(128 * kStride), expected(c.size());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < m; ++j)
        a[static_cast<size_t>(i / 2 * 2 * kStride + 2 * j + i % 2)] =
            bfloat16(static_cast<float>(x.v[static_cast<size_t>(i * m + j)]));
      for (int64_t j = 0; j < n; ++j)
        b[static_cast<size_t>(j / gemm_ops.panel * panel_stride + i / 2 * 2 * gemm_ops.panel +
                              j % gemm_ops.panel * 2 + i % 2)] =
            bfloat16(static_cast<float>(d.v[static_cast<size_t>(i * n + j)]));
    }
    // Elements past the last step must not be read, or not count.
    for (int64_t j = 0; j < 2 * kStride; ++j)
      a[static_cast<size_t>(steps * 2 * kStride + j)] = bfloat16(std::numeric_limits<float>::quiet_NaN());
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        c[static_cast<size_t>(i * kStride + j)] =
            begin ? std::numeric_limits<float>::quiet_NaN()
                  : static_cast<float>(start.v[static_cast<size_t>(i * n + j)]);
    gemm_ops.sum({m,
                  n,
                  {a.data(), 2, 2 * kStride, steps},
                  {b.data(), panel_stride, 2 * gemm_ops.panel},
                  {begin ? nullptr : c.data(), kStride}},
                 c.data(), kStride);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = begin ? 0.0 : start.v[static_cast<size_t>(i * n + j)];
        for (int64_t r = 0; r < rows; ++r) {
          const auto rounded = [&](const Matrix& from, int64_t width, int64_t column) {
            return number(bfloat16(static_cast<float>(from.v[static_cast<size_t>(r * width + column)])));
          };
          sum += rounded(x, m, i) * rounded(d, n, j);
        }
        REQUIRE(std::abs(c[static_cast<size_t>(i * kStride + j)] - sum) <= 16.0 * close<float>(sum));
      }
  }
}

TEST_CASE("weight gradients of pairs add to zero or existing sums") {
  // Pairs need AVX-512, even for the emulation of AMX.
  CHECK(of_pairs().empty() == (cpu::isa() < cpu::Isa::avx512));
  for (const auto* gemm_ops : of_pairs()) {
    for (const bool begin : {true, false}) check_sums_by_columns(*gemm_ops, begin);
  }
}

/// Bytes right before an inaccessible page.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : bytes_(bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_ = (bytes + page - 1) / page * page + page;
    base_ =
        static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(base_ != MAP_FAILED);
    REQUIRE(mprotect(base_ + size_ - page, page, PROT_NONE) == 0);
    end_ = base_ + size_ - page;
  }
  ~Guarded() { munmap(base_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  template <class V>
  V* data() const {
    return reinterpret_cast<V*>(end_ - bytes_);
  }

 private:
  size_t bytes_, size_ = 0;
  char *base_ = nullptr, *end_ = nullptr;
};

/// A by rows, z and results lie where a step's tensors end.
template <class S>
void check_ends(const cpu::GemmOps<S>& gemm_ops) {
  RandomMatrices random(23);
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{21, 48, 64}, {64, 40, 32}, {1, 3, 6}}) {
    CAPTURE(m);
    const GemmCase<S> c(random, gemm_ops, m, n, k);
    const Guarded a(static_cast<size_t>(m * k) * sizeof(Operand<S>));
    for (int64_t i = 0; i < m; ++i)
      std::copy_n(&c.a[static_cast<size_t>(i * kStride)], k, a.data<Operand<S>>() + i * k);
    cpu::Gemm<S> product = c.product();
    product.a = {a.data<Operand<S>>(), k, kDepth<S>, c.steps};
    const Guarded z(static_cast<size_t>(m * n) * sizeof(S)), out(static_cast<size_t>(m * n) * sizeof(S));
    gemm_ops.hidden(product, {.activation = Activation::relu, .z = z.data<S>(), .z_stride = n});
    gemm_ops.stored(product, {out.data<S>(), n, z.data<S>(), n});
    std::vector<T<S>> tile(kTileRows<S> * kStride), sums(2 * kStride);
    std::vector<Operand<S>> rows(tile.size()), pairs(2 * tile.size());
    cpu::GradientResult<S> gradient{.activation = Activation::relu, .z = z.data<S>(), .z_stride = n};
    gradient.tile = tile.data();
    gradient.tile_stride = gradient.rows_stride = kStride;
    gradient.column_sums = sums.data();
    gradient.stored = out.data<S>();
    gradient.stored_stride = n;
    gradient.rows = rows.data();
    gradient.pairs = pairs.data();
    gradient.pairs_stride = 2 * kStride;
    gemm_ops.gradient(product, gradient);
    if constexpr (kDepth<S> == 1) {
      // A by columns: its steps are the rows of x that end with the tensor.
      const int64_t steps = std::min(m, c.steps);
      const Operand<S>* const x = a.data<Operand<S>>() + (m - steps) * k;
      gemm_ops.sum({k, n, {x, 1, k, steps}, product.b, {}}, tile.data(), kStride);
      double sum = 0.0;
      for (int64_t step = 0; step < steps; ++step)
        sum += number(x[step * k + k - 1]) * number(c.b[static_cast<size_t>(step * c.row_stride())]);
      REQUIRE(std::abs(number(tile[static_cast<size_t>((k - 1) * kStride)]) - sum) <= close<T<S>>(sum) * 16);
    }
    // No start, and one row for all.
    product.start = {};
    gemm_ops.sum(product, tile.data(), kStride);
    product.start = {c.start.data(), 0};
    std::vector<T<S>> moved(tile.size());
    gemm_ops.sum(product, moved.data(), kStride);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const auto at = static_cast<size_t>(i * kStride + j);
        const double shift = number(c.start[static_cast<size_t>(j)]);
        const double sum = c.sums[static_cast<size_t>(i * n + j)] - number(c.start[at]);
        REQUIRE(std::abs(number(tile[at]) - sum) <= close<T<S>>(sum) * 16);
        REQUIRE(std::abs(number(moved[at]) - sum - shift) <=
                close<T<S>>(std::abs(sum) + std::abs(shift)) * 16);
      }
  }
}

TEST_CASE("GEMMs access nothing past the end of tensors") {
  with_all_products([](const auto& gemm_ops) { check_ends(gemm_ops); });
}

/// Recomputation may put a row into another tile.
template <class S>
void check_rows_alone(const cpu::GemmOps<S>& gemm_ops) {
  RandomMatrices random(11);
  const GemmCase<S> c(random, gemm_ops, 64, 128, 128);
  std::vector<T<S>> all(64 * kStride), part(all.size());
  gemm_ops.sum(c.product(), all.data(), kStride);
  for (const auto& [first, rows] :
       {std::pair<int64_t, int64_t>{0, 64}, {1, 1}, {5, 17}, {16, 33}, {31, 33}, {60, 4}}) {
    cpu::Gemm<S> product = c.product();
    product.m = rows;
    product.a.data += first * kStride;
    product.start.rows += first * kStride;
    gemm_ops.sum(product, part.data(), kStride);
    for (int64_t i = 0; i < rows; ++i)
      REQUIRE(std::memcmp(&part[static_cast<size_t>(i * kStride)],
                          &all[static_cast<size_t>((first + i) * kStride)], 128 * sizeof(T<S>)) == 0);
  }
}

TEST_CASE("a row's sums do not depend on the rows beside it") {
  with_all_products([](const auto& gemm_ops) { check_rows_alone(gemm_ops); });
}

template <class S>
void check_streaming(const cpu::GemmOps<S>& gemm_ops) {
  RandomMatrices random(5);
  const GemmCase<S> c(random, gemm_ops, 48, 128, 64);
  alignas(64) S cached[48 * 128], streamed[48 * 128];
  for (const Activation activation : {Activation::none, Activation::relu}) {
    gemm_ops.hidden(c.product(), {.activation = activation, .z = cached, .z_stride = 128});
    gemm_ops.hidden(c.product(),
                    {.activation = activation, .z = streamed, .z_stride = 128, .stream_z = true});
    CHECK(std::memcmp(cached, streamed, sizeof(cached)) == 0);
  }
}

TEST_CASE("non-temporal stores write the same values") {
  with_all_products([](const auto& gemm_ops) { check_streaming(gemm_ops); });
}

}  // namespace
}  // namespace meshgrad::test
