// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cpu/slab_sums.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace meshgrad::cpu {
namespace {

/// A stored element in double.
template <class S>
double value_of(S x) {
  return static_cast<double>(static_cast<Accumulator<S>>(x));
}

/// prediction - target in double; an undefined target is 0.
template <class S>
double error_of(const S* prediction, const Accumulator<S>* target, int64_t i) {
  return target != nullptr ? value_of(prediction[i]) - value_of(target[i]) : value_of(prediction[i]);
}

/// The weights of a LossForm in double; an undefined tensor is all 1.
template <class S>
struct FormWeights {
  explicit FormWeights(const LossForm& form)
      : rows(form.row_weights.data_or_null<Accumulator<S>>()),
        columns(form.column_weights.data_or_null<Accumulator<S>>()) {}
  double row(int64_t i) const { return rows != nullptr ? static_cast<double>(rows[i]) : 1.0; }
  double column(int64_t j) const { return columns != nullptr ? static_cast<double>(columns[j]) : 1.0; }
  const Accumulator<S>* rows;
  const Accumulator<S>* columns;
};

template <class S>
double loss_of_row(const MaskedLossForward& args, const FormWeights<S>& weights, int64_t i) {
  const int64_t width = args.prediction.width();
  const S* prediction = args.prediction.data<S>();
  const auto* target = args.target.data_or_null<Accumulator<S>>();
  double sum = 0.0;
  for (int64_t j = 0; j < width; ++j) {
    const double error = error_of(prediction, target, i * width + j);
    sum += weights.column(j) * loss_of(args.form.kind, args.form.delta, error);
  }
  return args.form.factor * weights.row(i) * sum;
}

template <class S>
void weighted_loss_forward_of(const MaskedLossForward& args, const Stream& stream) {
  const uint8_t* mask = args.mask.data<uint8_t>();
  const FormWeights<S> weights(args.form);
  const auto sum_over_rows = [&](auto&& of_row) {
    return slab_sum(stream, args.rows.value(), [&](int64_t begin, int64_t end) {
      double sum = 0.0;
      for (int64_t i = begin; i < end; ++i)
        if (mask[i] != 0 && weights.row(i) != 0.0) sum += of_row(i);
      return sum;
    });
  };
  store_sum(stream, args.sum, sum_over_rows([&](int64_t i) { return loss_of_row<S>(args, weights, i); }),
            args.accumulate);
  store_sum(stream, args.weight, sum_over_rows([&](int64_t i) { return weights.row(i); }), args.accumulate);
}

/// Plain squared errors: a case of its own, so that their bits do not depend on weights.
template <class S>
void masked_loss_forward_of(const MaskedLossForward& args, const Stream& stream) {
  const int64_t width = args.prediction.width();
  const uint8_t* mask = args.mask.data<uint8_t>();
  const S* prediction = args.prediction.data<S>();
  const auto* target = args.target.data_or_null<Accumulator<S>>();
  const double total = slab_sum(stream, args.rows.value(), [&](int64_t begin, int64_t end) {
    double sum = 0.0;
    for (int64_t i = begin; i < end; ++i) {
      if (mask[i] == 0) continue;
      for (int64_t j = i * width; j < (i + 1) * width; ++j) {
        const double error = error_of(prediction, target, j);
        sum += error * error;
      }
    }
    return sum;
  });
  store_sum(stream, args.sum, total, args.accumulate);
  const double counted = slab_sum(stream, args.rows.value(), [&](int64_t begin, int64_t end) {
    return static_cast<double>(std::count_if(mask + begin, mask + end, [](uint8_t m) { return m != 0; }));
  });
  store_sum(stream, args.weight, counted, args.accumulate);
}

/// The seed is read on the device: the host does not know the loss scale and the weight.
template <class S>
void masked_loss_backward_of(const MaskedLossBackward& args, const Stream& stream) {
  const int64_t width = args.prediction.width();
  const int64_t rows = args.rows.value();
  const uint8_t* mask = args.mask.data<uint8_t>();
  const bool plain = args.form.plain();
  const FormWeights<S> weights(args.form);
  stream.parallel_for((rows + kSumSlab - 1) / kSumSlab, [&](int64_t slab) {
    const double factor = 2.0 * *args.seed.data<double>();
    const S* prediction = args.prediction.data<S>();
    const auto* target = args.target.data_or_null<Accumulator<S>>();
    S* d_prediction = args.d_prediction.data<S>();
    for (int64_t i = slab * kSumSlab; i < std::min(rows, (slab + 1) * kSumSlab); ++i) {
      const double share = plain ? 0.0 : *args.seed.data<double>() * args.form.factor * weights.row(i);
      for (int64_t j = 0; j < width; ++j) {
        const double error = error_of(prediction, target, i * width + j);
        double gradient = factor * error;
        if (!plain) gradient = share * weights.column(j) * loss_slope(args.form.kind, args.form.delta, error);
        const bool counts = mask[i] != 0 && (plain || weights.row(i) != 0.0);
        d_prediction[i * width + j] = counts ? S(static_cast<Accumulator<S>>(gradient)) : S();
      }
    }
  });
}

double square_of(double x) { return x * x; }

template <class T>
void sum_of_squares_of(const SumOfSquares& args, const Stream& stream) {
  const T* x = args.x.data<T>();
  const double sum = slab_sum(stream, args.x.elements(), [&](int64_t begin, int64_t end) {
    // Eight independent sums: additions overlap instead of waiting for one another, and become vectors.
    constexpr int64_t kSums = 8;
    double partial[kSums] = {};
    int64_t i = begin;
    for (; i + kSums <= end; i += kSums) {
      for (int64_t j = 0; j < kSums; ++j) partial[j] += square_of(static_cast<double>(x[i + j]));
    }
    for (int64_t j = 0; i + j < end; ++j) partial[j] += square_of(static_cast<double>(x[i + j]));
    return std::accumulate(std::begin(partial), std::end(partial), 0.0);
  });
  stream.run([&] {
    *args.sum.data<double>() += sum;
    // Squares of finite f32 values cannot overflow a double, so an infinite sum means a non-finite element.
    // Squares of f64 can, and such gradients are as useless as infinite ones.
    if (args.non_finite.defined() && !std::isfinite(sum)) *args.non_finite.data<int32_t>() = 1;
  });
}

}  // namespace

const ReductionKernels reduction_kernels{
    .masked_loss_forward =
        [](const MaskedLossForward& args, Runtime&, const Stream& stream) {
          dispatch_cpu_storage(args.prediction.dtype(), [&]<class S>() {
            if (args.form.plain()) {
              masked_loss_forward_of<S>(args, stream);
            } else {
              weighted_loss_forward_of<S>(args, stream);
            }
          });
        },
    .masked_loss_backward =
        [](const MaskedLossBackward& args, const Stream& stream) {
          dispatch_cpu_storage(args.prediction.dtype(),
                               [&]<class S>() { masked_loss_backward_of<S>(args, stream); });
        },
    .sum_of_squares =
        [](const SumOfSquares& args, Runtime&, const Stream& stream) {
          dispatch_storage(args.x.dtype(), [&]<class T>() { sum_of_squares_of<T>(args, stream); });
        },
};

}  // namespace meshgrad::cpu
