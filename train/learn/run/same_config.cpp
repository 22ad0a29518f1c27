// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/same_config.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace meshgrad {
namespace {

constexpr std::string_view kComparison = "comparison of configurations";

/// "section.key = value", a line for each key. No value contains the end of a line.
std::string lines_of(const Config& config) {
  std::string text;
  for (const ConfigKey& key : config_keys())
    text += fmt::format("{} = {}\n", full_name(key), toml_literal(key, config));
  return text;
}

std::string text_of_rank(Ranks& ranks, int rank, std::string text) {
  auto size = static_cast<int64_t>(text.size());
  broadcast(ranks, std::as_writable_bytes(std::span(&size, 1)), rank, kComparison);
  text.resize(static_cast<size_t>(size));
  broadcast(ranks, std::as_writable_bytes(std::span(text)), rank, kComparison);
  return text;
}

std::string_view line_at(std::string_view text, size_t begin) {
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::string_view value_of(std::string_view line) {
  const size_t equals = line.find(" = ");
  return equals == std::string_view::npos ? "no such key" : line.substr(equals + 3);
}

}  // namespace

void check_same_config(Ranks& ranks, const Config& config, std::string_view fix) {
  const std::string mine = lines_of(config);
  const std::vector<uint64_t> hashes = all_gather(ranks, hash_of(mine), kComparison);
  const auto found = std::ranges::find_if(hashes, [&](uint64_t hash) { return hash != hashes.front(); });
  if (found == hashes.end()) return;
  const auto other = static_cast<int>(found - hashes.begin());
  const std::string a = text_of_rank(ranks, 0, mine), b = text_of_rank(ranks, other, mine);
  const auto at = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const size_t begin = at == 0 ? 0 : a.rfind('\n', at - 1) + 1;  // npos + 1 is 0
  const std::string_view first = line_at(a, begin), second = line_at(b, begin);
  // Another version of the program may have other keys, so a line may be of another key, or none.
  throw config_error(first.substr(0, first.find(" = ")), "the same value on all ranks",
                     fmt::format("{} on rank 0 and {} on rank {}", value_of(first), value_of(second), other),
                     fix);
}

}  // namespace meshgrad
