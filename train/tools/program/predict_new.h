// SPDX-License-Identifier: Apache-2.0
// The part of `meshgrad predict` and `meshgrad rollout` that reads data without a solution.
#pragma once
#include <meshgrad/train/tools/program/command.h>

#include <filesystem>
#include <string>
#include <vector>

namespace meshgrad::cli {

struct NewDataCommand {
  std::vector<std::string> inputs;  ///< what convert reads, or packed files
  std::string device;
  int threads = 0;
  bool json = false;
  std::filesystem::path directory;
  int64_t steps = 0;                 ///< of rollouts
  std::string boundary = "initial";  ///< "initial", "data" or the path of a table
};

/// Adds the positional NEW..., and refuses it beside options that choose from the run's data.
CLI::Option* add_new_data(CLI::App& command, std::vector<std::string>& inputs,
                          const std::vector<CLI::Option*>& of_run_data);

/// Predicts with a checkpoint on each of the inputs, and prints what was written.
int predict_new(const NewDataCommand& command, const std::filesystem::path& checkpoint, bool over_time,
                const GlobalOptions& globals);

}  // namespace meshgrad::cli
