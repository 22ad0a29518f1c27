// SPDX-License-Identifier: Apache-2.0
// Which storage each device computes in.
#pragma once
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/runtime.h>

#include <string>
#include <string_view>

namespace meshgrad {

/// Throws ConfigError unless kernels of the device store in `precision`: all of them on the CPU; f32, f16 or
/// bf16 on a GPU.
void check_precision(Device device, DType precision);

/// Of a first run on the device: f32 on a CPU; on a GPU the 16 bits that its tensor cores multiply, bf16 from
/// compute capability 8.0, f16 from 7.0, and f32 before.
DType precision_for(Device device);
/// The 16 bits to choose on the device: f16 on a GPU whose tensor cores have no bf16.
DType narrow_precision_for(Device device);
/// Of a GPU by ten times its compute capability.
DType precision_for_capability(int capability);

/// resolve_device, but "auto" takes the CPU for f64.
Device resolve_device_for(const std::string& word, DType precision, std::string* note = nullptr,
                          std::string_view option = "run.device");

/// A line that says what is stored how in 16 bits; empty for other precisions.
std::string describe_precision(DType precision, double loss_scale);

/// A line that says what RuntimeOptions::tf32 does on the Runtime's device; empty without it.
std::string describe_tf32(const Runtime& runtime, DType precision);

}  // namespace meshgrad
