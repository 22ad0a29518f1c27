// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/detail/placement_policy.h>

#include <algorithm>
#include <limits>

namespace meshgrad {
namespace {

constexpr uint64_t kLog = uint64_t{1} << 15;   // a few training steps of some thousand allocations
constexpr uint64_t kLast = uint64_t{1} << 14;  // more than a step has different contexts; 128 KiB
constexpr uint64_t kOld = 64;                  // greater ages vary with what came between, e.g. an evaluation
constexpr int kPatience = 2;                   // a single difference is chance: two sizes changed their order
constexpr float kForget = 1.0F / 32;           // faster than micro-batches change, slower than single blocks
constexpr float kUnknown = std::numeric_limits<float>::infinity();

// By replay of MeshGraphNet training, plain, accumulated and recomputed, at five scales each.
constexpr float kBrief = 0.3F;      // of the peak: gone before the next rise to the peak is well under way
constexpr float kWorth = 0.2F;      // of the bytes allocated lately: so much is brief, or two ends do not pay
constexpr float kMemory = 16;       // peaks: how long "lately" is
constexpr float kWeighty = 0.025F;  // of the peak: the holes that lighter brief blocks leave are soon filled
// Parameters and their gradients, which stay and would split large holes; but a heap mostly of small blocks
// has no large holes to protect, and slabs waste their ends.
constexpr int64_t kSmall = 256 << 10;
static_assert(kSmall + 4096 <= BlockHeap::kSlab, "what goes to a slab fits in one, however it is aligned");
constexpr int kSmallShare = 4;

// In a first step forecasts are guesses, from layer to layer: believed when 64 more came true than did not, a
// false one counting for eight.
constexpr int kTrust = 64;
constexpr int kDoubt = 8;

constexpr uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

}  // namespace

PlacementPolicy::Birth& PlacementPolicy::birth(uint64_t number) { return log_[number & (kLog - 1)]; }

bool PlacementPolicy::in_log(uint64_t number) const { return number != 0 && births_ - number < kLog; }

/// Goes one step forward in the log; when it tells another story there, jumps to where the last contexts
/// occurred before. nullptr when the present has no precedent.
const PlacementPolicy::Birth* PlacementPolicy::precedent(uint32_t context) {
  contexts_ = contexts_ << 8 | (context & 255);
  uint64_t& last = last_[mix(0, contexts_) & (kLast - 1)];
  const uint64_t elsewhere = last;
  last = births_;
  const auto resembles = [&](uint64_t number) { return in_log(number) && birth(number).context == context; };
  if (followed_ != 0) ++followed_;
  if (resembles(followed_)) {
    strikes_ = std::max(strikes_ - 1, 0);
    return &birth(followed_);
  }
  if (in_log(followed_) && ++strikes_ < kPatience) return nullptr;
  if (!resembles(elsewhere)) return nullptr;
  followed_ = elsewhere;
  strikes_ = 0;
  return &birth(followed_);
}

/// Bytes that will be allocated before the block that is asked for is freed.
float PlacementPolicy::foretell(int64_t bytes, uint64_t owner) {
  // Free of scale: which ages were freed, and whether the size is as before, smaller or larger.
  const int trend = bytes == previous_bytes_ ? 0 : bytes < previous_bytes_ ? 1 : 2;
  const auto context = static_cast<uint32_t>(mix(mix(frees_, owner), static_cast<uint64_t>(trend)));
  frees_ = 0;
  previous_bytes_ = bytes;
  const Birth* const then = precedent(context);
  float life = kUnknown;
  if (then != nullptr) {
    size_now_ += (static_cast<float>(bytes) - size_now_) * kForget;
    size_then_ += (then->bytes - size_then_) * kForget;
    // Activations grow with the mesh, and what is allocated meanwhile with them; parameters do not.
    const auto size = static_cast<float>(bytes);
    life = then->life * (size == then->bytes ? size_now_ / size_then_ : size / then->bytes);
  }
  birth(births_) = {context, static_cast<float>(bytes), kUnknown, life};
  return life;
}

Placement PlacementPolicy::place(int64_t bytes, uint64_t owner, Ticket& ticket) {
  if (log_.empty()) {
    log_.resize(kLog);
    last_.resize(kLast);
  }
  const float life = foretell(bytes, owner);
  const int64_t most = std::max({recent_peak_, earlier_peak_, live_ + bytes});
  const auto peak = static_cast<float>(most);
  const bool small = bytes <= kSmall, weighty = static_cast<float>(bytes) >= kWeighty * peak;
  ticket = {births_++, clock_ + bytes, !small && weighty && life < kBrief * peak};
  if (small) return kSmallShare * (small_ + bytes) < most ? Placement::slab : Placement::low;
  const bool pays = brief_bytes_ >= kWorth * recent_bytes_;
  return trust_ >= kTrust && ticket.brief && pays ? Placement::high : Placement::low;
}

void PlacementPolicy::taken(int64_t bytes, const Ticket& ticket) {
  clock_ += bytes;
  if (bytes <= kSmall) small_ += bytes;
  // A peak counts until the log has forgotten what led to it.
  if (births_ - window_ > kLog) {
    window_ = births_;
    earlier_peak_ = recent_peak_;
    recent_peak_ = 0;
  }
  live_ += bytes;
  recent_peak_ = std::max(recent_peak_, live_);
  recent_bytes_ += static_cast<float>(bytes);
  if (ticket.brief) brief_bytes_ += static_cast<float>(bytes);
  if (recent_bytes_ > kMemory * static_cast<float>(recent_peak_)) {
    recent_bytes_ /= 2;
    brief_bytes_ /= 2;
  }
}

void PlacementPolicy::freed(int64_t bytes, const Ticket& ticket) {
  live_ -= bytes;
  if (bytes <= kSmall) small_ -= bytes;
  if (in_log(ticket.number)) {
    Birth& gone = birth(ticket.number);
    gone.life = static_cast<float>(clock_ - ticket.born);
    const bool came_true = gone.life <= 2 * gone.foretold && gone.foretold <= 2 * gone.life;
    if (gone.foretold != kUnknown && bytes > kSmall)
      trust_ = came_true ? std::min(trust_ + 1, 2 * kTrust) : std::max(trust_ - kDoubt, 0);
  }
  frees_ = mix(frees_ + 1, std::min(births_ - ticket.number, kOld));
}

}  // namespace meshgrad
