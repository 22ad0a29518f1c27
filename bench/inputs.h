// SPDX-License-Identifier: Apache-2.0
// Inputs of any size whose results the naive FP64 judge can still give: they repeat down the rows, and so
// does the mesh. What a kernel makes of row i is then what the judge makes of row i mod the period, and a sum
// over all rows is the judge's sum times the number of copies.
#pragma once
#include <meshgrad/kernels/graph.h>

#include <memory>

#include "benchmark.h"
#include "reference/message_passing.h"

namespace meshgrad::bench {

using reference::Matrix;

/// A tensor and the rows that it repeats.
struct Input {
  Tensor tensor;
  Matrix base;
};

/// A triangulated torus: node i hears from i +- 1, i +- s and i +- (s + 1), s near the root of the number of
/// nodes, six edges a node in order of receiver. Modulo the period it is `base`. Or a triangulated square,
/// whose nodes hear from those of these neighbours that lie within it.
struct Mesh {
  Graph graph;
  reference::Edges base;
};
Mesh make_mesh(Runtime& runtime, const Scale& scale);

/// Makes, and later refills, the tensors of one workload.
///
/// For the check, values are coarse multiples that every storage type holds, and whose products sum without
/// rounding up to the second layer of an MLP: no pre-activation can fall on the other side of relu's kink
/// than the judge's. Timing runs on normal values, as the power a chip draws depends on what it multiplies.
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

  /// Outputs: before a check the first kind holds NaN, the second zero. `expected` is of base rows, or, with
  /// `total`, what one copy adds. `terms` of magnitude `at_least` were summed for an element.
  Tensor written(const Shape& shape, DType dtype);
  Tensor accumulated(const Shape& shape);
  void expect(std::string what, const Tensor& actual, const Matrix& expected, int64_t terms,
              double at_least = 0.0);
  void expect_total(std::string what, const Tensor& actual, const Matrix& of_one_copy, int64_t terms,
                    double at_least = 0.0);

  /// The workload's two functions. `prepare` runs before each, to make what a forward pass would have left.
  std::string check(const std::function<void()>& prepare, const std::function<void()>& run,
                    const std::function<void(Case&)>& judge);
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

/// Values of `base`, as `dtype` holds them, into the first rows of `tensor`, and on down all its rows.
void fill_rows(const Tensor& tensor, const Matrix& base, Runtime& runtime);
/// The values of any floating tensor.
std::vector<double> values_of(const Tensor& tensor, const Stream& stream);

}  // namespace meshgrad::bench
