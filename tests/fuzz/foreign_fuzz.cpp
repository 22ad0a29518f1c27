// SPDX-License-Identifier: Apache-2.0
// Weights of other frameworks: names, shapes and normalisers of any safetensors file, read as each source's.
// The header's length is set to what the file holds, so that the JSON is reached.
#include <meshgrad/train/tools/extras/foreign_weights.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"

using namespace meshgrad;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  const auto given = fuzz::bytes_of(data, size);
  std::vector<std::byte> file(given.begin(), given.end());
  const size_t brace = std::string_view(reinterpret_cast<const char*>(data), size).rfind('}');
  const uint64_t length = brace == std::string_view::npos || brace < 8 ? 0 : brace - 7;
  std::memcpy(file.data(), &length, sizeof length);
  for (const WeightSource source : {WeightSource::physicsnemo, WeightSource::deepmind, WeightSource::pyg}) {
    fuzz::expect_value_or_error([&] {
      const SafetensorsView view = parse_safetensors(file, "fuzz.safetensors");
      ForeignModel model = read_foreign_model(view, source);
      for (const auto& [name, parameter] : model.parameters) {
        size_t elements = 1;
        for (const int64_t rows : parameter.shape) elements *= static_cast<size_t>(rows);
        if (parameter.values.size() != elements) __builtin_trap();
      }
      if (source == WeightSource::pyg && !model.gat && !model.vgae) reverse_relative_positions(model);
    });
  }
  return 0;
}
