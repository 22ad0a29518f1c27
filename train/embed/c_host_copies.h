// SPDX-License-Identifier: Apache-2.0
// Arrays of meshgrad.h in a GPU's memory, as copies on the host.
#pragma once
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/meshgrad.h>

#include <cstddef>
#include <vector>

namespace meshgrad::c {

/// Copies of arrays that live on the runtime's device; arrays on the host stay where they are. The runtime
/// outlives it.
class HostCopies {
 public:
  explicit HostCopies(Runtime& runtime) : runtime_(&runtime) {}
  HostCopies(HostCopies&&) noexcept = default;  // not copied: what borrows the memory has its address
  HostCopies& operator=(HostCopies&&) noexcept = default;
  /// `array` on the host, valid as long as this. Waits for the device. Throws InvalidArgument naming `what`
  /// for a device that is not the runtime's, and for what no array may be.
  meshgrad_array read(const meshgrad_array& array, const char* what);
  /// Likewise, but with zeros, for values that write_back() brings to the device.
  meshgrad_array room_for(const meshgrad_array& array, const char* what);
  bool empty() const { return copies_.empty(); }
  /// Copies from the device once more.
  void read_again();
  void write_back();

 private:
  struct Copy {
    meshgrad_array array;  // on the device
    std::vector<std::byte> memory;
  };
  void transfer(Copy& copied, bool to_device) const;
  Runtime* runtime_;
  std::vector<Copy> copies_;
};

}  // namespace meshgrad::c
