// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/c_border.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>

namespace meshgrad::c {
namespace {

// The one state that is not in a handle. An array: keeping a text must not need memory.
thread_local std::array<char, 4096> last_error{};

// Sizes of structures in earlier headers.
constexpr size_t kMeshWithoutGhosts = offsetof(meshgrad_mesh, ghost_owner);

int keep(int status, const char* text) noexcept {
  const size_t length = std::min(std::strlen(text), last_error.size() - 1);
  std::memcpy(last_error.data(), text, length);
  last_error[length] = '\0';
  return status;
}

int status_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return MESHGRAD_INVALID_ARGUMENT;
    case ErrorKind::config:
      return MESHGRAD_CONFIG_ERROR;
    case ErrorKind::data:
      return MESHGRAD_DATA_ERROR;
    case ErrorKind::out_of_memory:
      return MESHGRAD_OUT_OF_MEMORY;
    case ErrorKind::device:
      return MESHGRAD_DEVICE_ERROR;
    case ErrorKind::ranks:
      return MESHGRAD_RANK_ERROR;
    case ErrorKind::internal:
      break;
  }
  return MESHGRAD_INTERNAL_ERROR;
}

[[noreturn]] void throw_dtype(const meshgrad_array& array, const char* what, const char* needed) {
  throw invalid_argument(fmt::format("{}: dtype", what), needed, fmt::format("{}", array.dtype));
}

Device device_of(const Runtime& runtime, const meshgrad_array& array, const char* what) {
  if (array.device == MESHGRAD_CPU) return {};
  if (array.device == MESHGRAD_CUDA && runtime.device().kind == DeviceKind::cuda) return runtime.device();
  throw invalid_argument(what, "an array in the host's memory or in that of the runtime's device",
                         fmt::format("device {} on a runtime of {}", array.device, name_of(runtime.device())),
                         "copy it to the host, or make the runtime with device = \"cuda\"");
}

constexpr int32_t kMostColumns = 1 << 20;  // of a strided array

int32_t strided_columns(const meshgrad_array& array) {
  const int32_t columns = array.rank - MESHGRAD_STRIDED;
  return array.rank > MESHGRAD_STRIDED && columns <= kMostColumns ? columns : 0;
}

void check_data(const meshgrad_array& array, uint64_t elements, const char* what) {
  if (elements > 0 && array.data == nullptr) throw invalid_argument(what, "data", "a null pointer");
}

size_t elements_of(const meshgrad_array& array, const char* what) {
  if (array.rank < 1 || array.rank > 3) {
    throw invalid_argument(what, "an array of rank 1 to 3, without gaps", fmt::format("rank {}", array.rank),
                           "set rank and shape; gaps are for fields and positions: rows of one stride below "
                           "2 GiB, in Fortran of "
                           "rank 1 or 2 and no component of a derived type");
  }
  uint64_t elements = 1;
  for (int32_t axis = 0; axis < array.rank; ++axis) {
    const int64_t extent = array.shape[axis];
    if (extent < 0 || __builtin_mul_overflow(elements, static_cast<uint64_t>(extent), &elements) ||
        elements > (uint64_t{1} << 48U))
      throw invalid_argument(what, "extents of 0 or more that fit in memory", fmt::format("{}", extent));
  }
  check_data(array, elements, what);
  return elements;
}

/// Rows of a strided array. What it reaches cannot be checked.
size_t strided_rows_of(const meshgrad_array& array, const char* what) {
  const int64_t rows = array.shape[0];
  if (rows < 0 || rows > INT32_MAX || (rows > 1 && array.row_bytes == 0)) {
    throw invalid_argument(what, "0 to 2147483647 rows, and from each to the next row_bytes other than 0",
                           fmt::format("{} rows, {} bytes", rows, array.row_bytes),
                           "make it by meshgrad_strided or meshgrad_components");
  }
  if (array.device != MESHGRAD_CPU) {
    throw invalid_argument(what, "an array without gaps, in a device's memory",
                           fmt::format("{} bytes from row to row", array.row_bytes),
                           "copy it there to one without, or to the host");
  }
  check_data(array, static_cast<uint64_t>(rows), what);
  return static_cast<size_t>(rows);
}

/// Numbers or WritableNumbers, of Floats = float or const float.
template <class Array, class Floats, class Doubles>
Array array_of(const Runtime& runtime, const meshgrad_array& array, const char* what) {
  const bool single = array.dtype == MESHGRAD_F32;
  if (!single && array.dtype != MESHGRAD_F64) throw_dtype(array, what, "MESHGRAD_F32 or MESHGRAD_F64");
  const Device device = device_of(runtime, array, what);
  if (const int32_t columns = strided_columns(array); columns > 0) {
    const size_t rows = strided_rows_of(array, what);
    const Strides strides{static_cast<size_t>(columns), array.row_bytes, array.shape[1], array.shape[2]};
    if (single) return StridedArray<Floats>{static_cast<Floats*>(array.data), rows, strides};
    return StridedArray<Doubles>{static_cast<Doubles*>(array.data), rows, strides};
  }
  const size_t elements = elements_of(array, what);
  if (single) return {std::span(static_cast<Floats*>(array.data), elements), device};
  return {std::span(static_cast<Doubles*>(array.data), elements), device};
}

/// Nothing for structures that cannot be read.
std::optional<bool> are_parts(const meshgrad_mesh* meshes, int32_t count) {
  if (meshes == nullptr) return std::nullopt;
  bool any = false;
  const auto* at = reinterpret_cast<const std::byte*>(meshes);
  for (int32_t i = 0; i < count; ++i) {
    const auto& next = *reinterpret_cast<const meshgrad_mesh*>(at);
    if (next.size != sizeof(meshgrad_mesh) && next.size != kMeshWithoutGhosts) return std::nullopt;
    any = any ||
          (next.size == sizeof(meshgrad_mesh) && (next.ghost_owner.rank != 0 || next.ghost_number.rank != 0));
    at += next.size;
  }
  return any;
}

}  // namespace

void throw_size(const char* structure, size_t ours, size_t given) {
  throw invalid_argument(
      fmt::format("{}: size", structure), fmt::format("{}, or less as in an earlier header", ours),
      fmt::format("{}", given),
      fmt::format("call {}_init first; a larger one needs the library of its header", structure));
}

void throw_null(const char* what) {
  throw invalid_argument(what, "a pointer", "NULL", "give one; _create makes a handle, in Fortran open");
}

int status_of_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return keep(status_of(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return keep(MESHGRAD_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const std::exception& error) {
    return keep(MESHGRAD_INTERNAL_ERROR, error.what());
  } catch (...) {
    return keep(MESHGRAD_INTERNAL_ERROR, "an unknown exception");
  }
}

Integers integers_of(const Runtime& runtime, const meshgrad_array& array, const char* what) {
  const Device device = device_of(runtime, array, what);
  const size_t elements = elements_of(array, what);
  if (array.dtype == MESHGRAD_I64) return {{static_cast<const int64_t*>(array.data), elements}, device};
  if (array.dtype != MESHGRAD_I32) throw_dtype(array, what, "MESHGRAD_I32 or MESHGRAD_I64");
  return {{static_cast<const int32_t*>(array.data), elements}, device};
}

Numbers numbers_of(const Runtime& runtime, const meshgrad_array& array, const char* what) {
  return array_of<Numbers, const float, const double>(runtime, array, what);
}

WritableNumbers writable_numbers_of(const Runtime& runtime, const meshgrad_array& array, const char* what) {
  return array_of<WritableNumbers, float, double>(runtime, array, what);
}

void check_columns(const meshgrad_array& array, int64_t columns, const char* what) {
  int64_t last = array.rank >= 1 && array.rank <= 3 ? array.shape[array.rank - 1] : columns;
  if (const int32_t strided = strided_columns(array); strided > 0) last = strided;
  if (array.rank < 2 || columns == 0 || last == columns) return;
  throw invalid_argument(what, fmt::format("{} columns: the last extent", columns), fmt::format("{}", last),
                         "give rows one after another; in Fortran the components are the first extent");
}

int components_of(const std::vector<FieldInfo>& fields, std::string_view name) {
  const auto field = std::ranges::find(fields, name, &FieldInfo::name);
  return field == fields.end() ? 0 : field->components;
}

Meshes::Meshes(const Runtime& runtime, const meshgrad_mesh* meshes, int32_t count, int dim)
    : runtime_(runtime), read_(runtime) {
  const auto* at = reinterpret_cast<const std::byte*>(&given(meshes, "mesh"));
  for (int32_t i = 0; i < count; ++i) {
    const auto& next = *reinterpret_cast<const meshgrad_mesh*>(at);
    const meshgrad_mesh mesh = completed(next, {}, {kMeshWithoutGhosts}, "meshgrad_mesh");
    at += next.size;  // of the caller's header
    check_columns(mesh.positions, dim, "mesh: positions");
    MeshArrays& arrays = arrays_.emplace_back();
    arrays.positions = numbers_of(runtime, mesh.positions, "mesh: positions");
    const auto nodes = static_cast<int64_t>(arrays.positions.size()) / dim;
    if (mesh.node_type.rank != 0) arrays.node_type = integers_of(runtime, mesh.node_type, "mesh: node_type");
    if (mesh.cells.rank != 0 && mesh.edges.rank != 0) {
      throw invalid_argument(
          "mesh", "cells or edges, not both",
          fmt::format("cells of rank {} and edges of rank {}", mesh.cells.rank, mesh.edges.rank),
          "leave the edges out: those of cells are found");
    }
    if (mesh.cells.rank == 2) {
      arrays.cells = numbers_from_zero(mesh.cells, mesh.first_node, nodes, "mesh: cells");
      arrays.nodes_per_cell = static_cast<int>(std::clamp<int64_t>(mesh.cells.shape[1], -1, 1000));
    } else if (mesh.cells.rank == 0 && mesh.edges.rank == 2 && mesh.edges.shape[1] == 2) {
      const std::span<const int32_t> pairs =
          numbers_from_zero(mesh.edges, mesh.first_node, nodes, "mesh: edges");
      std::vector<int32_t> columns(pairs.size());
      for (size_t e = 0; e < pairs.size() / 2; ++e) {
        columns[e] = pairs[2 * e];
        columns[pairs.size() / 2 + e] = pairs[2 * e + 1];
      }
      const std::span<const int32_t> kept = shifted_.emplace_back(std::move(columns));
      arrays.first = kept.first(kept.size() / 2);
      arrays.second = kept.last(kept.size() / 2);
    } else {
      throw invalid_argument("mesh", "cells [cells, nodes of a cell] or edges [edges, 2]",
                             fmt::format("arrays of rank {} and {}", mesh.cells.rank, mesh.edges.rank),
                             "give one of them; in Fortran a whole array, or a contiguous part");
    }
    if (mesh.ghost_owner.rank == 0 && mesh.ghost_number.rank == 0) continue;
    arrays.in_parts = true;
    arrays.ghost_owner = integers_of(runtime, mesh.ghost_owner, "mesh: ghost_owner");
    arrays.ghost_number =
        numbers_from_zero(mesh.ghost_number, mesh.first_node, INT32_MAX, "mesh: ghost_number");
  }
}

void Meshes::read(meshgrad_runtime& runtime, const meshgrad_mesh* meshes, int32_t count, int dim,
                  const std::function<void(std::span<const MeshArrays>)>& set) {
  std::optional<Meshes> ours;
  try {
    ours.emplace(runtime.runtime, meshes, count, dim);
  } catch (...) {
    const std::optional<bool> parts = are_parts(meshes, count);
    if (!parts) runtime.ranks.leave();
    if (parts && *parts) {
      const std::array<int32_t, 1> owner{};
      MeshArrays refused;
      refused.in_parts = true;
      refused.ghost_owner = owner;  // a ghost without a number
      try {
        set({&refused, 1});
      } catch (...) {  // the caller gets the reason instead
      }
    }
    throw;
  }
  set(ours->arrays());
}

/// Numbers that no node has are refused as the caller wrote them. `nodes`: of the process that they belong
/// to.
std::span<const int32_t> Meshes::numbers_from_zero(const meshgrad_array& array, int32_t first, int64_t nodes,
                                                   const char* what) {
  const int64_t columns = array.rank == 2 ? std::max<int64_t>(array.shape[1], 1) : 1;
  const std::span<const int32_t> numbers =
      read_.read(integers_of(runtime_, array, what), what, columns).values();
  if (first == 0) return numbers;
  std::vector<int32_t> shifted;
  shifted.reserve(numbers.size());
  for (const int32_t number : numbers) {
    const int64_t row = std::ssize(shifted) / columns;
    const int32_t from_zero = int32_of(int64_t{number} - first, what, row);
    if (from_zero < 0 || from_zero >= nodes) {
      throw data_error(
          fmt::format("{}, row {}", what, row),
          fmt::format("node numbers in {}..{}", first, first + nodes - 1), fmt::format("{}", number),
          "number nodes from first_node, in Fortran from 1; a cell with fewer nodes repeats its last");
    }
    shifted.push_back(from_zero);
  }
  return shifted_.emplace_back(std::move(shifted));
}

}  // namespace meshgrad::c

extern "C" const char* meshgrad_version() { return MESHGRAD_VERSION; }
extern "C" const char* meshgrad_last_error() { return meshgrad::c::last_error.data(); }
extern "C" void meshgrad_mesh_init_sized(meshgrad_mesh* mesh, size_t size) {
  meshgrad::c::initialise(mesh, size, {});
}
