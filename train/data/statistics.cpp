// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <meshgrad/train/data/statistics.h>

namespace meshgrad {
namespace {

// Value, change or second change of entry `at` (one number of frame t), in double.
double quantity_of(Quantity quantity, const float* at, int64_t frame_size) {
  switch (quantity) {
    case Quantity::change:
      return static_cast<double>(at[frame_size]) - static_cast<double>(at[0]);
    case Quantity::second_change:
      return static_cast<double>(at[frame_size]) - 2.0 * static_cast<double>(at[0]) +
             static_cast<double>(at[-frame_size]);
    case Quantity::value:
      break;
  }
  return static_cast<double>(at[0]);
}

}  // namespace

void Moments::add(double value, double weight) {
  if (weight <= 0) return;
  count += weight;
  const double delta = value - mean;
  mean += delta * (weight / count);
  m2 += weight * delta * (value - mean);
}

void Moments::merge(const Moments& other) {
  if (other.count <= 0) return;
  const double total = count + other.count;
  const double delta = other.mean - mean;
  m2 += other.m2 + delta * delta * (count * (other.count / total));
  mean += delta * (other.count / total);
  count = total;
}

double Moments::standard_deviation() const { return count > 0 ? std::sqrt(m2 / count) : 0.0; }

void FieldMoments::add(std::span<const float> values, std::span<const int32_t> node_type, int64_t frames) {
  const auto nodes = static_cast<int64_t>(node_type.size());
  const int64_t frame_size = nodes * components;
  const auto slots = static_cast<size_t>(kNodeTypes * components);
  std::vector<double> sum(slots);
  std::vector<double> count(slots);
  std::vector<double> square(slots);
  // Calls f(place in the frame, slot of its type and component).
  const auto for_each_number = [&](auto f) {
    int64_t i = 0;
    for (const int32_t type : node_type) {
      const auto first = static_cast<size_t>(type * components);
      for (size_t c = 0; c < static_cast<size_t>(components); ++c) f(i++, first + c);
    }
  };
  for (int q = 0; q < kQuantities; ++q) {
    const auto quantity = static_cast<Quantity>(q);
    const int64_t first = quantity == Quantity::second_change ? 1 : 0;
    const int64_t last = quantity == Quantity::value ? frames : frames - 1;
    for (int64_t t = first; t < last; ++t) {
      // Two passes over a frame that lies in cache: no division a number, and no cancellation.
      const float* frame = values.data() + t * frame_size;
      sum.assign(slots, 0.0);
      count.assign(slots, 0.0);
      square.assign(slots, 0.0);
      for_each_number([&](int64_t i, size_t slot) {
        sum[slot] += quantity_of(quantity, frame + i, frame_size);
        count[slot] += 1;
      });
      for (size_t slot = 0; slot < slots; ++slot) sum[slot] = count[slot] > 0 ? sum[slot] / count[slot] : 0.0;
      for_each_number([&](int64_t i, size_t slot) {
        const double delta = quantity_of(quantity, frame + i, frame_size) - sum[slot];
        square[slot] += delta * delta;
      });
      Moments* to = &at(quantity, 0, 0);
      for (size_t slot = 0; slot < slots; ++slot) to[slot].merge({count[slot], sum[slot], square[slot]});
    }
  }
}

}  // namespace meshgrad
