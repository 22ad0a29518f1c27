// SPDX-License-Identifier: Apache-2.0
// Sockets of TCP that never block. Functions return an errno, 0 for success; the end of a stream is
// ECONNRESET.
#pragma once
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace meshgrad::tcp {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Until poll() reports one of `events`: false when the deadline has passed.
bool wait_for(const Socket& socket, short events, Deadline deadline);

/// Bytes read at once, 0 when there are none yet. Sets `error` where the connection has ended.
size_t read_some(const Socket& socket, std::span<std::byte> bytes, int& error);
/// The same for sending. `more`: other bytes follow at once, which may share a packet with these.
size_t write_some(const Socket& socket, std::span<const std::byte> bytes, int& error, bool more = false);

int read_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline);
int write_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);

template <class T>
std::span<std::byte> bytes_of(T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_writable_bytes(std::span(&value, 1));
}

struct EndPoint {
  std::string address;
  int port = 0;
  bool operator==(const EndPoint&) const = default;
};

EndPoint this_end(const Socket& socket);
EndPoint other_end(const Socket& socket);

/// Waits at a port of every address of this machine; 0: one that the system chooses.
int listen_at(int port, Socket& listener);
/// An invalid one where none has come yet, or with errno.
Socket accepted(const Socket& listener);
/// Tries until the port is open. Throws ConfigError for an unknown host, with the name of the
/// variable that has it.
int connect_to(const EndPoint& place, Socket& socket, Deadline deadline, std::string_view variable);

}  // namespace meshgrad::tcp
