// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/safetensors.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace meshgrad {
namespace {

/// A JSON string literal; InvalidArgument when the text is not UTF-8.
std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw invalid_argument("write_safetensors", "names and metadata in UTF-8", "bytes that are not UTF-8");
  }
}

/// Of its shape; -1: too many, or a negative extent.
std::int64_t bytes_of(const SafetensorsTensor& tensor) {
  auto bytes = static_cast<std::int64_t>(dtype_size(tensor.dtype));
  for (const std::int64_t extent : tensor.shape)
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return -1;
  return bytes;
}

void check_tensor(const SafetensorsTensor& tensor) {
  if (tensor.name.empty() || tensor.name == "__metadata__") {
    throw invalid_argument("write_safetensors", "a tensor name that is neither empty nor __metadata__",
                           fmt::format("\"{}\"", tensor.name));
  }
  if (std::cmp_not_equal(bytes_of(tensor), tensor.bytes.size())) {
    throw invalid_argument(
        fmt::format("write_safetensors: tensor \"{}\"", tensor.name),
        fmt::format("as many bytes as {} [{}] has", dtype_name(tensor.dtype), fmt::join(tensor.shape, ", ")),
        fmt::format("{} bytes", tensor.bytes.size()));
  }
}

/// The canonical order: widest values first, so that every tensor is aligned; then by name.
std::vector<SafetensorsTensor> sorted(std::span<const SafetensorsTensor> tensors) {
  std::vector<SafetensorsTensor> order(tensors.begin(), tensors.end());
  for (const SafetensorsTensor& tensor : order) check_tensor(tensor);
  std::ranges::sort(order, {}, &SafetensorsTensor::name);
  const auto twin = std::ranges::adjacent_find(order, {}, &SafetensorsTensor::name);
  if (twin != order.end()) {
    throw invalid_argument("write_safetensors", "each name once", fmt::format("\"{}\" twice", twin->name));
  }
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [](const SafetensorsTensor& tensor) { return dtype_size(tensor.dtype); });
  return order;
}

}  // namespace

std::string safetensors_header(std::span<const SafetensorsTensor> tensors,
                               const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> items;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata) pairs.push_back(quoted(key) + ":" + quoted(value));
    items.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(pairs, ",")));
  }
  std::int64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const std::int64_t end = offset + bytes_of(tensor);
    items.push_back(fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                                quoted(tensor.name), dtype_name(tensor.dtype), fmt::join(tensor.shape, ","),
                                offset, end));
    offset = end;
  }
  std::string header = fmt::format("{{{}}}", fmt::join(items, ","));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  header.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  return header;
}

void write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<SafetensorsTensor> order = sorted(tensors);
  AtomicFile file(path);
  file.write(safetensors_header(order, metadata));
  for (const SafetensorsTensor& tensor : order) file.write(tensor.bytes);
  file.commit();
}

}  // namespace meshgrad
