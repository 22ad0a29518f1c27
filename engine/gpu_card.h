// SPDX-License-Identifier: Apache-2.0
// What is known of a GPU without having one: what decides which kernels run, how much memory there is, and
// the peaks that bound the time of work. For plans.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/gpu.h>

#include <string>
#include <string_view>
#include <vector>

namespace meshgrad::gpu {

/// As NVIDIA states it; sources are in gpu_card.cpp. Rates are without sparsity, 0 where the GPU has none.
struct Card {
  std::string_view name;
  int capability = 0;  ///< as compute_capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0;      ///< of 10^9 a GB, which is a little less than its driver reports
  double bytes_per_s = 0.0;      ///< of its memory
  double flops_per_s_f16 = 0.0;  ///< on tensor cores, accumulated in f32
  double flops_per_s_bf16 = 0.0;
  double flops_per_s_tf32 = 0.0;
  double flops_per_s_f32 = 0.0;  ///< without tensor cores

  MultiprocessorMemory multiprocessor_memory() const;
  int shared_bytes() const;  ///< as gpu::shared_bytes
  /// Of products of values stored so; those that tensor cores do not take are computed in f32.
  double flops_per_s(DType storage, bool tf32) const;
};

/// By name: "a100" (80 GB), "rtx4090", ... Throws InvalidArgument for another.
const Card& card(std::string_view name);
std::vector<std::string> card_names();
/// The card with the capability, multiprocessors and memory of a device; null: none.
const Card* card_of(int capability, int multiprocessors, int64_t memory_bytes);

/// While it lives, the functions of gpu.h that say what a device is made of say it of this card to the
/// calling thread, whatever devices there are: dry runs then plan for it. Null changes nothing.
class PlannedCard {
 public:
  explicit PlannedCard(const Card* card);
  ~PlannedCard();
  PlannedCard(const PlannedCard&) = delete;
  PlannedCard& operator=(const PlannedCard&) = delete;

 private:
  const Card* previous_;
};
/// The calling thread's; null without one.
const Card* planned_card();
/// What dry runs take where no card is named and there is no device: an H200.
const Card& default_card();

}  // namespace meshgrad::gpu
