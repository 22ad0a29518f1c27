// SPDX-License-Identifier: Apache-2.0
// What is known of GPUs that are not there.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu_card.h>

#include "support.h"

namespace meshgrad {
namespace {

TEST_CASE("cards have the shared memory of their capability") {
  struct Expected {
    const char* name;
    int capability, shared_bytes, of_multiprocessor;
  };
  const Expected all[] = {{"t4", 75, 65'536, 65'536},        {"rtx4070", 89, 101'376, 102'400},
                          {"rtx4090", 89, 101'376, 102'400}, {"l40s", 89, 101'376, 102'400},
                          {"a100", 80, 166'912, 167'936},    {"h100", 90, 232'448, 233'472},
                          {"h200", 90, 232'448, 233'472},    {"b200", 100, 232'448, 233'472}};
  REQUIRE(gpu::card_names().size() == std::size(all));
  for (const Expected& one : all) {
    CAPTURE(one.name);
    const gpu::Card& card = gpu::card(one.name);
    CHECK(card.capability == one.capability);
    CHECK(card.shared_bytes() == one.shared_bytes);
    CHECK(card.multiprocessor_memory().bytes == one.of_multiprocessor);
  }
}

TEST_CASE("cards compute in f32 what their tensor cores do not take") {
  const gpu::Card& t4 = gpu::card("t4");
  CHECK(t4.flops_per_s(DType::f16, false) == 65e12);
  CHECK(t4.flops_per_s(DType::bf16, false) == 8.1e12);
  CHECK(t4.flops_per_s(DType::f32, true) == 8.1e12);
  const gpu::Card& h100 = gpu::card("h100");
  CHECK(h100.flops_per_s(DType::bf16, false) == 989e12);
  CHECK(h100.flops_per_s(DType::f32, false) == 67e12);
  CHECK(h100.flops_per_s(DType::f32, true) == 494e12);
}

TEST_CASE("a device is the card of its capability, size and memory") {
  const auto name_of = [](int capability, int multiprocessors, int64_t mebibytes) {
    const gpu::Card* const card = gpu::card_of(capability, multiprocessors, mebibytes << 20);
    return card == nullptr ? "none" : std::string(card->name);
  };
  CHECK(name_of(90, 132, 81'559) == "h100");  // an H100 SXM, as its driver reports it
  CHECK(name_of(90, 132, 143'771) == "h200");
  CHECK(name_of(75, 40, 15'109) == "t4");  // with ECC
  CHECK(name_of(80, 108, 40'536) == "none");
  CHECK(name_of(90, 114, 81'559) == "none");
  CHECK(name_of(89, 142, 46'068) == "l40s");
}

TEST_CASE("a planned card is the calling thread's until it ends") {
  const int before = gpu::shared_bytes(0);
  {
    const gpu::PlannedCard planned(&gpu::card("t4"));
    CHECK(gpu::planned_card() == &gpu::card("t4"));
    CHECK(gpu::multiprocessors(0) == 40);
    CHECK(gpu::shared_bytes(0) == 65'536);
    CHECK(gpu::multiprocessor_memory(0).reserved_per_block == 0);
    CHECK(gpu::compute_capability(0) == 75);
    const gpu::PlannedCard none(nullptr);
    CHECK(gpu::compute_capability(0) == 75);
    {
      const gpu::PlannedCard inner(&gpu::card("a100"));
      CHECK(gpu::compute_capability(0) == 80);
    }
    CHECK(gpu::compute_capability(0) == 75);
  }
  CHECK(gpu::planned_card() == nullptr);
  CHECK(gpu::shared_bytes(0) == before);
}

}  // namespace
}  // namespace meshgrad
