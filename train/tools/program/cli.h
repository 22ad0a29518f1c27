// SPDX-License-Identifier: Apache-2.0
// The command line of the program `meshgrad`.
#pragma once

namespace meshgrad {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,         ///< bad data, out of memory, diverged, or a bug
  kExitUsage = 2,          ///< the command line or the configuration is wrong
  kExitNoDevice = 3,       ///< the requested device does not exist
  kExitCheckpointed = 75,  ///< a signal stopped the run after a checkpoint: continue with --resume
};

/// Runs one command and returns an ExitCode. Results go to stdout, everything else to stderr. An error is one
/// line `meshgrad: error: ...`; several faults of one file follow on lines of their own. Throws nothing.
int run_cli(int argc, char** argv);

}  // namespace meshgrad
