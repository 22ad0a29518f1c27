// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/precision.h>

namespace meshgrad {

void check_precision(Device device, DType precision) {
  if (device.kind == DeviceKind::cpu || precision != DType::f64) return;
  throw config_error("precision", "f32, f16 or bf16 on a GPU", name_of(precision),
                     "set precision = \"f32\", or run.device = \"cpu\" for checks in f64");
}

Device resolve_device_for(const std::string& word, DType precision, std::string* note) {
  return resolve_device(word == "auto" && precision == DType::f64 ? "cpu" : word, note);
}

}  // namespace meshgrad
