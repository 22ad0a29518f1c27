// SPDX-License-Identifier: Apache-2.0
// A memory plan as text and as JSON.
#pragma once
#include <meshgrad/train/tools/program/memory_plan.h>

#include <string>

namespace meshgrad {

std::string to_text(const MemoryPlan& plan);
std::string to_json(const MemoryPlan& plan);

}  // namespace meshgrad
