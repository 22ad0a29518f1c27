// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/ranks/mpi.h>
#include <meshgrad/train/cli/failure.h>
#include <meshgrad/train/cli/launch.h>
#include <meshgrad/train/cli/output.h>

#include <fmt/format.h>

#include <chrono>
#include <optional>

namespace meshgrad::cli {

int on_ranks(const RanksOptions& options, const std::function<int(Ranks&)>& work) {
  Ranks ranks = launched_ranks(options);
  if (ranks.single()) return work(ranks);
  try {
    const int code = work(ranks);
    ranks.finish();
    return code;
  } catch (...) {
    const Failure failure = current_failure();
    // What all ranks see, such as a missing file, is told once: by rank 0, which ends the others.
    const std::chrono::seconds rank_0_first{ranks.first() ? 0 : 2};
    if (const std::optional<int> code = ranks.ended_by_other(rank_0_first)) return *code;
    print_error(fmt::format("rank {}: {}", ranks.rank(), failure.text), false);
    ranks.abort(failure.exit_code);
    return failure.exit_code;
  }
}

int on_first_rank(const std::function<int()>& work) {
  constexpr std::chrono::hours kAsLongAsItTakes{24 * 365};  // the launcher, or TCP, ends us when rank 0 dies
  return on_ranks({.timeout = kAsLongAsItTakes}, [&](Ranks& ranks) { return ranks.first() ? work() : 0; });
}

Device device_of_rank(const std::string& word, DType precision, const GlobalOptions& globals, Ranks& ranks,
                      std::string_view option) {
  const size_t devices = cuda_devices().size();
  const bool on_gpu = word == "cuda" || (word == "auto" && precision != DType::f64);
  GlobalOptions quiet = globals;
  quiet.quiet = globals.quiet || !ranks.first();
  if (ranks.single() || devices < 2 || !on_gpu) return chosen_device(word, precision, quiet, option);
  return chosen_device(fmt::format("cuda:{}", static_cast<size_t>(ranks.local_rank()) % devices), precision,
                       quiet, option);
}

}  // namespace meshgrad::cli
