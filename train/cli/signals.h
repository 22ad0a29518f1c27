// SPDX-License-Identifier: Apache-2.0
// Signals that stop a run: SIGTERM, and SIGUSR1, which Slurm can send before the end of a job.
#pragma once

namespace meshgrad::cli {

/// From now on SIGTERM and SIGUSR1 set a flag. A second signal ends the process immediately.
void catch_stop_signals();

/// Whether such a signal has arrived.
bool stop_requested();

/// From now on a write beyond the limit of `ulimit -f` fails with an error instead of a signal that ends the
/// process.
void ignore_file_size_signal();

}  // namespace meshgrad::cli
