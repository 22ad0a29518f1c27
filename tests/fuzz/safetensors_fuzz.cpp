// SPDX-License-Identifier: Apache-2.0
// safetensors files: raw, and with the header's length set to what the file holds, so that the JSON is
// reached.
#include <meshgrad/train/data/safetensors.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"

using namespace meshgrad;

namespace {

void read_all(std::span<const std::byte> file) {
  fuzz::expect_value_or_error([&] {
    const SafetensorsView view = parse_safetensors(file, "fuzz.safetensors");
    for (const SafetensorsTensor& tensor : view.tensors) {
      if (view.at(tensor.name).bytes.data() != tensor.bytes.data()) __builtin_trap();
      if (to_f64(tensor).size() != tensor.elements()) __builtin_trap();
      if (to_f32(tensor).size() != tensor.elements()) __builtin_trap();
      fuzz::expect_value_or_error([&] { to_i64(tensor); });
    }
  });
}

// The header is taken to end at the last brace.
std::vector<std::byte> with_length(std::span<const std::byte> file) {
  std::vector<std::byte> copy(file.begin(), file.end());
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const size_t brace = text.rfind('}');
  const uint64_t length = brace == std::string_view::npos || brace < 8 ? 0 : brace - 7;
  std::memcpy(copy.data(), &length, sizeof length);
  return copy;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = fuzz::bytes_of(data, size);
  read_all(file);
  if (size >= 8) read_all(with_length(file));
  return 0;
}
