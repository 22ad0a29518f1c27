// SPDX-License-Identifier: Apache-2.0
// One target field of one frame: prediction, truth and error, as files and pictures show them.
#pragma once
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/tools/program/field_picture.h>

#include <cstdint>
#include <string>
#include <vector>

namespace meshgrad {

/// Values [nodes, components]; without truth there is no error either.
struct FieldFrame {
  FieldInfo info;
  std::vector<float> ours, truth, error;
};

/// The fields in rows [nodes, outputs]. `truth` may be empty.
std::vector<FieldFrame> split_fields(const FieldSelection& selection, const std::vector<float>& ours,
                                     const std::vector<float>& truth);

/// The colour bar of values far from zero would show them all alike: they are drawn less the field's offset.
std::string caption_with_offset(std::string caption, const FieldInfo& field);
/// The picture of a field with truth (draw_comparison, `width` in pixels); `mask` as
/// ComparisonText::predicted.
std::string draw_field(const MeshView& mesh, const FieldFrame& field, const std::vector<uint8_t>& mask,
                       std::string caption, int width = 1200);

}  // namespace meshgrad
