// SPDX-License-Identifier: Apache-2.0
// Signals that ask a run to stop: SIGTERM, and SIGUSR1 that Slurm sends ahead of the end of a job.
#pragma once

namespace meshgrad::cli {

/// From now on SIGTERM and SIGUSR1 set a flag. A second one ends the process at once.
void catch_stop_signals();

/// Whether such a signal has come.
bool stop_requested();

/// From now on a file that hits the limit of `ulimit -f` is a failed write, with its error, and no signal
/// that ends the process.
void ignore_file_size_signal();

}  // namespace meshgrad::cli
