// SPDX-License-Identifier: Apache-2.0
// What can be chosen about the caching allocator, and how the environment chooses it.
#pragma once
#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Most events that a setting may ask the history to keep; room for all of them is taken at once.
inline constexpr int64_t kMostHistory = 100'000'000;

struct AllocatorOptions {
  /// Bytes that may be mapped at once: simulates a smaller card, or leaves room for others on it. 0: all that
  /// the source has.
  int64_t memory_limit = 0;
  /// Grow one range of addresses page by page where the source can. False: a new segment at each growth, as
  /// plain cudaMalloc gives, for libraries that cannot register mapped memory.
  bool expandable_segments = true;
  /// Fraction of the limit above which unused memory is given back before more is mapped; 0: never, only when
  /// memory runs short. For a device shared with another program; each release waits for the device.
  double garbage_collection_threshold = 0.0;
  /// Give unused memory back after every n steps of a trainer; 0: never. Costs a wait for the device and the
  /// mapping of the same memory again; for codes that share the device with a solver between steps.
  int64_t release_cached_every = 0;
  /// A trainer's steps on batches of like sizes take their memory at places computed from the first of them
  /// (StepPlan): little more is mapped than lives at once.
  bool plan_steps = false;
  /// Events that the history keeps; 0: none.
  int64_t history = 0;
};

/// Name of the environment variable that holds such settings.
inline constexpr const char* kAllocatorVariable = "MESHGRAD_ALLOC_CONF";

/// `defaults`, changed by "key:value,key:value" with the names of AllocatorOptions; memory_limit takes units
/// (8GiB), expandable_segments takes True or False. Throws ConfigError for anything else; for the names of
/// PyTorch's settings that have no counterpart it says what to use instead, or why none is needed.
AllocatorOptions parse_allocator_options(std::string_view text, AllocatorOptions defaults = {});

/// The same with the text of MESHGRAD_ALLOC_CONF; `defaults` when it is not set.
AllocatorOptions allocator_options_from_environment(AllocatorOptions defaults = {});

}  // namespace meshgrad
#pragma GCC visibility pop
