// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/tools/program/field_frame.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace meshgrad {
namespace {

/// Columns [first, first + count) of rows of `width` values.
std::vector<float> columns(const std::vector<float>& rows, size_t width, size_t first, size_t count) {
  std::vector<float> result;
  for (size_t row = 0; row + width <= rows.size(); row += width) {
    for (size_t c = 0; c < count; ++c) result.push_back(rows[row + first + c]);
  }
  return result;
}

}  // namespace

std::vector<FieldFrame> split_fields(const FieldSelection& selection, const std::vector<float>& ours,
                                     const std::vector<float>& truth) {
  std::vector<FieldFrame> fields;
  const auto width = static_cast<size_t>(selection.outputs);
  size_t first = 0;
  for (const FieldInfo& info : selection.targets) {
    const auto count = static_cast<size_t>(info.components);
    FieldFrame field{info, columns(ours, width, first, count), columns(truth, width, first, count), {}};
    for (size_t i = 0; i < field.truth.size(); ++i) field.error.push_back(field.ours[i] - field.truth[i]);
    fields.push_back(std::move(field));
    first += count;
  }
  return fields;
}

std::string caption_with_offset(std::string caption, const FieldInfo& field) {
  if (!field.offset.empty()) caption += fmt::format(", less {}", fmt::join(field.offset, ", "));
  return caption;
}

std::string draw_field(const MeshView& mesh, const FieldFrame& field, const std::vector<uint8_t>& mask,
                       std::string caption, int width) {
  return draw_comparison(mesh, {field.info.name, field.info.components, field.ours},
                         {field.info.name, field.info.components, field.truth},
                         {caption_with_offset(std::move(caption), field.info), field.info.unit, mask}, width);
}

}  // namespace meshgrad
