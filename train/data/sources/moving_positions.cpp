// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/sources/moving_positions.h>
#include <meshgrad/train/data/value_offset.h>

namespace meshgrad {

void add_world_position(RawTrajectory& trajectory, int components, std::vector<float> all,
                        std::vector<double> wide) {
  if (std::ranges::any_of(trajectory.fields,
                          [](const RawField& field) { return field.name == kWorldPosition; })) {
    throw data_error(trajectory.name, fmt::format("positions over frames, or a field \"{}\"", kWorldPosition),
                     "both", "rename that field, or give the positions of one frame, at rest");
  }
  RawField field;
  field.name = kWorldPosition;
  field.components = components;
  field.values = std::move(all);
  if (!wide.empty() && is_coarse_in_f32(wide, components)) field.wide = std::move(wide);
  trajectory.fields.push_back(std::move(field));
}

}  // namespace meshgrad
