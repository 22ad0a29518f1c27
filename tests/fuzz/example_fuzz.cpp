// SPDX-License-Identifier: Apache-2.0
// tf.Example messages; what parses must lie inside the message and survive being written and read again.
#include <meshgrad/train/convert/sources/tf_example.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/fuzz.h"

using namespace meshgrad;

namespace {

bool same(const Example& a, const Example& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
           return x.first == y.first && std::ranges::equal(x.second, y.second);
         });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto message = fuzz::bytes_of(data, size);
  fuzz::expect_value_or_error([&] {
    const Example example = parse_example(message, "fuzz.tfrecord: record 0");
    std::vector<std::pair<std::string, std::span<const std::byte>>> features;
    for (const auto& [name, buffer] : example) {
      if (!buffer.empty() && (buffer.data() < message.data() ||
                              buffer.data() + buffer.size() > message.data() + message.size())) {
        __builtin_trap();
      }
      features.emplace_back(name, buffer);
    }
    const std::vector<std::byte> written = write_example(features);
    if (!same(example, parse_example(written, "written"))) __builtin_trap();
  });
  return 0;
}
