// SPDX-License-Identifier: Apache-2.0
// What the program does about signals, and about standard streams that are closed.
#pragma once

namespace meshgrad::cli {

/// To be called first. Opens /dev/null for each of descriptors 0 to 2 that is closed, so that no file of a
/// run is opened there and receives what is meant for stderr. From then on a write to a closed pipe, or
/// beyond the limit of `ulimit -f`, is an error of the write instead of a signal that ends the process.
void prepare_process();

/// From now on SIGTERM, SIGINT, SIGHUP, SIGXCPU and SIGUSR1 (which SLURM can send before the end of a job)
/// ask the run to stop with a checkpoint. More of them are ignored for 10 s, since batch systems and
/// `timeout` send several, and end the process at once after that. A second SIGINT ends it at once, unless it
/// follows within 0.2 s. A signal that is ignored when the process starts (nohup) stays ignored.
void catch_stop_signals();

/// Whether such a signal has arrived.
bool stop_requested();

}  // namespace meshgrad::cli
