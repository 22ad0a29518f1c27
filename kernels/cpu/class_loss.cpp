// SPDX-License-Identifier: Apache-2.0
// Plain loops: classes are few, so vectors would be mostly empty.
#include <meshgrad/kernels/cpu/slab_sums.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshgrad::cpu {
namespace {

/// The logits of one row, and their softmax at a temperature.
template <class S>
struct ClassRow {
  using A = Accumulator<S>;
  const S* logits;
  int64_t classes;
  A inverse_temperature;
  A largest = -std::numeric_limits<A>::infinity();
  A sum = A(0);  // of exponential(); NaN where a logit is

  ClassRow(const S* first, int64_t count, A inverse = A(1))
      : logits(first), classes(count), inverse_temperature(inverse) {
    for (int64_t c = 0; c < classes; ++c) largest = std::max(largest, static_cast<A>(logits[c]));
    for (int64_t c = 0; c < classes; ++c) sum += exponential(c);
  }
  A exponent(int64_t c) const { return inverse_temperature * (static_cast<A>(logits[c]) - largest); }
  A exponential(int64_t c) const { return std::exp(exponent(c)); }
  A share(int64_t c) const { return exponential(c) / sum; }
  bool has(int32_t label) const { return label >= 0 && label < classes; }
  A cross_entropy(int32_t label) const {
    if (!has(label)) return std::numeric_limits<A>::quiet_NaN();
    return std::log(sum) - exponent(label);
  }
};

/// A row of a student and its teacher's, at the same temperature.
template <class S>
struct TaughtRow {
  using A = Accumulator<S>;
  A portion, temperature;
  ClassRow<S> student, teacher;

  TaughtRow(const Tensor& logits, const TeacherOutput& by, int64_t row)
      : portion(static_cast<A>(by.share)),
        temperature(static_cast<A>(by.temperature)),
        student(logits.data<S>() + row * logits.width(), logits.width(), 1 / temperature),
        teacher(by.values.data<S>() + row * logits.width(), logits.width(), 1 / temperature) {}
  A loss(A cross_entropy) const {
    A divergence = std::log(student.sum) - std::log(teacher.sum);
    for (int64_t c = 0; c < teacher.classes; ++c)
      divergence += teacher.share(c) * (teacher.exponent(c) - student.exponent(c));
    return (1 - portion) * cross_entropy + portion * temperature * temperature * divergence;
  }
  A gradient(int64_t c, A of_cross_entropy) const {
    return (1 - portion) * of_cross_entropy + portion * temperature * (student.share(c) - teacher.share(c));
  }
};

/// Of a label that is no class 1: its loss is NaN.
double weight_of(const float* weights, int32_t label, int64_t classes) {
  return weights == nullptr || label < 0 || label >= classes ? 1.0 : static_cast<double>(weights[label]);
}

template <class S>
void class_loss_forward_of(const ClassLossForward& args, const Stream& stream) {
  const int64_t classes = args.logits.width();
  const S* logits = args.logits.data<S>();
  const int32_t* labels = args.labels.data<int32_t>();
  const uint8_t* mask = args.mask.data<uint8_t>();
  const float* weights = args.class_weights.data_or_null<float>();
  const auto sum_over_rows = [&](auto&& of_row) {
    return slab_sum(stream, args.rows.value(), [&](int64_t begin, int64_t end) {
      double sum = 0.0;
      for (int64_t i = begin; i < end; ++i)
        if (mask[i] != 0) sum += weight_of(weights, labels[i], classes) * static_cast<double>(of_row(i));
      return sum;
    });
  };
  const double loss = sum_over_rows([&](int64_t i) {
    const auto plain = ClassRow<S>(logits + i * classes, classes).cross_entropy(labels[i]);
    return args.teacher.values.defined() ? TaughtRow<S>(args.logits, args.teacher, i).loss(plain) : plain;
  });
  store_sum(stream, args.sum, loss, false);
  store_sum(stream, args.weight, sum_over_rows([](int64_t) { return 1; }), false);
}

/// The seed is read on the device: the host does not know the loss scale and the weight.
template <class S>
void class_loss_backward_of(const ClassLossBackward& args, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t classes = args.logits.width();
  const int64_t rows = args.rows.value();
  const S* logits = args.logits.data<S>();
  const int32_t* labels = args.labels.data<int32_t>();
  const uint8_t* mask = args.mask.data<uint8_t>();
  const float* weights = args.class_weights.data_or_null<float>();
  S* d_logits = args.d_logits.data<S>();
  stream.parallel_for((rows + kSumSlab - 1) / kSumSlab, [&](int64_t slab) {
    const auto seed = static_cast<A>(*args.seed.data<double>());
    for (int64_t i = slab * kSumSlab; i < std::min(rows, (slab + 1) * kSumSlab); ++i) {
      S* const to = d_logits + i * classes;
      if (mask[i] == 0) {
        std::fill(to, to + classes, S());
        continue;
      }
      const ClassRow<S> row(logits + i * classes, classes);
      const A scale = row.has(labels[i]) ? seed * static_cast<A>(weight_of(weights, labels[i], classes))
                                         : std::numeric_limits<A>::quiet_NaN();
      const auto plain = [&](int64_t c) { return row.share(c) - (c == labels[i] ? A(1) : A(0)); };
      if (args.teacher.values.defined()) {
        const TaughtRow<S> taught(args.logits, args.teacher, i);
        for (int64_t c = 0; c < classes; ++c) to[c] = S(scale * taught.gradient(c, plain(c)));
        continue;
      }
      for (int64_t c = 0; c < classes; ++c) to[c] = S(scale * plain(c));
    }
  });
}

}  // namespace

const ClassLossKernels class_loss_kernels{
    .class_loss_forward =
        [](const ClassLossForward& args, Runtime&, const Stream& stream) {
          dispatch_cpu_storage(args.logits.dtype(),
                               [&]<class S>() { class_loss_forward_of<S>(args, stream); });
        },
    .class_loss_backward =
        [](const ClassLossBackward& args, const Stream& stream) {
          dispatch_cpu_storage(args.logits.dtype(),
                               [&]<class S>() { class_loss_backward_of<S>(args, stream); });
        },
};

}  // namespace meshgrad::cpu
