// SPDX-License-Identifier: Apache-2.0
// The state of a MeshPredictor where its steps run on a GPU: fields and positions stay in the device's
// memory, and a solver's arrays that live there are read and written by kernels.
#pragma once
#include <meshgrad/engine/runtime.h>
#include <meshgrad/engine/tensor.h>
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/embed/arrays.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// Of whole meshes without world edges, of all of them together.
struct DeviceState {
  Tensor predicted;                             ///< u8 [nodes]
  Tensor kinematic, others;                     ///< u8 [nodes]: of data.kinematic_types, and not
  Tensor value_columns;                         ///< u8 [outputs]
  Tensor node_scale, edge_scale, target_scale;  ///< f64 [columns, 2], as kernels take them
  Tensor positions;                             ///< f32 [nodes, dim]: at rest
  Tensor moved;                 ///< f32 [nodes, components] of data.world_position, or undefined
  std::vector<Tensor> origins;  ///< by mesh, f64 [dim, 2]: of positions; undefined: 0
  std::vector<Tensor> frames;   ///< f32 [nodes, outputs]: now, before, and room for the next
  /// By field, where numbers are less an offset: how they come, and how they go.
  struct Offset {
    Tensor subtracted, added;  ///< f64 [components, 2]
  };
  std::map<std::string, Offset> offsets;
};

/// f64 [columns, 2] on the device: what is subtracted, and the factor.
Tensor column_scale(Runtime& runtime, size_t columns, const std::function<double(size_t)>& subtracted,
                    const std::function<double(size_t)>& factor);
/// Of normalised columns.
Tensor normalising(Runtime& runtime, const Normalizer& normalizer);

/// Numbers of [rows, columns] on the runtime's device, in their type: where they are, or a copy of those on
/// the host. Throws InvalidArgument, which names `what`, for memory of another device.
Tensor on_device(Runtime& runtime, const Numbers& values, const Shape& shape, std::string_view what);
/// Throws where on_device would.
void check_numbers(const Runtime& runtime, const Numbers& values, std::string_view what);
/// Whether f32 cannot hold one of the numbers, on the runtime's device; waits for the answer.
bool any_not_finite(Runtime& runtime, const Numbers& values, std::string_view what);
/// Calls `write` with a tensor on the runtime's device that is then in `values`.
void write_on_device(Runtime& runtime, const WritableNumbers& values, const Shape& shape,
                     std::string_view what, const std::function<void(const Tensor& to)>& write);

/// After work on an array of the application's in the device's memory: waits for it, unless that is queued
/// on the application's own stream, whose order is enough.
void settle(const Runtime& runtime, Device array);

}  // namespace meshgrad
