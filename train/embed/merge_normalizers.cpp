// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/embed/merge_normalizers.h>

namespace meshgrad {
namespace {

/// Count, means and squared deviations of each.
std::vector<double> numbers_in(const Normalizers& normalizers) {
  std::vector<double> numbers;
  normalizers.each([&](const char*, const Normalizer& one) {
    numbers.push_back(one.count());
    for (const double mean : one.means()) numbers.push_back(mean);
    for (const double m2 : one.squared_deviations()) numbers.push_back(m2);
  });
  return numbers;
}

void add(Normalizer& normalizer, std::span<const double>& numbers) {
  std::vector<double> means = normalizer.means(), m2 = normalizer.squared_deviations();
  double count = normalizer.count();
  for (size_t i = 0; i < means.size(); ++i) {
    Moments moments{normalizer.count(), means[i], m2[i]};
    moments.merge({numbers[0], numbers[1 + i], numbers[1 + means.size() + i]});
    means[i] = moments.mean;
    m2[i] = moments.m2;
    count = moments.count;
  }
  normalizer.restore(count, means, m2);
  numbers = numbers.subspan(1 + 2 * means.size());
}

}  // namespace

void merge_normalizers(Ranks& ranks, Normalizers& learned, Normalizers& merged) {
  const std::vector<double> mine = numbers_in(learned);
  std::vector<std::vector<double>> all(static_cast<size_t>(ranks.size()), mine);
  std::vector<std::span<std::byte>> parts;
  for (std::vector<double>& one : all) parts.push_back(std::as_writable_bytes(std::span(one)));
  all_gather_bytes(ranks, parts, "statistics of normalisers");
  for (const std::vector<double>& one : all) {
    std::span<const double> numbers = one;
    merged.each([&](const char*, Normalizer& to) { add(to, numbers); });
  }
  learned.each([](const char*, Normalizer& one) { one = Normalizer(one.width()); });
}

}  // namespace meshgrad
