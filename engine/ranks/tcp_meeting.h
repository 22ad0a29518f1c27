// SPDX-License-Identifier: Apache-2.0
// How ranks that TCP connects find each other: all go to rank 0, which tells each where the others wait.
#pragma once
#include <meshgrad/engine/ranks/tcp.h>
#include <meshgrad/engine/ranks/tcp_socket.h>

#include <vector>

namespace meshgrad::tcp {

/// One connection for every other rank; none at this rank's own place. Throws as connect_by_tcp.
std::vector<Socket> meet(const TcpJob& job, std::chrono::milliseconds timeout);

}  // namespace meshgrad::tcp
