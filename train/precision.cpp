// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/precision.h>

namespace meshgrad {

void check_precision(Device device, DType precision) {
  if (precision == DType::f32) return;
  const bool gpu = device.kind == DeviceKind::cuda;
  if (gpu != (precision == DType::f64)) return;
  throw config_error("precision", gpu ? "f32, f16 or bf16 on a GPU" : "f32 or f64 on the CPU",
                     name_of(precision),
                     gpu ? "set precision = \"f32\", or run.device = \"cpu\" for checks in f64"
                         : "set precision = \"f32\", or run.device = \"cuda\" on a machine with a GPU");
}

Device resolve_device_for(const std::string& word, DType precision, std::string* note) {
  return resolve_device(word == "auto" && precision == DType::f64 ? "cpu" : word, note);
}

}  // namespace meshgrad
