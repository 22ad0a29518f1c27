// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/nn/normalizer.h>

namespace meshgrad {

Normalizer Normalizer::fixed(const std::vector<double>& mean, const std::vector<double>& standard_deviation) {
  check_internal(mean.size() == standard_deviation.size(), "as many deviations as means");
  Normalizer result(mean.size());
  for (size_t i = 0; i < mean.size(); ++i) {
    result.columns_[i] = {1.0, mean[i], standard_deviation[i] * standard_deviation[i]};
  }
  return result;
}

double Normalizer::standard_deviation(size_t column) const {
  const double deviation = columns_[column].standard_deviation();
  return deviation > kSmallestDeviation ? deviation : 1.0;
}

template <class T>
void Normalizer::accumulate(std::span<const T> rows) {
  const size_t n = width() == 0 ? 0 : rows.size() / width();
  if (n == 0) return;
  for (size_t column = 0; column < width(); ++column) {
    Moments batch{static_cast<double>(n), 0.0, 0.0};
    for (size_t i = 0; i < n; ++i) batch.mean += static_cast<double>(rows[i * width() + column]);
    batch.mean /= batch.count;
    for (size_t i = 0; i < n; ++i) {
      const double d = static_cast<double>(rows[i * width() + column]) - batch.mean;
      batch.m2 += d * d;
    }
    // Moments::merge in another order of operations: the bits of resumed runs depend on it.
    Moments& known = columns_[column];
    const double total = known.count + batch.count;
    const double shift = batch.mean - known.mean;
    known.m2 += batch.m2 + shift * shift * known.count * batch.count / total;
    known.mean += shift * batch.count / total;
    known.count = total;
  }
}

template <class T>
void Normalizer::normalize(std::span<T> rows) const {
  for (size_t column = 0; column < width(); ++column) {
    const double mean = columns_[column].mean;
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
      rows[i] = static_cast<T>(static_cast<double>(rows[i]) * scale + columns_[column].mean);
    }
  }
}

std::vector<double> Normalizer::means() const {
  std::vector<double> values;
  for (const Moments& column : columns_) values.push_back(column.mean);
  return values;
}

std::vector<double> Normalizer::squared_deviations() const {
  std::vector<double> values;
  for (const Moments& column : columns_) values.push_back(column.m2);
  return values;
}

void Normalizer::restore(double count, const std::vector<double>& means,
                         const std::vector<double>& squared_deviations) {
  check_internal(means.size() == width() && squared_deviations.size() == width(),
                 "a normalizer of another width");
  for (size_t i = 0; i < width(); ++i) columns_[i] = {count, means[i], squared_deviations[i]};
}

template void Normalizer::accumulate<float>(std::span<const float>);
template void Normalizer::accumulate<double>(std::span<const double>);
template void Normalizer::normalize<float>(std::span<float>) const;
template void Normalizer::normalize<double>(std::span<double>) const;
template void Normalizer::denormalize<float>(std::span<float>) const;
template void Normalizer::denormalize<double>(std::span<double>) const;

}  // namespace meshgrad
