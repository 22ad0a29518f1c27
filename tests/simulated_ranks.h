// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of a test. Messages arrive late and in another order than they were sent, by a seed;
// a rank can hang or end in the middle.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace meshgrad::test {

struct SimulatedNetwork {
  int ranks = 2;
  uint64_t seed = 1;
  std::chrono::microseconds latest{200};  ///< a message arrives up to so long after it was sent
  int ranks_per_host = 1 << 20;
  std::chrono::milliseconds timeout{20'000};
  /// This rank sends nothing more from its exchange number `at` on: it hangs, or it ends without a word.
  struct Loss {
    int rank = -1;
    int64_t at = 0;
    bool hangs = false;
  } loss;
  /// Called on a rank's thread when it starts messages, with their bytes.
  std::function<void(int rank, int64_t bytes)> observer = nullptr;
};

/// How each rank ended: empty, or the text of its error.
using Endings = std::vector<std::string>;

/// Runs `body` on every rank at once. An error of a rank ends its Ranks, which tells the others.
Endings try_on_ranks(const SimulatedNetwork& network, const std::function<void(Ranks&)>& body);

/// The same, when no rank may fail: throws the first error as a std::runtime_error.
void on_ranks(const SimulatedNetwork& network, const std::function<void(Ranks&)>& body);
inline void on_ranks(int ranks, const std::function<void(Ranks&)>& body) {
  on_ranks(SimulatedNetwork{.ranks = ranks, .loss = {}}, body);
}

}  // namespace meshgrad::test
