// SPDX-License-Identifier: Apache-2.0
// Whole steps of the standard model on one mesh, and the fused path beside the op-by-op path.
#include <fmt/format.h>

#include "standard_step.h"

namespace meshgrad::bench {

std::vector<Benchmark> step_benchmarks(const Selection& selection) {
  using Kind = StepKind;
  constexpr Kind kTrain{}, kTrainRecomputing{.keep_hidden = false}, kForward{.train = false};
  constexpr Kind kTrainByOps{.path = ComputePath::op_by_op};
  constexpr Kind kForwardByOps{.train = false, .path = ComputePath::op_by_op};
  // The fused backward of a GPU recomputes; that of the CPU is faster on what forward kept.
  const Kind fused_train = selection.device == DeviceKind::cuda ? kTrainRecomputing : kTrain;
  std::vector<Benchmark> list;
  std::vector<DType> types = timed_types();
  const bool on_cpu = selection.device == DeviceKind::cpu;
  if (on_cpu) types.push_back(DType::f64);
  std::vector<SizeClass> sizes = size_classes(selection.quick);
  if (!selection.quick) sizes.front().scale = {.period = 43 * 43, .copies = 1, .square = true};
  if (!selection.quick)  // two meshes of 1,885 nodes: MeshGraphNets' cylinder flow
    sizes.insert(sizes.begin() + 1, {"2x1885", {.period = 145, .copies = 26}});
  if (!selection.quick && on_cpu)  // 500 nodes
    sizes.insert(sizes.begin() + 1, {"small", {.period = 125, .copies = 4, .width = 64, .blocks = 6}});
  for (const SizeClass& size : sizes) {
    for (const DType dtype : types) {
      if (dtype == DType::f64 && !size.name.empty()) continue;  // for checks, not for large meshes
      if (on_cpu && dtype != DType::f32 && !size.name.empty() && size.name != "small") continue;
      const auto part = [&](std::string_view what) {
        return fmt::format("{}{}/{}", what, size.name.empty() ? "" : "/" + size.name, name_of(dtype));
      };
      const auto make = [=](const Kind& kind, const std::string& name) {
        return [=, scale = size.scale](Runtime& runtime) {
          return step_workload(runtime, scale, kind, dtype, name);
        };
      };
      const auto add = [&](const std::string& name, const Kind& kind) {
        list.push_back({name, make(kind, name)});
      };
      add(part("step/train"), kTrain);
      add(part("step/train_recompute_hidden"), kTrainRecomputing);
      add(part("step/train_op_by_op"), kTrainByOps);
      add(part("step/forward"), kForward);
      if (selection.device == DeviceKind::cuda) {
        Kind captured_train = fused_train, captured_forward = kForward;
        captured_train.captured = captured_forward.captured = true;
        add(part("step/train_captured"), captured_train);
        add(part("step/forward_captured"), captured_forward);
        for (const auto& [what, other] :
             {std::pair{"launched", fused_train}, std::pair{"op_by_op", kTrainByOps}}) {
          const std::string name = part(fmt::format("ratio/train/{}_over_captured", what));
          list.push_back({name, make(captured_train, name), make(other, name)});
        }
      }
      add(part("step/forward_op_by_op"), kForwardByOps);
      Kind traced_train = fused_train;
      traced_train.traced = true;
      const std::string trace = part("ratio/train/traced_over_plain");
      list.push_back({trace, make(fused_train, trace), make(traced_train, trace)});
      for (const auto& [what, fused, by_ops] :
           {std::tuple{"train", fused_train, kTrainByOps}, std::tuple{"forward", kForward, kForwardByOps}}) {
        const std::string name = part(fmt::format("ratio/{}/op_by_op_over_fused", what));
        list.push_back({name, make(fused, name), make(by_ops, name)});
      }
    }
  }
  return list;
}

}  // namespace meshgrad::bench
