// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/detail/placement_policy.h>

#include <algorithm>
#include <limits>

namespace meshgrad {
namespace {

constexpr uint64_t kLogSize = uint64_t{1} << 15;   // a few training steps of some thousand allocations
constexpr uint64_t kLastSize = uint64_t{1} << 14;  // more than a step has different contexts; 128 KiB
constexpr uint64_t kMaxAge = 64;        // greater ages vary with what came between, e.g. an evaluation
constexpr int kMaxMismatches = 2;       // a single difference is chance: two sizes changed their order
constexpr float kMeanRate = 1.0F / 32;  // faster than micro-batches change, slower than single blocks
constexpr float kUnknown = std::numeric_limits<float>::infinity();

// Chosen by replay of MeshGraphNet training, plain, accumulated and recomputed, at five scales each.
constexpr float kShortLife = 0.3F;  // of the peak: freed before the next rise to the peak is well under way
constexpr float kMinShortLived = 0.2F;  // of recent bytes; with fewer short-lived ones two ends do not pay
constexpr float kRecent = 16;           // recent bytes are halved when they reach this many peaks
constexpr float kLarge = 0.025F;        // of the peak: holes left by smaller blocks are soon filled
// Small blocks are mostly parameters and their gradients, which stay and would split large holes. A heap of
// mostly small blocks has no large holes to protect, though, and slabs waste their ends.
constexpr int64_t kSmall = 256 << 10;
static_assert(kSmall + 4096 <= BlockHeap::kSlab, "a small block fits in a slab at any alignment");
constexpr int kMaxSmallShare =
    4;  // slabs are used while small blocks are below 1 / kMaxSmallShare of the peak

// In the first step predictions are guesses, from layer to layer. They are used once 64 more were right than
// wrong, a wrong one counting eight times.
constexpr int kMinConfidence = 64;
constexpr int kPenalty = 8;

constexpr uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

}  // namespace

PlacementPolicy::Entry& PlacementPolicy::entry(uint64_t number) { return log_[number & (kLogSize - 1)]; }

bool PlacementPolicy::in_log(uint64_t number) const { return number != 0 && next_ - number < kLogSize; }

/// Advances the matching history position by one. If the history differs there, jumps to where the last eight
/// contexts occurred before. nullptr without a match.
const PlacementPolicy::Entry* PlacementPolicy::find_match(uint32_t context) {
  contexts_ = contexts_ << 8 | (context & 255);
  uint64_t& last = last_[mix(0, contexts_) & (kLastSize - 1)];
  const uint64_t elsewhere = last;
  last = next_;
  const auto matches = [&](uint64_t number) { return in_log(number) && entry(number).context == context; };
  if (match_ != 0) ++match_;
  if (matches(match_)) {
    mismatches_ = std::max(mismatches_ - 1, 0);
    return &entry(match_);
  }
  if (in_log(match_) && ++mismatches_ < kMaxMismatches) return nullptr;
  if (!matches(elsewhere)) return nullptr;
  match_ = elsewhere;
  mismatches_ = 0;
  return &entry(match_);
}

/// Bytes that will be allocated before the requested block is freed; adds the allocation to the log.
float PlacementPolicy::predict(int64_t bytes, uint64_t owner) {
  // The context is free of scale: the ages of freed blocks, and whether the size is as before, smaller or
  // larger.
  const int trend = bytes == previous_bytes_ ? 0 : bytes < previous_bytes_ ? 1 : 2;
  const auto context = static_cast<uint32_t>(mix(mix(frees_, owner), static_cast<uint64_t>(trend)));
  frees_ = 0;
  previous_bytes_ = bytes;
  const Entry* const match = find_match(context);
  float life = kUnknown;
  if (match != nullptr) {
    size_now_ += (static_cast<float>(bytes) - size_now_) * kMeanRate;
    size_then_ += (match->bytes - size_then_) * kMeanRate;
    // Activations grow with the mesh, and so do the bytes allocated during their lives; parameters keep their
    // size.
    const auto size = static_cast<float>(bytes);
    life = match->life * (size == match->bytes ? size_now_ / size_then_ : size / match->bytes);
  }
  entry(next_) = {context, static_cast<float>(bytes), kUnknown, life};
  return life;
}

Placement PlacementPolicy::place(int64_t bytes, uint64_t owner, Ticket& ticket) {
  if (log_.empty()) {
    log_.resize(kLogSize);
    last_.resize(kLastSize);
  }
  const float life = predict(bytes, owner);
  const int64_t most = std::max({recent_peak_, earlier_peak_, live_ + bytes});
  const auto peak = static_cast<float>(most);
  const bool small = bytes <= kSmall, large = static_cast<float>(bytes) >= kLarge * peak;
  ticket = {next_++, clock_ + bytes, !small && large && life < kShortLife * peak};
  if (small) return kMaxSmallShare * (small_ + bytes) < most ? Placement::slab : Placement::low;
  const bool pays = short_lived_bytes_ >= kMinShortLived * recent_bytes_;
  return confidence_ >= kMinConfidence && ticket.short_lived && pays ? Placement::high : Placement::low;
}

void PlacementPolicy::allocated(int64_t bytes, const Ticket& ticket) {
  clock_ += bytes;
  if (bytes <= kSmall) small_ += bytes;
  // A peak counts for as long as the log may hold what led to it.
  if (next_ - window_ > kLogSize) {
    window_ = next_;
    earlier_peak_ = recent_peak_;
    recent_peak_ = 0;
  }
  live_ += bytes;
  recent_peak_ = std::max(recent_peak_, live_);
  recent_bytes_ += static_cast<float>(bytes);
  if (ticket.short_lived) short_lived_bytes_ += static_cast<float>(bytes);
  if (recent_bytes_ > kRecent * static_cast<float>(recent_peak_)) {
    recent_bytes_ /= 2;
    short_lived_bytes_ /= 2;
  }
}

void PlacementPolicy::freed(int64_t bytes, const Ticket& ticket) {
  live_ -= bytes;
  if (bytes <= kSmall) small_ -= bytes;
  if (in_log(ticket.number)) {
    Entry& freed = entry(ticket.number);
    freed.life = static_cast<float>(clock_ - ticket.clock);
    const bool right = freed.life <= 2 * freed.predicted && freed.predicted <= 2 * freed.life;
    if (freed.predicted != kUnknown && bytes > kSmall)
      confidence_ =
          right ? std::min(confidence_ + 1, 2 * kMinConfidence) : std::max(confidence_ - kPenalty, 0);
  }
  frees_ = mix(frees_ + 1, std::min(next_ - ticket.number, kMaxAge));
}

}  // namespace meshgrad
