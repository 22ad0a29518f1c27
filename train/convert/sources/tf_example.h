// SPDX-License-Identifier: Apache-2.0
// tf.Example, the protocol-buffer message inside a TFRecord: a map from names to features, of which only raw
// bytes matter here (DeepMind's data sets store each field as one buffer).
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshgrad {

/// Name -> the one raw buffer of that feature; spans into the message.
using Example = std::map<std::string, std::span<const std::byte>, std::less<>>;

/// Throws DataError with `where` (and the feature's name) when the bytes are not a tf.Example, or a feature
/// does not hold exactly one bytes value. Defined for any bytes. Unknown fields are skipped, as protocol
/// buffers require.
Example parse_example(std::span<const std::byte> message, std::string_view where);

/// The message for features of one raw buffer each.
std::vector<std::byte> write_example(
    const std::vector<std::pair<std::string, std::span<const std::byte>>>& features);

}  // namespace meshgrad
