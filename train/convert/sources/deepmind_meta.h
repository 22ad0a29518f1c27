// SPDX-License-Identifier: Apache-2.0
// meta.json of DeepMind's mesh data sets: which fields there are, their types and shapes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

enum class FeatureKind { fixed, dynamic, dynamic_varlen };  ///< "static", "dynamic", "dynamic_varlen"
enum class NumberType { float32, float64, int32, int64 };
size_t number_bytes(NumberType type);

struct DeepmindFeature {
  std::string name;
  FeatureKind kind = FeatureKind::fixed;
  NumberType type = NumberType::float32;
  int64_t components = 1;  ///< product of the last dimensions
  int64_t frames = -1;     ///< first of three dimensions; -1 when open
  int64_t nodes = -1;      ///< -1 when open
  std::string unit;
};

struct DeepmindMeta {
  std::vector<DeepmindFeature> features;  ///< in the order of field_names
  int64_t trajectory_length = -1;         ///< -1 when not given
  double dt = 0;
};

/// Two known faults are repaired with a warning: a dtype spelt "<dtype: 'float32'>", and (found later, from
/// the data) sizing_field of shape [-1, 4] that has 3 components. Throws DataError naming the file and the
/// key otherwise.
DeepmindMeta parse_deepmind_meta(std::string_view json, std::string_view where, const WarningCallback& warn);

}  // namespace meshgrad
