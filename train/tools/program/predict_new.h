// SPDX-License-Identifier: Apache-2.0
// The part of `meshgrad predict` and `meshgrad rollout` that reads data without a solution.
#pragma once
#include <meshgrad/train/tools/program/command.h>

#include <cstdint>
#include <string>
#include <vector>

namespace meshgrad::cli {

/// Files that are asked for.
struct NewDataOutputs {
  std::vector<std::string> formats{"vtu"};  ///< of fields: vtu, npz
  std::vector<std::string> probes;          ///< "X,Y" or "X,Y,Z"
  bool integrals = false;
};

struct NewDataCommand {
  bool over_time = false;  ///< rollout
  std::string run, checkpoint;
  std::vector<std::string> inputs;  ///< what convert reads, or packed files
  std::string device;
  int threads = 0;
  bool json = false;
  std::string directory;             ///< empty: inside the run
  int64_t steps = 0;                 ///< of rollouts
  std::string boundary = "initial";  ///< "initial", "data" or the path of a table
  NewDataOutputs outputs;
};

/// Adds the positional NEW..., refuses it beside options that choose from the run's data, and adds the
/// options that need it.
void add_new_data(CLI::App& command, std::vector<std::string>& inputs, NewDataOutputs& outputs,
                  const std::vector<CLI::Option*>& of_run_data);

/// Predicts on each of the inputs, on rank 0, and prints what was written.
int predict_new(const NewDataCommand& command, const GlobalOptions& globals);

}  // namespace meshgrad::cli
