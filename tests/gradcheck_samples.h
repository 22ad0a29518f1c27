// SPDX-License-Identifier: Apache-2.0
// What the list of gradient checks is made of; its parts in other sources than gradcheck.cpp.
#pragma once
#include <meshgrad/engine/random.h>
#include <meshgrad/engine/runtime.h>

#include "gradcheck.h"

namespace meshgrad {

/// A normal value with the digits of a bfloat16.
inline double value_of(uint64_t seed, uint64_t purpose, int64_t i) {
  const auto value = static_cast<float>(normal(seed, purpose, static_cast<uint64_t>(i)));
  return static_cast<double>(static_cast<float>(bfloat16(value)));
}

inline void draw(const Tensor& tensor, uint64_t seed, uint64_t purpose) {
  dispatch_cpu_storage(tensor.dtype(), [&]<class S>() {
    for (int64_t i = 0; i < tensor.elements(); ++i)
      tensor.data<S>()[i] = S(static_cast<Accumulator<S>>(value_of(seed, purpose, i)));
  });
}

/// Draws numbered tensors, each with values of its own.
class Source {
 public:
  Source(Runtime& runtime, uint64_t seed, DType dtype) : runtime_(runtime), seed_(seed), dtype_(dtype) {}
  Tensor tensor(const Shape& shape, DType dtype) {
    Tensor t = Tensor::empty(runtime_, shape, dtype, Tag::data, "sample");
    draw(t, seed_, draws_++);
    return t;
  }
  Tensor target(const Shape& shape) { return tensor(shape, accumulator_of(dtype_)); }
  Variable leaf(const Shape& shape) { return Variable(tensor(shape, dtype_), true); }
  /// In the dtype that sums are in.
  Variable wide_leaf(const Shape& shape) { return Variable(target(shape), true); }
  Weight weight(const Shape& shape) {
    const DType sum = accumulator_of(dtype_);
    return {tensor(shape, shape.rank() == 2 ? dtype_ : sum),
            Tensor::zeros(runtime_, shape, sum, Tag::gradients, "sample gradient")};
  }

 private:
  Runtime& runtime_;
  uint64_t seed_;
  DType dtype_;
  uint64_t draws_ = 0;
};

void add_slices(Runtime& runtime, Source& source, std::vector<OpSample>& list);

}  // namespace meshgrad
