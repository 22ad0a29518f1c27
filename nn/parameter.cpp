// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/pinned_tensor.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/nn/parameter.h>

#include <cmath>

namespace meshgrad {
namespace {

constexpr int64_t kAlignElements = 16;        // 64 bytes of f32
constexpr int64_t kAlignTableElements = 256;  // 512 bytes of 16 bits, as StorageFront needs

Shape file_shape(const ParameterInfo& info) {
  return info.is_matrix() ? Shape{info.shape[1], info.shape[0]} : info.shape;
}

template <class From, class To>
void transposed_copy(const From* from, int64_t rows, int64_t columns, To* to) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[j * rows + i] = static_cast<To>(from[i * columns + j]);
  }
}

}  // namespace

size_t ParameterSet::add(std::string name, const Shape& shape, Initial initial, int64_t fan_in) {
  check_internal(!values_.defined(), "parameters are declared before they are allocated");
  check_internal(find(name) < 0, "two parameters of one name");
  infos_.push_back({std::move(name), shape, arena_, initial, fan_in});
  arena_ += round_up(shape.elements(), kAlignElements);
  return infos_.size() - 1;
}

void ParameterSet::end_tables() { tables_ = arena_ = round_up(arena_, kAlignTableElements); }

Tensor ParameterSet::empty_arena(Runtime& runtime, DType dtype, std::string_view name) const {
  const int64_t each = size_of(dtype);
  StoragePtr memory = runtime.allocator().allocate(arena_ * each, 64, runtime.stream(), Tag::parameters, name,
                                                   {tables_ * each, Tag::embed, "tables of identifiers"});
  return Tensor::over(std::move(memory), 0, {arena_}, dtype);
}

void ParameterSet::allocate_values(Runtime& runtime, DType dtype) {
  const DType master = accumulator_of(dtype);
  values_ = empty_arena(runtime, master, "parameters");
  if (dtype != master) storage_ = empty_arena(runtime, dtype, "rounded parameters");
}

void ParameterSet::allocate_pinned(Device device, DType dtype) {
  const DType master = accumulator_of(dtype);
  values_ = pinned_tensor(device, {arena_}, master);
  if (dtype != master) storage_ = pinned_tensor(device, {arena_}, dtype);
}

ParameterSet ParameterSet::copied(Runtime& runtime) const {
  ParameterSet copies = *this;
  for (Tensor ParameterSet::*arena : {&ParameterSet::values_, &ParameterSet::storage_}) {
    const Tensor& from = this->*arena;
    if (!from.defined()) continue;
    copies.*arena = Tensor::empty(runtime, from.shape(), from.dtype(), Tag::activations, "copied parameters");
    copy(from, copies.*arena, runtime.stream());
  }
  return copies;
}

void ParameterSet::allocate(Runtime& runtime, DType dtype, uint64_t seed) {
  allocate_values(runtime, dtype);
  allocate_gradients(runtime);
  if (runtime.dry()) return;
  const DType master = values_.dtype();
  const Tensor host = host_tensor(values_.shape(), master);
  for (size_t i = 0; i < infos_.size(); ++i) {
    const ParameterInfo& info = infos_[i];
    const double reach = info.initial == Initial::glorot ? std::sqrt(6.0) : 1.0;
    const double bound = reach / std::sqrt(static_cast<double>(info.fan_in));
    const uint64_t purpose = hash_of(info.name);
    dispatch_storage(master, [&]<class T>() {
      T* data = slice(host, i).data<T>();
      for (int64_t k = 0; k < info.shape.elements(); ++k) {
        switch (info.initial) {
          case Initial::uniform_fan_in:
          case Initial::glorot:
            data[k] = static_cast<T>(bound * (2.0 * uniform(seed, purpose, static_cast<uint64_t>(k)) - 1.0));
            break;
          case Initial::zero:
            data[k] = T(0);
            break;
          case Initial::half:
            data[k] = T(0.5);
            break;
          case Initial::one:
            data[k] = T(1);
            break;
        }
      }
    });
  }
  set(values_, host, runtime.stream());
}

void ParameterSet::allocate_gradients(Runtime& runtime) {
  gradients_ = Tensor::zeros(runtime, values_.shape(), values_.dtype(), Tag::gradients, "gradients");
}

void ParameterSet::set(const Tensor& arena, const Tensor& host, const Stream& stream) const {
  copy(host, arena, stream);
  if (arena.raw() != values_.raw() || !storage_.defined()) return;
  const Tensor rounded = host_tensor(storage_.shape(), storage_.dtype());
  const auto round = [&](auto* to) {
    using To = std::remove_pointer_t<decltype(to)>;
    for (int64_t i = 0; i < arena_; ++i) to[i] = To(host.data<float>()[i]);
  };
  storage_.dtype() == DType::f16 ? round(rounded.data<half>()) : round(rounded.data<bfloat16>());
  copy(rounded, storage_, stream);
}

int64_t ParameterSet::find(std::string_view name) const {
  for (size_t i = 0; i < infos_.size(); ++i) {
    if (infos_[i].name == name) return static_cast<int64_t>(i);
  }
  return -1;
}

int64_t ParameterSet::count() const {
  int64_t total = 0;
  for (const ParameterInfo& info : infos_) total += info.shape.elements();
  return total;
}

Tensor ParameterSet::slice(const Tensor& arena, size_t index) const {
  const ParameterInfo& info = infos_.at(index);
  return arena.row_range(info.offset, info.offset + info.shape.elements()).reshaped(info.shape);
}

Tensor to_file_order(const ParameterInfo& info, const Tensor& tensor) {
  Tensor file = host_tensor(file_shape(info), tensor.dtype());
  dispatch_storage(tensor.dtype(), [&]<class T>() {
    transposed_copy(tensor.data<T>(), info.is_matrix() ? info.shape[0] : 1,
                    info.shape.elements() / (info.is_matrix() ? info.shape[0] : 1), file.data<T>());
  });
  return file;
}

void from_file_order(const ParameterInfo& info, const Tensor& file, const Tensor& tensor) {
  if (!(file.shape() == file_shape(info))) {
    throw data_error("parameter " + info.name, "shape " + file_shape(info).text(), file.shape().text(),
                     "use a file made for a model of the same width, blocks and layers");
  }
  dispatch_storage(file.dtype(), [&]<class From>() {
    dispatch_storage(tensor.dtype(), [&]<class To>() {
      const int64_t rows = info.is_matrix() ? info.shape[1] : 1;
      transposed_copy(file.data<From>(), rows, info.shape.elements() / rows, tensor.data<To>());
    });
  });
}

}  // namespace meshgrad
