// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu_card.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace meshgrad::gpu {
namespace {

constexpr int64_t kGB = 1'000'000'000;

// Sources. Capabilities: NVIDIA's list of CUDA GPUs (developer.nvidia.com/cuda-gpus). Multiprocessors where a
// sheet has none: its CUDA cores over those of a multiprocessor, 64 (7.5, 8.0) or 128.
// - t4: data sheet of the T4 (2019) and product brief PB-09256: 2,560 cores, 16 GB, up to 320 GB/s. No tensor
//   cores for bf16 and TF32.
// - rtx4070: product page of the GeForce RTX 4070 for desktops: 5,888 cores at a boost clock of 2.475 GHz,
//   12 GB, 504 GB/s. Rates: the RTX 4090's per core and clock, as NVIDIA states only that of shaders.
// - rtx4090: white paper "NVIDIA Ada GPU Architecture" v2.01: 128 multiprocessors; f16 "with FP32
// accumulate".
// - l40s: data sheet of the L40S (2023): 18,176 cores.
// - a100: data sheet of the A100 80GB, SXM; white paper "NVIDIA A100 Tensor Core GPU Architecture": 108.
// - h100: data sheet of the H100, SXM; white paper "NVIDIA H100 Tensor Core GPU Architecture": 132.
// - h200: data sheet of the H200, SXM; the multiprocessors of the H100.
// - b200: data sheet of the DGX B200 for memory (an eighth of it); "NVIDIA Blackwell Architecture Technical
//   Brief" for rates, HGX B200. NVIDIA's sheets say nothing of multiprocessors: 148 is what the CUDA runtime
//   reports of one.
constexpr std::array<Card, 8> kCards{{
    {"t4", 75, 40, 16 * kGB, 320e9, 65e12, 0.0, 0.0, 8.1e12},
    {"rtx4070", 89, 46, 12 * kGB, 504e9, 58.3e12, 58.3e12, 29.1e12, 29.1e12},
    {"rtx4090", 89, 128, 24 * kGB, 1.008e12, 165.2e12, 165.2e12, 82.6e12, 82.6e12},
    {"l40s", 89, 142, 48 * kGB, 864e9, 362.05e12, 362.05e12, 183e12, 91.6e12},
    {"a100", 80, 108, 80 * kGB, 2.039e12, 312e12, 312e12, 156e12, 19.5e12},
    {"h100", 90, 132, 80 * kGB, 3.35e12, 989e12, 989e12, 494e12, 67e12},
    {"h200", 90, 132, 141 * kGB, 4.8e12, 989e12, 989e12, 494e12, 67e12},
    {"b200", 100, 148, 180 * kGB, 8e12, 2.25e15, 2.25e15, 1.1e15, 80e12},
}};

const Card*& current_card() {
  thread_local const Card* card = nullptr;
  return card;
}

}  // namespace

/// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
MultiprocessorMemory Card::multiprocessor_memory() const {
  switch (capability) {
    case 75:
      return {.bytes = 64 * 1024, .reserved_per_block = 0};
    case 80:
      return {.bytes = 164 * 1024, .reserved_per_block = 1024};
    case 89:
      return {.bytes = 100 * 1024, .reserved_per_block = 1024};
    default:  // 9.0 and 10.0
      return {.bytes = 228 * 1024, .reserved_per_block = 1024};
  }
}

int Card::shared_bytes() const {
  const MultiprocessorMemory memory = multiprocessor_memory();
  return memory.bytes - memory.reserved_per_block;
}

double Card::flops_per_s(DType storage, bool tf32) const {
  const double tensor_cores = storage == DType::f16    ? flops_per_s_f16
                              : storage == DType::bf16 ? flops_per_s_bf16
                              : tf32                   ? flops_per_s_tf32
                                                       : 0.0;
  return tensor_cores > 0.0 ? tensor_cores : flops_per_s_f32;
}

const Card& card(std::string_view name) {
  const auto* const found =
      std::find_if(kCards.begin(), kCards.end(), [&](const Card& card) { return card.name == name; });
  if (found == kCards.end()) {
    throw invalid_argument("GPU", fmt::format("\"{}\"", fmt::join(card_names(), "\", \"")),
                           fmt::format("\"{}\"", name), "name one of these");
  }
  return *found;
}

std::vector<std::string> card_names() {
  std::vector<std::string> names;
  for (const Card& card : kCards) names.emplace_back(card.name);
  return names;
}

const Card* card_of(int capability, int multiprocessors, int64_t memory_bytes) {
  constexpr double kTolerance = 0.1;  // of what is stated: ECC takes some, and a GB may be 2^30 bytes
  for (const Card& card : kCards) {
    const double difference = static_cast<double>(memory_bytes - card.memory_bytes);
    if (card.capability == capability && card.multiprocessors == multiprocessors &&
        std::abs(difference) < kTolerance * static_cast<double>(card.memory_bytes))
      return &card;
  }
  return nullptr;
}

PlannedCard::PlannedCard(const Card* card) : previous_(current_card()) {
  if (card != nullptr) current_card() = card;
}

PlannedCard::~PlannedCard() { current_card() = previous_; }

const Card* planned_card() { return current_card(); }

const Card& default_card() { return card("h200"); }

}  // namespace meshgrad::gpu
