// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu_card.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/learn/task/largest_batch.h>
#include <meshgrad/train/tools/program/precision_gain.h>

#include <fmt/format.h>

namespace meshgrad {
namespace {

constexpr double kGain = 1.5;

bool gains(double now, double then) { return now > kGain * then; }

PrecisionChoice choice_of(Config config, DType precision, const StepProbe& probe, const gpu::Card* card) {
  config.precision = precision;
  PrecisionChoice choice{precision, probe.predict(config, StepProbe::Batches::largest).reserved, {}};
  if (card == nullptr) return choice;
  const BatchShape batch = largest_batch(config, make_task(config, probe.dataset()));
  choice.bound = step_bound(kernel_calls(probe, config, batch), *card, config);
  return choice;
}

}  // namespace

std::string precision_gain(const PrecisionChoice& now, const PrecisionChoice& then, std::string_view card) {
  const std::string memory =
      fmt::format("{:.0f} MiB instead of {:.0f}", mebibytes(then.reserved), mebibytes(now.reserved));
  const std::string start =
      fmt::format("precision = \"{}\" would save: a step takes ", name_of(then.precision));
  if (now.bound && then.bound) {
    if (!gains(now.bound->ms, then.bound->ms)) return {};
    return start + fmt::format("at least {:.3g} ms instead of {:.3g} at the stated peaks of one {}, and {}",
                               then.bound->ms, now.bound->ms, card, memory);
  }
  return gains(static_cast<double>(now.reserved), static_cast<double>(then.reserved)) ? start + memory : "";
}

std::string precision_gain(const Config& config, Device device) {
  if (device.kind == DeviceKind::cpu || config.precision != DType::f32 ||
      config.ranks.partition != MeshPartition::none)
    return {};
  try {
    Config step = config;
    if (step.train.batch == kAutoBatch) step.train.batch = 1;
    const StepProbe probe(Dataset::open(config.data.path).with_edges(edge_options(config.data)), device);
    const gpu::Card* const card = card_of(device);
    return precision_gain(choice_of(step, DType::f32, probe, card),
                          choice_of(step, narrow_precision_for(device), probe, card),
                          card != nullptr ? card->name : "");
  } catch (const Error&) {
    return {};
  }
}

}  // namespace meshgrad
