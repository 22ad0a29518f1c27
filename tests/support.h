// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of engine, kernels, autograd and nn: sizes, tolerances, reproducible random values, and
// conversions between tensors and the reference implementation's matrices.
#pragma once
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/tables.h>

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/message_passing.h"

namespace meshgrad::test {

using reference::Matrix;

/// One backend: its kernels, its device, and its storage types.
struct Backend {
  std::string name;
  Device device;
  bool slow = false;  ///< the simulated device: tests take fewer and smaller cases
  std::vector<DType> storage_types;
  const KernelTables* kernels;

  Runtime runtime(int threads = 1) const;
  /// What its master weights and gradients are in.
  std::vector<DType> gradient_types() const;
  /// awkward_sizes; those that stand for all on a slow backend.
  std::vector<int64_t> sizes() const;
  /// Also `many` rows, enough for many slabs, when `narrow` keeps that cheap for the reference
  /// implementation.
  std::vector<int64_t> sizes_and(bool narrow, int64_t many) const;
  int64_t many(int64_t rows) const { return slow ? rows / 8 : rows; }
  /// Numbers of threads that must give the same bits; one is repeated. On a GPU: two runs.
  std::vector<int> thread_counts() const;
};
/// The CPU and, if there is one, a GPU; in a binary with the simulated device, only that.
const std::vector<Backend>& backends();

/// The CPU and, if there is one, the first GPU.
std::vector<Device> devices();

/// A mask of rows, as kernels take it.
Tensor mask_tensor(Runtime& runtime, const std::vector<uint8_t>& mask);

/// Nothing, one, and either side of a warp, a tile and a block; and a prime.
std::vector<int64_t> awkward_sizes();
std::vector<int64_t> awkward_sizes_and(bool narrow, int64_t many);

/// f32 and f64: dtypes of master weights, gradients and losses on the CPU.
std::vector<DType> storage_types();

/// The allowed difference from the reference for a sum of `terms_summed` terms in dtype's accumulation type.
/// Partial sums of n terms of random sign grow as sqrt(n), and so do n rounding errors of half an ulp each
/// (Higham, Mary 2019): 8 sqrt(n) epsilon leaves a factor of 16 for outliers and for the functions in
/// between. `magnitude` is the largest value that took part, not the one compared: a small result of large
/// terms carries their rounding errors.
///
/// Values stored in 16 bits are summed in f32 and rounded once when stored: 8 of their own epsilons cover the
/// rounding of a result and of its operands, whatever their number.
double tolerance(DType dtype, int64_t terms_summed, double magnitude);

/// Largest absolute value; 0 when empty.
double magnitude(const Matrix& matrix);

/// A runtime, on the CPU by default.
Runtime make_runtime(int threads = 1, Device device = {});

/// Random matrices that depend on the seed and on how many were drawn before.
class RandomMatrices {
 public:
  explicit RandomMatrices(uint64_t seed) : seed_(seed) {}
  uint64_t seed() const { return seed_; }
  /// Normally distributed values times `scale`.
  Matrix normal(int64_t rows, int64_t cols, double scale = 1.0);
  /// Multiples of `step` in [-reach, reach]. Sums of products of such values are exact in f32, so rounding
  /// cannot move a pre-activation across relu's kink.
  Matrix grid(int64_t rows, int64_t cols, double step, double reach);
  std::vector<uint8_t> mask(int64_t rows, double share);
  std::vector<int32_t> indices(int64_t count, int64_t below);

 private:
  uint64_t seed_;
  uint64_t draws_ = 0;
};

/// `value` rounded to T.
template <class T>
T stored(double value) {
  if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}
template <class T>
double read_stored(T value) {
  if constexpr (std::is_integral_v<T> || sizeof(T) > 2) {
    return static_cast<double>(value);
  } else {
    return static_cast<double>(static_cast<float>(value));
  }
}

/// The values rounded to `dtype`: the reference must start from the same values as the kernels.
Matrix stored_as(DType dtype, const Matrix& matrix);

/// Uninitialised memory of exactly the tensor's size on the runtime's device, not from its allocator: an
/// access past the end is then seen by AddressSanitizer or the simulated device. The allocator's next block
/// would hide it.
Tensor exact_tensor(Runtime& runtime, const Shape& shape, DType dtype);

/// [rows, cols], or [cols] for a row vector that is a parameter; exact_tensors, as is what unwritten() gives.
Tensor to_tensor(Runtime& runtime, const Matrix& matrix, DType dtype);
Tensor to_vector(Runtime& runtime, const Matrix& row, DType dtype);
/// Undefined when the matrix is not given.
Tensor to_vector_if_given(Runtime& runtime, const Matrix& row, DType dtype);
Tensor to_index(Runtime& runtime, const std::vector<int32_t>& values);
/// i64 [1]: the real count of Rows, where kernels of the runtime's device can read it.
Tensor to_count(Runtime& runtime, int64_t count);
/// A copy on the host, after synchronising. On a device only for tensors made by the functions above; others
/// go through the engine's to_host.
Tensor to_host(const Tensor& tensor);
/// Floating types, i32 and u8; rank 1 becomes one row.
Matrix to_matrix(const Tensor& tensor);

/// An output filled with NaN, so that an element that is not written is noticed.
Tensor unwritten(Runtime& runtime, const Shape& shape, DType dtype);

/// Same dtype, shape and bytes.
bool equal_bits(const Tensor& a, const Tensor& b);

/// Empty when every element of `actual` is within tolerance(dtype, terms, magnitude of expected or
/// `at_least`); else names the first that is not. `made_of` is the dtype of what `actual` was computed from,
/// when that is less precise than itself.
std::string difference(const Tensor& actual, const Matrix& expected, int64_t terms, double at_least = 0.0,
                       std::optional<DType> made_of = {});

/// Text of the InvalidArgument that `body` throws; empty when it throws nothing.
template <class Body>
std::string invalid_argument_text(Body&& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}
/// What a call threw, or "" when it threw nothing.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}
bool contains(std::string_view text, std::string_view part);
/// How often `part` occurs in `text`, without overlaps.
size_t count_of(std::string_view text, std::string_view part);

/// Random edges sorted by receiver, with self loops, parallel edges, a hub that sends and receives an eighth
/// of all, and (from 4 nodes on) a last node without edges.
reference::Edges random_edges(RandomMatrices& random, int64_t nodes, int64_t edges);
/// The Graph of edges that are sorted by receiver; halo nodes after owned_nodes only send.
Graph to_graph(Runtime& runtime, const reference::Edges& edges);

}  // namespace meshgrad::test
