// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/tensor.h>
#include <meshgrad/train/embed/host_copies.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace meshgrad {
namespace {

template <class Array>
Array here(const Array& array, std::byte* memory) {
  if (array.wide()) return std::span(reinterpret_cast<double*>(memory), array.size());
  return std::span(reinterpret_cast<float*>(memory), array.size());
}

size_t size_in_bytes(const auto& array) {
  return array.size() * (array.wide() ? sizeof(double) : sizeof(float));
}

void check_one_kind(const MeshArrays& mesh) {
  const bool edges = !mesh.first.empty() || !mesh.second.empty();
  if (edges && (mesh.nodes_per_cell != 0 || !mesh.cells.empty())) {
    throw invalid_argument(
        "mesh", "cells or edges, not both",
        fmt::format("{} nodes a cell, and {} edges", mesh.nodes_per_cell, mesh.first.size()),
        "leave the edges out: those of cells are found");
  }
  if (mesh.nodes_per_cell == 0 && !mesh.cells.empty()) {
    throw invalid_argument("mesh: nodes_per_cell", "the number of nodes of each cell", "0",
                           "set it to 3, 4 or 8");
  }
}

/// Cells may repeat a node, as in [a, b, c, c], but none has a single one.
void check_cells(const MeshArrays& mesh) {
  const std::span<const int32_t> cells = mesh.cells.values();
  const auto width = static_cast<size_t>(std::max(mesh.nodes_per_cell, 0));
  for (size_t row = 0; width > 0 && (row + 1) * width <= cells.size(); ++row) {
    const auto nodes = cells.subspan(row * width, width);
    if (std::ranges::count(nodes, nodes.front()) != std::ssize(nodes)) continue;
    throw data_error(fmt::format("mesh: cells, row {}", row), "a cell of several nodes",
                     fmt::format("the same node {} times", width),
                     "look for cells that were never set; a cell with fewer nodes repeats its last");
  }
}

}  // namespace

int32_t int32_of(int64_t value, std::string_view what, int64_t row) {
  if (std::in_range<int32_t>(value)) return static_cast<int32_t>(value);
  throw data_error(
      fmt::format("{}, row {}", what, row), "numbers of 32 bits: below 2147483648", fmt::format("{}", value),
      "look for a number that was never set; a process takes fewer than 2^31 nodes, so give each "
      "one its part of a larger mesh");
}

void check_device(const Runtime& runtime, Device device, std::string_view what) {
  if (device == runtime.device()) return;
  throw invalid_argument(
      what, "an array in the host's memory or in that of the runtime's device",
      fmt::format("an array on {}, and a runtime of {}", name_of(device), name_of(runtime.device())),
      "copy it to the host, or make the runtime on its device");
}

void check_on_device(const Runtime& runtime, const void* data, int64_t bytes, Device device,
                     std::string_view what) {
  check_device(runtime, device, what);
  if (bytes == 0 || gpu::owns(device.index, data, bytes)) return;
  throw invalid_argument(what, fmt::format("{} bytes of memory of {}", bytes, name_of(device)),
                         fmt::format("{}, outside of the allocated memory", fmt::ptr(data)),
                         "keep the array allocated for as long as it is read, and set its device");
}

HostCopies::Copy* HostCopies::add(const void* data, size_t bytes, Device device, std::string_view what) {
  if (device.kind == DeviceKind::cpu) return nullptr;
  check_device(*runtime_, device, what);
  return &copies_.emplace_back(
      Copy{const_cast<void*>(data), std::vector<std::byte>(bytes), std::string(what)});
}

Numbers HostCopies::room_for(const Numbers& values, std::string_view what) {
  if (values.has_gaps()) return values;  // on the host
  Copy* const copied = add(values.data(), size_in_bytes(values), values.device(), what);
  return copied == nullptr ? values : here(values, copied->memory.data());
}

WritableNumbers HostCopies::room_for(const WritableNumbers& values, std::string_view what) {
  if (values.has_gaps()) return values;
  Copy* const copied = add(values.data(), size_in_bytes(values), values.device(), what);
  return copied == nullptr ? values : here(values, copied->memory.data());
}

Numbers HostCopies::read(const Numbers& values, std::string_view what) {
  const Numbers copied = room_for(values, what);
  if (copied.data() != values.data()) transfer(copies_.back(), false);
  return copied;
}

Integers HostCopies::read(const Integers& values, std::string_view what, int64_t columns) {
  const size_t bytes = values.size() * (values.wide() ? sizeof(int64_t) : sizeof(int32_t));
  Copy* const copied = add(values.data(), bytes, values.device(), what);
  const void* at = values.data();
  if (copied != nullptr) {
    transfer(*copied, false);
    at = copied->memory.data();
  }
  if (!values.wide()) return std::span(static_cast<const int32_t*>(at), values.size());
  std::vector<int32_t>& narrow = narrowed_.emplace_back();
  narrow.reserve(values.size());
  for (const int64_t value : std::span(static_cast<const int64_t*>(at), values.size()))
    narrow.push_back(int32_of(value, what, std::ssize(narrow) / std::max<int64_t>(columns, 1)));
  return narrow;
}

MeshArrays HostCopies::read(MeshArrays mesh) {
  mesh.positions = read(mesh.positions, "mesh: positions");
  mesh.node_type = read(mesh.node_type, "mesh: node_type");
  return read_connections(mesh);
}

MeshArrays HostCopies::read_connections(MeshArrays mesh) {
  check_one_kind(mesh);
  mesh.cells = read(mesh.cells, "mesh: cells", mesh.nodes_per_cell);
  mesh.first = read(mesh.first, "mesh: edges");
  mesh.second = read(mesh.second, "mesh: edges");
  check_cells(mesh);
  mesh.ghost_owner = read(mesh.ghost_owner, "mesh: ghost_owner");
  mesh.ghost_number = read(mesh.ghost_number, "mesh: ghost_number");
  return mesh;
}

void HostCopies::read_again() const {
  for (const Copy& copied : copies_) transfer(copied, false);
}

void HostCopies::write_back() const {
  for (const Copy& copied : copies_) transfer(copied, true);
}

void HostCopies::transfer(const Copy& copied, bool to_device) const {
  if (copied.memory.empty()) return;
  check_on_device(*runtime_, copied.device, std::ssize(copied.memory), runtime_->device(), copied.what);
  const Shape shape{static_cast<int64_t>(copied.memory.size())};
  const Tensor host = Tensor::borrow(const_cast<std::byte*>(copied.memory.data()), shape, DType::u8);
  const Tensor device = Tensor::borrow(copied.device, shape, DType::u8, {}, runtime_->device());
  copy(to_device ? host : device, to_device ? device : host, runtime_->stream());
  runtime_->stream().synchronize();
}

}  // namespace meshgrad
