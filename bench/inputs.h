// SPDX-License-Identifier: Apache-2.0
// Inputs of any size that the naive FP64 reference can still check: rows repeat with a period, and so does
// the mesh. A kernel's result for row i must then equal the reference's for row i mod period, and a sum over
// all rows the reference's sum times the number of copies.
#pragma once
#include <meshgrad/kernels/graph.h>

#include <memory>

#include "benchmark.h"
#include "reference/message_passing.h"

namespace meshgrad::bench {

using reference::Matrix;

constexpr int64_t kOutputs = 2;  ///< components of a prediction

/// A tensor and the period of rows that it repeats.
struct Input {
  Tensor tensor;
  Matrix base;
};

/// A triangulated torus: node i receives from i +- 1, i +- s and i +- (s + 1), with s near the square root of
/// the number of nodes; six edges per node, in order of receiver. Modulo the period it is `base`. Or a
/// triangulated square, whose nodes receive from those of these neighbours that lie within it.
struct Mesh {
  Graph graph;
  reference::Edges base, whole;  ///< whole: the edges of `graph`, on the host
};
Mesh make_mesh(Runtime& runtime, const Scale& scale);

/// Allocates, fills and later refills the tensors of one workload.
///
/// For the check, values are multiples of 1/8 that every storage type represents, and whose products sum
/// exactly up to the second layer of an MLP: rounding cannot move a pre-activation across relu's kink. Timing
/// uses normally distributed values, since a chip's power, and so its clock, depends on the data.
class Case {
 public:
  Case(Runtime& runtime, const Scale& scale, DType storage, std::string_view name);

  Runtime& runtime() const { return runtime_; }
  const Stream& stream() const { return runtime_.stream(); }
  DType storage() const { return storage_; }
  DType accumulator() const { return accumulator_of(storage_); }
  const Scale& scale() const { return scale_; }

  /// [copies * base_rows, width] of the storage type; values -1, 0, 1.
  Input rows(int64_t base_rows, int64_t width);
  /// As rows, in `dtype`.
  Input rows(int64_t base_rows, int64_t width, DType dtype);
  /// [in, out] of the storage type; values -1/8, 0, 1/8.
  Input weight(int64_t in, int64_t out);
  /// [width] of the accumulation type; values of a weight, plus `around`.
  Input vector(int64_t width, double around = 0.0);

  /// Outputs. Before a check, written() tensors hold NaN and accumulated() ones zero. `expected` has the base
  /// rows; of expect_total it is the contribution of one copy. An element is a sum of `terms` terms of
  /// magnitude `at_least`.
  Tensor written(const Shape& shape, DType dtype);
  Tensor accumulated(const Shape& shape);
  void expect(std::string what, const Tensor& actual, const Matrix& expected, int64_t terms,
              double at_least = 0.0);
  void expect_total(std::string what, const Tensor& actual, const Matrix& of_one_copy, int64_t terms,
                    double at_least = 0.0);

  /// Runs the workload once and compares all expectations; empty, or the first difference. `prepare` runs
  /// first and computes what a forward pass would have saved.
  std::string check(const std::function<void()>& prepare, const std::function<void()>& run,
                    const std::function<void(Case&)>& ref);
  /// Fills the inputs with random values.
  void randomise();

 private:
  struct Filled {
    Tensor tensor;
    double scale, around;
    int64_t base_rows;
  };
  struct Expectation {
    std::string what;
    Tensor actual;
    Matrix expected;
    double terms, at_least, times;
  };
  Input make(const Shape& shape, int64_t base_rows, DType dtype, double step, double around,
             double timed_scale);
  std::string difference(const Expectation& expectation) const;

  Runtime& runtime_;
  Scale scale_;
  DType storage_;
  uint64_t seed_;
  uint64_t draws_ = 0;
  std::vector<Filled> inputs_;
  std::vector<Tensor> written_, accumulated_;
  std::vector<Expectation> expectations_;
};

/// Fills `tensor` with copies of the rows of `base`, rounded to its dtype.
void fill_rows(const Tensor& tensor, const Matrix& base, Runtime& runtime);
/// The elements of a floating tensor as doubles.
std::vector<double> values_of(const Tensor& tensor, const Stream& stream);

}  // namespace meshgrad::bench
