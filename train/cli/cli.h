// SPDX-License-Identifier: Apache-2.0
// The command line of the program `meshgrad`.
#pragma once

namespace meshgrad {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,         ///< bad data, out of memory, diverged, or a bug
  kExitUsage = 2,          ///< the command line or the configuration is wrong
  kExitNoDevice = 3,       ///< the device that was asked for is not there
  kExitCheckpointed = 75,  ///< stopped by a signal after a checkpoint: start again with --resume
};

/// Runs one command and returns an ExitCode. Results go to stdout and all else to stderr; an error is one
/// line `meshgrad: error: ...`, or several faults of one file below such a line. Throws nothing.
int run_cli(int argc, char** argv);

}  // namespace meshgrad
