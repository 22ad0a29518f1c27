// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>

#include <algorithm>
#include <numeric>

namespace meshgrad {
namespace {

std::string text_of(std::string_view where, std::string_view needed, std::string_view got,
                    std::string_view fix) {
  std::string text =
      "[" + std::string(where) + "] needed " + std::string(needed) + ", got " + std::string(got);
  if (!fix.empty()) text += "; fix: " + std::string(fix);
  return text;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

InvalidArgument invalid_argument(std::string_view where, std::string_view needed, std::string_view got,
                                 std::string_view fix) {
  return InvalidArgument(text_of(where, needed, got, fix));
}
ConfigError config_error(std::string_view where, std::string_view needed, std::string_view got,
                         std::string_view fix) {
  return ConfigError(text_of(where, needed, got, fix));
}
DataError data_error(std::string_view where, std::string_view needed, std::string_view got,
                     std::string_view fix) {
  return DataError(text_of(where, needed, got, fix));
}
DeviceError device_error(std::string_view where, std::string_view needed, std::string_view got,
                         std::string_view fix) {
  return DeviceError(text_of(where, needed, got, fix));
}

InternalError internal_error(std::string_view what, const char* file, int line) {
  return InternalError(std::string(what) + " (" + file + ":" + std::to_string(line) +
                       "); this is a bug in meshgrad, please report it");
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace meshgrad
