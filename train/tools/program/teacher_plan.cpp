// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/train/learn/run/cached_teacher.h>
#include <meshgrad/train/tools/program/teacher_plan.h>

#include <fmt/format.h>

namespace meshgrad {
namespace {

/// What a step takes, and whether it fits.
struct TeacherPlace {
  std::string text;
  bool fits = false;
};

TeacherPlace place(const MemoryPlan& plan, const StepProbe& probe, const Config& config) {
  const StepMemory step = probe.predict(config);
  TeacherPlace place{fmt::format("{:.3f} MiB", mebibytes(step.live)),
                     needed_bytes(config, step) <= plan.usable};
  if (plan.peaks.empty()) return place;
  const StepBound bound =
      step_bound(kernel_calls(probe, config, plan.bounded), gpu::card(plan.peaks), config);
  place.text += fmt::format(" and at least {:.3g} ms", bound.ms);
  return place;
}

}  // namespace

std::string teacher_note(const MemoryPlan& plan, const StepProbe& probe, const Config& step, const Task& task,
                         bool data) {
  if (step.distill.teacher.empty()) return "";
  Config config = step;
  config.distill.offload = OffloadTo::none;
  config.distill.cache.clear();
  const TeacherPlace resident = place(plan, probe, config);
  std::string text = fmt::format("a step takes {} with the teacher on the device", resident.text);
  std::string_view best = resident.fits ? "the device" : "none of them fits";
  if (plan.device.kind == DeviceKind::cuda) {
    config.distill.offload = OffloadTo::host;
    const TeacherPlace offloaded = place(plan, probe, config);
    text += fmt::format(", {} with distill.offload = \"host\"", offloaded.text);
    if (!resident.fits && offloaded.fits) best = "distill.offload = \"host\"";
    config.distill.offload = OffloadTo::none;
  }
  if (noise_of(config).any())
    return fmt::format("{}; distill.cache needs train.noise = 0; best: {}", text, best);
  config.distill.cache = "teacher.cache";
  const TeacherPlace cached = place(plan, probe, config);
  text += fmt::format(", {} with distill.cache", cached.text);
  if (data) text += fmt::format(", a file of {:.3f} MiB", mebibytes(teacher_cache_bytes(config, task)));
  if (cached.fits) best = "distill.cache";
  return fmt::format("{}; best: {}", text, best);
}

}  // namespace meshgrad
