// SPDX-License-Identifier: Apache-2.0
// What a plan says of a teacher: on the device, in host memory, or cached.
#pragma once
#include <meshgrad/train/tools/program/memory_plan.h>

#include <string>

namespace meshgrad {

/// The memory of the plan's step, and on a GPU its least time, for each place where the teacher of `step` can
/// be, and which is best: the cache, unless it is refused; else the device, unless the step does not fit so.
/// Empty without a teacher. `data`: whether the task's sizes are those of data, of which a cache has rows.
std::string teacher_note(const MemoryPlan& plan, const StepProbe& probe, const Config& step, const Task& task,
                         bool data);

}  // namespace meshgrad
