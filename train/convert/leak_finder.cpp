// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/leak_finder.h>

#include <fmt/format.h>
#include <xxhash.h>

namespace meshgrad {

void LeakFinder::add(const PackedFileWriter::Trajectory& t) {
  XXH128_hash_t hash = XXH3_128bits(&t.mesh, sizeof t.mesh);
  for (const FieldData& field : t.fields) {
    const XXH128_hash_t next = XXH3_128bits_withSeed(field.bytes.data(), field.bytes.size(), hash.low64);
    hash = {next.low64, next.high64 ^ (hash.high64 * 3)};
  }
  const auto [known, added] = contents_.try_emplace({hash.low64, hash.high64}, Origin{t.name, t.split});
  if (added || known->second.split == t.split || count_++ > 0) return;
  first_ =
      fmt::format("[{}] in split {}: mesh and fields are those of {} in split {}, so errors there say little",
                  t.name, t.split, known->second.name, known->second.split);
}

std::string LeakFinder::text() const {
  return count_ > 1 ? fmt::format("{} (and {} more like it)", first_, count_ - 1) : first_;
}

}  // namespace meshgrad
