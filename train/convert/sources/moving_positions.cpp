// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/moving_positions.h>
#include <meshgrad/train/data/value_offset.h>

namespace meshgrad {

void add_world_position(RawTrajectory& trajectory, int components, std::vector<float> all,
                        std::vector<double> wide) {
  if (std::ranges::any_of(trajectory.fields,
                          [](const RawField& field) { return field.name == kWorldPosition; })) {
    throw data_error(trajectory.name, fmt::format("positions over frames, or a field \"{}\"", kWorldPosition),
                     fmt::format("positions over frames and a field \"{}\"", kWorldPosition),
                     "rename that field, or give the positions of one frame, at rest");
  }
  RawField field;
  field.name = kWorldPosition;
  field.components = components;
  field.values = std::move(all);
  if (!wide.empty() && is_coarse_in_f32(wide, components)) field.wide = std::move(wide);
  trajectory.fields.push_back(std::move(field));
}

void add_displaced_positions(RawTrajectory& t, const std::string& name) {
  const auto found = std::ranges::find(t.fields, name, &RawField::name);
  const bool known = found != t.fields.end();
  const auto* moved = known ? std::get_if<std::vector<float>>(&found->values) : nullptr;
  if (moved == nullptr || found->on != FieldOn::node ||
      (found->components != t.dim && found->components != 3)) {
    throw data_error(fmt::format("{}: field {}", t.name, name),
                     fmt::format("displacements: {} floats at each node", t.dim == 2 ? "2 or 3" : "3"),
                     !known             ? "a missing field"
                     : moved == nullptr ? "integers"
                                        : fmt::format("{} on {}s", found->components, name_of(found->on)),
                     "name another field, or \"none\": --displacement");
  }
  const auto dim = static_cast<size_t>(t.dim), width = static_cast<size_t>(found->components);
  const auto nodes = static_cast<size_t>(t.nodes);
  const bool is_wide = !t.wide_positions.empty() || !found->wide.empty();
  std::vector<float> all;
  std::vector<double> wide;
  all.reserve(moved->size());
  for (size_t i = 0; i < moved->size(); ++i) {
    const size_t node = i / width % nodes, axis = i % width;
    double at = 0.0;  // of a plane, whose third coordinate is left out
    if (axis < dim) {
      const size_t place = node * dim + axis;
      at = t.wide_positions.empty() ? static_cast<double>(t.positions[place]) : t.wide_positions[place];
    }
    const double sum = at + (found->wide.empty() ? static_cast<double>((*moved)[i]) : found->wide[i]);
    all.push_back(static_cast<float>(sum));
    if (!std::isfinite(all.back())) {
      throw data_error(fmt::format("{}: field {}, frame {}, node {}", t.name, name, i / width / nodes, node),
                       "a position plus its displacement that float32 can hold", fmt::format("{:g}", sum),
                       "correct the file, or leave the field out: --displacement none");
    }
    if (is_wide) wide.push_back(sum);
  }
  const bool dynamic = found->dynamic;
  const std::string unit = found->unit;
  add_world_position(t, found->components, std::move(all), std::move(wide));
  t.fields.back().dynamic = dynamic;
  t.fields.back().unit = unit;
}

std::string find_displacement(const RawTrajectory& t) {
  constexpr std::array kNames{"displacement", "displacements", "disp", "disp_", "depl"};
  std::string name;
  for (const RawField& field : t.fields) {
    if (field.name == kWorldPosition) return "";
    std::string lower = field.name;
    std::ranges::transform(lower, lower.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; });
    const bool fits = field.on == FieldOn::node && field.dynamic && t.frames > 1 &&
                      std::holds_alternative<std::vector<float>>(field.values) &&
                      (field.components == t.dim || field.components == 3);
    if (name.empty() && fits && std::ranges::find(kNames, lower) != kNames.end()) name = field.name;
  }
  return name;
}

}  // namespace meshgrad
