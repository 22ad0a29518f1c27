// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/train/learn/run/precision.h>

namespace meshgrad {

void check_precision(Device device, DType precision) {
  if (device.kind == DeviceKind::cpu || precision != DType::f64) return;
  throw config_error("precision", "f32, f16 or bf16 on a GPU", name_of(precision),
                     "set precision = \"f32\", or run.device = \"cpu\" for checks in f64");
}

DType precision_for_capability(int capability) {
  return capability >= 80 ? DType::bf16 : capability >= 70 ? DType::f16 : DType::f32;
}

DType precision_for(Device device) {
  return device.kind == DeviceKind::cpu ? DType::f32
                                        : precision_for_capability(gpu::compute_capability(device.index));
}

DType narrow_precision_for(Device device) {
  const DType suits = precision_for(device);
  return suits == DType::f32 ? DType::bf16 : suits;
}

Device resolve_device_for(const std::string& word, DType precision, std::string* note,
                          std::string_view option) {
  return resolve_device(word == "auto" && precision == DType::f64 ? "cpu" : word, note, option);
}

std::string describe_precision(DType precision, double loss_scale) {
  if (precision != DType::f16 && precision != DType::bf16) return {};
  const std::string scale =
      precision == DType::f16 ? fmt::format("the loss scale is {}", loss_scale) : "bf16 needs no loss scale";
  return fmt::format(
      "precision {}: activations and the weights that kernels read are stored in 16 bits; master weights, "
      "weight gradients, moments and accumulation in f32; {}",
      name_of(precision), scale);
}

std::string describe_tf32(const Runtime& runtime, DType precision) {
  if (!runtime.tf32()) return {};
  if (!runtime.stream().on_gpu()) return "tf32 = true has no effect on the CPU, whose GEMMs multiply in f32";
  if (precision != DType::f32)
    return fmt::format("tf32 = true has no effect with precision {}", name_of(precision));
  return "tf32 = true: GEMMs round their f32 operands to TF32 (10 bits of fraction) and accumulate in f32";
}

}  // namespace meshgrad
