// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/nn/normalizer.h>

#include <cmath>

namespace meshgrad {

Normalizer Normalizer::fixed(std::vector<double> mean, const std::vector<double>& standard_deviation) {
  check_internal(mean.size() == standard_deviation.size(), "as many deviations as means");
  Normalizer result(mean.size());
  result.mean_ = std::move(mean);
  result.count_ = 1.0;
  for (size_t i = 0; i < standard_deviation.size(); ++i) {
    result.deviation_[i] = standard_deviation[i] * standard_deviation[i];
  }
  return result;
}

double Normalizer::standard_deviation(size_t column) const {
  const double deviation = count_ > 0.0 ? std::sqrt(deviation_[column] / count_) : 0.0;
  return deviation > kSmallestDeviation ? deviation : 1.0;
}

template <class T>
void Normalizer::accumulate(std::span<const T> rows) {
  const size_t n = width() == 0 ? 0 : rows.size() / width();
  if (n == 0) return;
  for (size_t column = 0; column < width(); ++column) {
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) sum += static_cast<double>(rows[i * width() + column]);
    const double mean = sum / static_cast<double>(n);
    double squares = 0.0;
    for (size_t i = 0; i < n; ++i) {
      const double d = static_cast<double>(rows[i * width() + column]) - mean;
      squares += d * d;
    }
    const double total = count_ + static_cast<double>(n);
    const double shift = mean - mean_[column];
    mean_[column] += shift * static_cast<double>(n) / total;
    deviation_[column] += squares + shift * shift * count_ * static_cast<double>(n) / total;
  }
  count_ += static_cast<double>(n);
}

template <class T>
void Normalizer::normalize(std::span<T> rows) const {
  for (size_t column = 0; column < width(); ++column) {
    const double mean = mean_[column];
    const double scale = 1.0 / standard_deviation(column);
    for (size_t i = column; i < rows.size(); i += width()) {
      rows[i] = static_cast<T>((static_cast<double>(rows[i]) - mean) * scale);
    }
  }
}

template <class T>
void Normalizer::denormalize(std::span<T> rows) const {
  for (size_t column = 0; column < width(); ++column) {
    const double scale = standard_deviation(column);
    for (size_t i = column; i < rows.size(); i += width()) {
      rows[i] = static_cast<T>(static_cast<double>(rows[i]) * scale + mean_[column]);
    }
  }
}

void Normalizer::restore(double count, std::vector<double> means, std::vector<double> squared_deviations) {
  check_internal(means.size() == width() && squared_deviations.size() == width(),
                 "a normalizer of another width");
  count_ = count;
  mean_ = std::move(means);
  deviation_ = std::move(squared_deviations);
}

template void Normalizer::accumulate<float>(std::span<const float>);
template void Normalizer::accumulate<double>(std::span<const double>);
template void Normalizer::normalize<float>(std::span<float>) const;
template void Normalizer::normalize<double>(std::span<double>) const;
template void Normalizer::denormalize<float>(std::span<float>) const;
template void Normalizer::denormalize<double>(std::span<double>) const;

}  // namespace meshgrad
