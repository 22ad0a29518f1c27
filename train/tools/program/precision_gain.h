// SPDX-License-Identifier: Apache-2.0
// What 16 bits would save on a GPU of a step in f32, the default, by the numbers of a plan.
#pragma once
#include <meshgrad/train/tools/program/memory_plan.h>

#include <optional>
#include <string>
#include <string_view>

namespace meshgrad {

struct PrecisionChoice {
  DType precision = DType::f32;
  int64_t reserved = 0;            ///< predicted for a step
  std::optional<StepBound> bound;  ///< of a step, at the stated peaks of a card
};
/// One sentence; empty where the second choice has not two thirds of the first one's time, or without bounds
/// of its memory.
std::string precision_gain(const PrecisionChoice& now, const PrecisionChoice& then, std::string_view card);

/// The same of a run that begins on `device`, for its largest batch, or with train.batch = "auto" for one
/// sample. Empty on a CPU, in 16 bits and for meshes in parts; what is wrong with the data the run says.
std::string precision_gain(const Config& config, Device device);

}  // namespace meshgrad
