// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, connected by MPI. Needs a build with MPI (MESHGRAD_MPI); MPI's headers are not
// needed to use this.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>

#include <optional>

#pragma GCC visibility push(default)
namespace meshgrad {

/// What started this process as one of several.
struct Launcher {
  std::string variable;  ///< of the environment, by which it is known
  int processes = 1;
};

/// Nothing for a process that was started by itself, or as the only one. Of several launchers the innermost.
std::optional<Launcher> found_launcher();

/// Whether this build has MPI.
bool mpi_built();

/// The ranks that the launcher started, or a single one without a launcher: MPI is then not touched. With a
/// launcher it calls MPI_Init_thread, and Ranks::finish calls MPI_Finalize. Throws ConfigError for a launcher
/// that MPI does not know, such as torchrun (WORLD_SIZE), and when this build has no MPI.
Ranks launched_ranks(const RanksOptions& options = {});

/// The ranks of a host application's communicator, given as MPI_Comm_c2f(communicator), which is what
/// Fortran has. MPI stays the application's: it is initialised, and finalised after Ranks::finish. Throws
/// ConfigError when this build has no MPI.
Ranks ranks_of_communicator(int communicator, const RanksOptions& options = {});

}  // namespace meshgrad
#pragma GCC visibility pop
