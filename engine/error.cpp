// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>

#include <algorithm>
#include <utility>

namespace meshgrad {
namespace {

std::string text_of(std::string_view where, std::string_view needed, std::string_view got,
                    std::string_view fix) {
  std::string text =
      "[" + std::string(where) + "] needed " + std::string(needed) + ", got " + std::string(got);
  if (!fix.empty()) text += "; fix: " + std::string(fix);
  return text;
}

/// Damerau-Levenshtein distance: the fewest insertions, deletions, replacements and swaps of neighbours.
size_t edit_distance(std::string_view a, std::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<size_t> d((a.size() + 1) * columns);
  const auto at = [&](size_t i, size_t j) -> size_t& { return d[i * columns + j]; };
  for (size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({replaced, at(i - 1, j) + 1, at(i, j - 1) + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return d.back();
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
RankError rank_error(std::string_view where, std::string_view needed, std::string_view got,
                     std::string_view fix) {
  return RankError(text_of(where, needed, got, fix));
}

ThreadsUnavailable::ThreadsUnavailable(std::string what_needed, std::string what_got)
    : InvalidArgument(
          text_of("threads", what_needed, what_got,
                  "use fewer threads, or raise the limit (ulimit -u, or the control group's pids.max)")),
      needed(std::move(what_needed)),
      got(std::move(what_got)) {}

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
