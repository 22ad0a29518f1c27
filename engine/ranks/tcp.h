// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, connected only by TCP: for launchers that start no MPI, such as torchrun, and
// for builds without MPI. Rank 0 waits at an address that all know; there the ranks learn each other's, then
// every two of them keep one connection. There is no password: as with MPI, the network must be
// trusted.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>

#include <chrono>
#include <memory>
#include <string>

#pragma GCC visibility push(default)
namespace meshgrad {

struct TcpJob {
  int rank = 0;
  int size = 1;
  std::string address;  ///< of rank 0's host: a name, or an IPv4 or IPv6 address
  int port = 0;         ///< at which rank 0 waits
};

/// From RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Where torchrun says that its own store has MASTER_PORT
/// (TORCHELASTIC_USE_AGENT_STORE=True), the port is the next one. Throws ConfigError.
TcpJob tcp_job_of_environment();

/// Returns when all ranks are connected, in whichever order they start; not all are within `timeout`: throws
/// RankError. Throws ConfigError for an address that is unknown, and a port that is in use.
std::unique_ptr<RankTransport> connect_by_tcp(const TcpJob& job, std::chrono::milliseconds timeout);

}  // namespace meshgrad
#pragma GCC visibility pop
