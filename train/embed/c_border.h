// SPDX-License-Identifier: Apache-2.0
// What every function of meshgrad.h does at its border: errors become a status, arrays become spans.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/field_info.h>
#include <meshgrad/train/embed/arrays.h>
#include <meshgrad/train/embed/host_copies.h>
#include <meshgrad/train/embed/meshgrad.h>
#include <meshgrad/train/embed/online_trainer.h>
#include <meshgrad/train/embed/own_process.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <vector>

struct meshgrad_runtime {
  meshgrad::Runtime runtime;
  meshgrad::Ranks ranks;  // of the communicator, or this process alone
  meshgrad::OwnProcess process{runtime, ranks};
  int users = 0;       // handles made from it
  bool ended = false;  // by the host; then it lasts until the last of them is destroyed
};

namespace meshgrad::c {

/// A runtime that a handle was made from.
class RuntimeUse {
 public:
  explicit RuntimeUse(meshgrad_runtime& runtime) : runtime_(runtime) { ++runtime_.users; }
  ~RuntimeUse() {
    if (--runtime_.users == 0 && runtime_.ended) meshgrad_runtime_destroy(&runtime_);
  }
  RuntimeUse(const RuntimeUse&) = delete;
  RuntimeUse& operator=(const RuntimeUse&) = delete;
  operator meshgrad_runtime&() const { return runtime_; }
  meshgrad_runtime* operator->() const { return &runtime_; }

 private:
  meshgrad_runtime& runtime_;
};

}  // namespace meshgrad::c

struct meshgrad_trainer {
  meshgrad::c::RuntimeUse runtime;  // ends last
  meshgrad::OnlineTrainer trainer;
};

namespace meshgrad::c {

/// Stores the text of the exception being handled for meshgrad_last_error, and returns its status.
int status_of_exception() noexcept;

/// Runs `body`: no exception leaves.
template <class Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return MESHGRAD_OK;
  } catch (...) {
    return status_of_exception();
  }
}

[[noreturn]] void throw_null(const char* what);

/// Throws InvalidArgument naming `what` for a null pointer, and for a runtime that a child may not use.
template <class T>
T& given(T* pointer, const char* what) {
  if (pointer == nullptr) throw_null(what);
  if constexpr (requires { pointer->process; }) pointer->process.check(what);
  return *pointer;
}

[[noreturn]] void throw_size(const char* structure, size_t ours, size_t given);

/// A structure of the caller as this header has it: members beyond the size that the caller's header gave it
/// have their defaults. `earlier`: the sizes that headers before this one gave it. Throws InvalidArgument.
template <class Structure>
Structure completed(const Structure& given, Structure defaults, std::initializer_list<size_t> earlier,
                    const char* name) {
  const size_t size = given.size;
  if (size != sizeof(Structure) && std::ranges::find(earlier, size) == earlier.end())
    throw_size(name, sizeof(Structure), size);
  std::memcpy(&defaults, &given, size);
  return defaults;
}

/// The defaults in `size` bytes of the caller; completed() refuses a size that this header does not know.
template <class Structure>
void initialise(Structure* to, size_t size, const Structure& defaults) noexcept {
  if (to == nullptr) return;
  std::memset(static_cast<void*>(to), 0, size);
  std::memcpy(static_cast<void*>(to), &defaults, std::min(size, sizeof(Structure)));
  to->size = size;
}

static_assert(sizeof(meshgrad_array) == 48, "the size of version 0.1.0, which never changes");

/// An array as C++ takes it. Throw InvalidArgument naming `what` for another dtype, rank or device than can
/// be, and without data.
Numbers numbers_of(const Runtime& runtime, const meshgrad_array& array, const char* what);
WritableNumbers writable_numbers_of(const Runtime& runtime, const meshgrad_array& array, const char* what);
Integers integers_of(const Runtime& runtime, const meshgrad_array& array, const char* what);
/// Throws InvalidArgument unless the last of several axes has `columns`.
void check_columns(const meshgrad_array& array, int64_t columns, const char* what);
/// The components of the field named, or 0.
int components_of(const std::vector<FieldInfo>& fields, std::string_view name);

/// Meshes as C++ takes them, with node numbers from 0; the runtime outlives them.
class Meshes {
 public:
  /// Calls `set` with the meshes. Parts that cannot be read are refused on all ranks, which otherwise would
  /// wait for this one in `set`.
  static void read(meshgrad_runtime& runtime, const meshgrad_mesh* meshes, int32_t count, int dim,
                   const std::function<void(std::span<const MeshArrays>)>& set);

  Meshes(const Runtime& runtime, const meshgrad_mesh* meshes, int32_t count, int dim);
  std::span<const MeshArrays> arrays() const { return arrays_; }

 private:
  std::span<const int32_t> numbers_from_zero(const meshgrad_array& array, int32_t first, int64_t nodes,
                                             const char* what);
  const Runtime& runtime_;
  HostCopies read_;
  std::vector<std::vector<int32_t>> shifted_;
  std::vector<MeshArrays> arrays_;
};

}  // namespace meshgrad::c
