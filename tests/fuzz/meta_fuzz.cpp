// SPDX-License-Identifier: Apache-2.0
// meta.json of DeepMind's data sets: any bytes are an error, or features whose sizes can be multiplied.
#include <meshgrad/train/convert/sources/deepmind_meta.h>

#include <cmath>
#include <string_view>

#include "fuzz/fuzz.h"

using namespace meshgrad;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::expect_value_or_error([&] {
    const DeepmindMeta meta = parse_deepmind_meta(text, "meta.json", [](const std::string& warning) {
      if (warning.empty()) __builtin_trap();
    });
    if (!std::isfinite(meta.dt) || meta.dt < 0) __builtin_trap();
    for (const DeepmindFeature& feature : meta.features)
      if (feature.components < 1 || feature.components > 65535 || feature.frames == 0 || feature.nodes == 0)
        __builtin_trap();
  });
  return 0;
}
