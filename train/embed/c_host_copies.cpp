// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/tensor.h>
#include <meshgrad/train/embed/c_border.h>
#include <meshgrad/train/embed/c_host_copies.h>

#include <fmt/format.h>

#include <utility>

namespace meshgrad::c {
namespace {

DType dtype_of(const meshgrad_array& array, const char* what) {
  switch (array.dtype) {
    case MESHGRAD_F32:
      return DType::f32;
    case MESHGRAD_F64:
      return DType::f64;
    case MESHGRAD_I32:
      return DType::i32;
    default:
      break;
  }
  throw invalid_argument(fmt::format("{}: dtype", what), "a meshgrad_dtype", fmt::format("{}", array.dtype));
}

}  // namespace

meshgrad_array HostCopies::room_for(const meshgrad_array& array, const char* what) {
  if (array.rank == 0 || array.device == MESHGRAD_CPU) return array;
  if (array.device != MESHGRAD_CUDA || runtime_->device().kind != DeviceKind::cuda) {
    throw invalid_argument(
        what, "an array in the host's memory or in that of the runtime's device",
        fmt::format("device {} on a runtime of {}", array.device, name_of(runtime_->device())),
        "copy it to the host, or make the runtime with device = \"cuda\"");
  }
  meshgrad_array here = array;
  here.device = MESHGRAD_CPU;
  const size_t bytes = elements_of(here, what) * static_cast<size_t>(size_of(dtype_of(array, what)));
  Copy& copied = copies_.emplace_back(Copy{array, std::vector<std::byte>(bytes)});
  here.data = copied.memory.data();
  return here;
}

meshgrad_array HostCopies::read(const meshgrad_array& array, const char* what) {
  const size_t before = copies_.size();
  const meshgrad_array here = room_for(array, what);
  if (copies_.size() > before) transfer(copies_.back(), false);
  return here;
}

void HostCopies::read_again() {
  for (Copy& copied : copies_) transfer(copied, false);
}

void HostCopies::write_back() {
  for (Copy& copied : copies_) transfer(copied, true);
}

void HostCopies::transfer(Copy& copied, bool to_device) const {
  if (copied.memory.empty()) return;
  const DType dtype = dtype_of(copied.array, "array");
  const Shape shape{static_cast<int64_t>(copied.memory.size()) / size_of(dtype)};
  const Tensor here = Tensor::borrow(copied.memory.data(), shape, dtype);
  const Tensor there = Tensor::borrow(copied.array.data, shape, dtype, {}, runtime_->device());
  copy(to_device ? here : there, to_device ? there : here, runtime_->stream());
  runtime_->stream().synchronize();
}

}  // namespace meshgrad::c
