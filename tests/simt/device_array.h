// SPDX-License-Identifier: Apache-2.0
// A stream and arrays of the simulated device, for tests that launch kernels of their own.
#pragma once
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/stream.h>

#include <cstdint>
#include <vector>

namespace meshgrad::test {

struct OwnStream {
  void* native = gpu::create_stream(0);
  Stream stream{Device{DeviceKind::cuda, 0}, 1, native};
  OwnStream() = default;
  ~OwnStream() { gpu::destroy_stream(native); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
};

/// Exactly `count` elements of device memory, poisoned.
template <class T>
struct DeviceArray {
  T* data;
  int64_t count;
  explicit DeviceArray(int64_t elements)
      : data(static_cast<T*>(gpu::allocate(0, elements * int64_t{sizeof(T)}))), count(elements) {}
  DeviceArray(const std::vector<T>& values, const OwnStream& stream)
      : DeviceArray(static_cast<int64_t>(values.size())) {
    gpu::copy(data, values.data(), bytes(), stream.native);
  }
  ~DeviceArray() { gpu::free(data); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  int64_t bytes() const { return count * int64_t{sizeof(T)}; }
  std::vector<T> host(const OwnStream& stream) const {
    std::vector<T> values(static_cast<size_t>(count));
    gpu::copy(values.data(), data, bytes(), stream.native);
    return values;
  }
};

}  // namespace meshgrad::test
