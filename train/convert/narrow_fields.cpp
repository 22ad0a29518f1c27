// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/narrow_fields.h>
#include <meshgrad/train/convert/sources/moving_positions.h>

namespace meshgrad {
namespace {

template <class T>
void drop_third(std::vector<T>& values) {
  size_t to = 0;
  for (size_t i = 0; i < values.size(); ++i)
    if (i % 3 != 2) values[to++] = values[i];
  values.resize(to);
}

void drop_third(RawField& field) {
  std::visit([](auto& values) { drop_third(values); }, field.values);
  drop_third(field.wide);
  field.components = 2;
}

/// Throws for nan where a component of numbers is empty.
void check_third(const RawField& field, const std::string& place) {
  const auto* values = std::get_if<std::vector<float>>(&field.values);
  for (size_t i = 2; values != nullptr && i < values->size(); i += 3) {
    if (!std::isnan((*values)[i])) continue;
    throw data_error(fmt::format("{}: field {}", place, field.name),
                     "numbers in the third component, as another trajectory has", "nan at every node",
                     "save 0 there if that is its value, or convert data in 2-D apart");
  }
}

void keep_first_frame(RawField& field, int64_t frames) {
  const auto size = static_cast<std::ptrdiff_t>(field.size()) / frames;
  std::visit([&](auto& values) { values.erase(values.begin() + size, values.end()); }, field.values);
  if (!field.wide.empty()) field.wide.resize(static_cast<size_t>(size));
  field.dynamic = false;
}

}  // namespace

void FieldWidths::narrow(RawTrajectory& t) {
  const bool changes =
      std::ranges::any_of(t.fields, [](const RawField& field) { return field.dynamic && !field.repeats; });
  for (RawField& field : t.fields) {
    const bool whole = whole_.contains(field.name);
    if (first_ && field.third_is_empty && !whole) flat_.insert(field.name);
    if (first_ && field.repeats && changes && !whole) still_.insert(field.name);
    const bool flat = flat_.contains(field.name), still = still_.contains(field.name);
    if ((flat && field.components == 3 && !field.third_is_empty) ||
        (still && field.dynamic && !field.repeats))
      throw WiderField{field.name};
    if (field.third_is_empty) flat ? drop_third(field) : check_third(field, t.name);
    if (field.repeats && still && t.frames > 0) keep_first_frame(field, t.frames);
  }
  // Positions at rest in every frame are the mesh's.
  std::erase_if(t.fields, [&](const RawField& field) {
    return field.name == kWorldPosition && field.repeats && still_.contains(field.name);
  });
  first_ = false;
}

std::vector<std::string> FieldWidths::notes(const std::string& place) const {
  std::vector<std::string> notes;
  for (const std::string& name : still_) {
    notes.push_back(fmt::format("[{}] {} the same in all frames{}", place,
                                name == kWorldPosition ? "positions are" : name + " is",
                                name == kWorldPosition ? ": the mesh does not move" : ": read as static"));
  }
  return notes;
}

}  // namespace meshgrad
