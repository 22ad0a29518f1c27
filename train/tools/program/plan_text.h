// SPDX-License-Identifier: Apache-2.0
// A memory plan as text and as JSON.
#pragma once
#include <meshgrad/train/learn/planning/plan.h>

#include <string>

namespace meshgrad {

std::string to_text(const MemoryPlan& plan);
std::string to_json(const MemoryPlan& plan);
/// The launches that `plan.time`, which is there, is the sum of: a line each, with GFLOP and GB of
/// one launch in the mean and times of all, and the sums of the step's parts.
std::string launches_text(const MemoryPlan& plan);

}  // namespace meshgrad
