// SPDX-License-Identifier: Apache-2.0
// Arrays of a host application in a GPU's memory, as copies on the host.
#pragma once
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/arrays.h>

#include <cstddef>
#include <string_view>
#include <vector>

namespace meshgrad {

/// Throws InvalidArgument naming `what` unless `device` is the runtime's.
void check_device(const Runtime& runtime, Device device, std::string_view what);
/// Likewise unless `bytes` of memory from `data` on are allocated there.
void check_on_device(const Runtime& runtime, const void* data, int64_t bytes, Device device,
                     std::string_view what);

/// Throws DataError naming `what` and the row for a number of more than 32 bits.
int32_t int32_of(int64_t value, std::string_view what, int64_t row);

/// Copies of arrays that live on the runtime's device; arrays on the host stay where they are. Those that the
/// functions give are valid as long as this. They wait for the device, and throw InvalidArgument naming
/// `what` for a device that is not the runtime's, or for memory that is not allocated there (managed memory
/// counts; pinned memory of the host does not).
class HostCopies {
 public:
  HostCopies() = default;  ///< none
  explicit HostCopies(const Runtime& runtime) : runtime_(&runtime) {}
  HostCopies(HostCopies&&) noexcept = default;  // not copied: what borrows the memory has its address
  HostCopies& operator=(HostCopies&&) noexcept = default;

  Numbers read(const Numbers& values, std::string_view what);
  /// Of 32 bits; `columns`: of a row, for the error of a number that has more.
  Integers read(const Integers& values, std::string_view what, int64_t columns = 1);
  MeshArrays read(MeshArrays mesh);
  /// Only of cells, edges, and the lists of ghosts.
  MeshArrays read_connections(MeshArrays mesh);
  /// Room for values that read_again() brings from the device, or write_back() to it.
  Numbers room_for(const Numbers& values, std::string_view what);
  WritableNumbers room_for(const WritableNumbers& values, std::string_view what);
  void read_again() const;
  void write_back() const;

 private:
  struct Copy {
    void* device;
    std::vector<std::byte> memory;
    std::string what;
  };
  /// Null for an array on the host.
  Copy* add(const void* data, size_t bytes, Device device, std::string_view what);
  void transfer(const Copy& copied, bool to_device) const;
  const Runtime* runtime_ = nullptr;
  std::vector<Copy> copies_;
  std::vector<std::vector<int32_t>> narrowed_;
};

}  // namespace meshgrad
