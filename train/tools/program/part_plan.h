// SPDX-License-Identifier: Apache-2.0
// meshgrad plan --ranks: what each rank takes of memory, and sends, when meshes are cut into parts.
#pragma once
#include <meshgrad/train/tools/program/memory_plan.h>

#include <string>
#include <vector>

namespace meshgrad {

/// The part of one rank, of a batch of the largest mesh.
struct PlannedPart {
  int64_t nodes = 0, edges = 0;  ///< that it owns
  int64_t ghosts = 0;            ///< rows that it fetches before each block
  int64_t sent = 0;              ///< rows that it sends then
  int64_t neighbours = 0;        ///< ranks with which it exchanges rows
  int64_t halo_bytes = 0;        ///< sent to them in a step, forward and backward
  StepMemory memory;             ///< predicted
};

struct PartsPlan {
  Device device;
  std::string gpu;  ///< the card that was named to plan for; empty: none
  int64_t batch = 0;
  MemoryRoom room;
  int64_t usable = 0;  ///< what a step of a rank may take
  bool fits = false;   ///< the step of every rank does
  std::vector<PlannedPart> parts;
  int64_t gradient_bytes = 0;  ///< that a rank sends in a step for the sum of gradients
};

/// A step of `config` on this many ranks, each with the memory of `options`. It cuts the largest mesh of the
/// training split. Throws ConfigError where meshes are not cut (ranks.partition) and for train.batch =
/// "auto", InvalidArgument for options without data or that measure, and what plan_memory throws.
PartsPlan plan_parts(const Config& config, const PlanOptions& options, int64_t ranks);

std::string to_text(const PartsPlan& plan);
std::string to_json(const PartsPlan& plan);

}  // namespace meshgrad
