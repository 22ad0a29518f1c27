// SPDX-License-Identifier: Apache-2.0
// Options of the caching allocator, and the environment variable that sets them.
#pragma once
#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Upper limit of AllocatorOptions::history. Memory for all events is allocated at once, 40 bytes each.
inline constexpr int64_t kMaxHistory = 100'000'000;

struct AllocatorOptions {
  /// Bytes that may be mapped at once: leaves room for other programs, or simulates a smaller GPU. 0: the
  /// source's capacity.
  int64_t memory_limit = 0;
  /// Grow one address range page by page, if the source can. False: a new segment at each growth, by plain
  /// cudaMalloc, for libraries that cannot register mapped memory.
  bool expandable_segments = true;
  /// Fraction of the limit above which cached memory is unmapped before more is mapped; 0: only when memory
  /// runs short. For host applications that share the device; each release waits for the device.
  double garbage_collection_threshold = 0.0;
  /// Unmap cached memory after every n steps of a trainer; 0: never. Costs a wait for the device and mapping
  /// the same memory again. For codes that share the device with a solver between steps.
  int64_t release_cached_every = 0;
  /// Precompute offsets for the allocations of a trainer's steps, per class of batch sizes (StepPlan), so
  /// that little more is mapped than lives at once.
  bool plan_steps = false;
  /// Number of last events that the history holds, up to kMaxHistory; 0: none.
  int64_t history = 0;
};

/// The environment variable that sets options.
inline constexpr const char* kAllocatorVariable = "MESHGRAD_ALLOC_CONF";

/// `defaults` with the changes of "key:value,key:value". Keys are the members of AllocatorOptions;
/// memory_limit takes units (8GiB), booleans are True or False. Throws ConfigError for anything else; for
/// settings of PyTorch that have no counterpart, the error says what to use instead, or why none is needed.
AllocatorOptions parse_allocator_options(std::string_view text, AllocatorOptions defaults = {});

/// Parses the text of MESHGRAD_ALLOC_CONF; returns `defaults` when it is not set.
AllocatorOptions allocator_options_from_environment(AllocatorOptions defaults = {});

}  // namespace meshgrad
#pragma GCC visibility pop
