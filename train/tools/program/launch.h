// SPDX-License-Identifier: Apache-2.0
// Commands that a launcher (mpirun, srun) started as several processes.
#pragma once
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/tools/program/command.h>

#include <filesystem>
#include <functional>

namespace meshgrad::cli {

/// Runs `work` on every rank, or on the one process that there is. An error of one rank is printed and ends
/// all of them with its exit code.
int on_ranks(const RanksOptions& options, const std::function<int(Ranks&)>& work);

/// Runs `work` on rank 0; the others wait for it and succeed with it.
int on_first_rank(const std::function<int()>& work);

/// The device that `word` selects for this rank: each rank of a host takes another GPU, where "auto" or
/// "cuda" leaves the choice.
Device device_of_rank(const std::string& word, DType precision, const GlobalOptions& globals, Ranks& ranks,
                      std::string_view option = "--device");

/// Whether these ranks compute each mesh together when they predict, as they do in training
/// (ranks.partition).
bool predicts_together(const Config& config, const Ranks& ranks);

/// Runs `work` with a run's checkpoint: on all ranks where they predict together; else on rank 0 as a single
/// rank, while the others wait for it.
int on_predicting_ranks(const std::string& run, const std::string& checkpoint,
                        const std::function<int(const std::filesystem::path& checkpoint, Ranks&)>& work);

/// To predict on this rank with a checkpoint of this precision.
Runtime predicting_runtime(const std::string& device, int threads, DType precision,
                           const GlobalOptions& globals, Ranks& ranks);

/// On rank 0: the predictor's warnings, and whether ranks compute each mesh together.
void print_notes_of(const Predictor& predictor, const GlobalOptions& globals, const Ranks& ranks);

/// As on_run, only on rank 0.
template <class Options>
void on_first_run(CLI::App& command, CommandLine& line, std::shared_ptr<Options> options,
                  int (*run)(const Options&, const GlobalOptions&)) {
  command.callback([&line, options, run] {
    line.action = [&line, options, run] {
      return on_first_rank([&] { return run(*options, line.globals); });
    };
  });
}

}  // namespace meshgrad::cli
