// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/ranks/cpu_share.h>
#include <meshgrad/engine/ranks/mpi.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/tools/program/failure.h>
#include <meshgrad/train/tools/program/launch.h>
#include <meshgrad/train/tools/program/output.h>

#include <fmt/format.h>

#include <chrono>
#include <thread>

namespace meshgrad::cli {
namespace {

constexpr std::chrono::hours kAsLongAsItTakes{24 * 365};  // the launcher ends us when rank 0 dies

}  // namespace

int on_ranks(const RanksOptions& options, const std::function<int(Ranks&)>& work) {
  Ranks ranks = launched_ranks(options);
  if (ranks.single()) return work(ranks);
  try {
    const int code = work(ranks);
    ranks.finish();
    return code;
  } catch (...) {
    const Failure failure = current_failure();
    // What all ranks see, such as a missing file, is told once: by rank 0, which ends the others meanwhile.
    if (!ranks.first()) std::this_thread::sleep_for(std::chrono::seconds(2));
    print_error(fmt::format("rank {}: {}", ranks.rank(), failure.text), false);
    ranks.abort(failure.exit_code);
    return failure.exit_code;
  }
}

int on_first_rank(const std::function<int()>& work) {
  return on_ranks({.timeout = kAsLongAsItTakes}, [&](Ranks& ranks) { return ranks.first() ? work() : 0; });
}

bool predicts_together(const Config& config, const Ranks& ranks) {
  return config.ranks.partition != MeshPartition::none && config.ranks.parts_in_turn == 1 && !ranks.single();
}

int on_predicting_ranks(const std::string& run, const std::string& checkpoint,
                        const std::function<int(const std::filesystem::path&, Ranks&)>& work) {
  return on_ranks({}, [&](Ranks& ranks) {
    std::filesystem::path found;
    Config config;
    const auto open = [&] {
      found = find_checkpoint(run, checkpoint);
      config = checkpoint_config(found);
    };
    if (ranks.first()) open();  // the others need it only where all predict
    if (agree(ranks, ranks.first() && predicts_together(config, ranks), "checkpoint")) {
      if (!ranks.first()) open();
      ranks.set_timeout(std::chrono::seconds(config.ranks.timeout));
      return work(found, ranks);
    }
    ranks.set_timeout(kAsLongAsItTakes);
    Ranks alone;
    return ranks.first() ? work(found, alone) : 0;
  });
}

Runtime predicting_runtime(const std::string& device, int threads, DType precision,
                           const GlobalOptions& globals, Ranks& ranks) {
  const int share = threads_of_rank(ranks);
  return Runtime({.device = device_of_rank(device, precision, globals, ranks),
                  .threads = threads > 0 ? threads : share,
                  .allocator = allocator_options_from_environment(),
                  .log = log_of(globals.quiet || !ranks.first())});
}

void print_notes_of(const Predictor& predictor, const GlobalOptions& globals, const Ranks& ranks) {
  if (globals.quiet || !ranks.first()) return;
  for (const std::string& warning : predictor.warnings()) print_note("warning: " + warning);
  if (!ranks.single() && predictor.trained().parts != nullptr)
    print_note(fmt::format("{} ranks compute each mesh together", ranks.size()));
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
