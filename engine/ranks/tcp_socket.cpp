// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/tcp_socket.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <thread>

namespace meshgrad::tcp {
namespace {

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

constexpr int kSocketType = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

void set(const Socket& socket, int level, int option, int value) {
  setsockopt(socket.fd(), level, option, &value, sizeof value);
}

/// Small messages leave at once. A host that answers nothing for about two minutes has gone, also for a rank
/// that waits for a message without a time-out.
void set_up(const Socket& socket) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 15);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

/// getsockname or getpeername.
using GetName = int (*)(int, sockaddr*, socklen_t*);

EndPoint end_point(const Socket& socket, GetName get_name) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  if (get_name(socket.fd(), address, &size) != 0) return {};
  if (getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  std::string text = host.data();
  if (text.starts_with("::ffff:")) text.erase(0, 7);  // IPv4 that came to an IPv6 socket
  return {text, std::atoi(port.data())};
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

bool wait_for(const Socket& socket, short events, Deadline deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd poll_fd{socket.fd(), events, 0};
    if (poll(&poll_fd, 1, static_cast<int>(std::min<int64_t>(left, 1'000'000))) > 0) return true;
  }
}

size_t read_some(const Socket& socket, std::span<std::byte> bytes, int& error) {
  if (bytes.empty()) return 0;
  const ssize_t count = recv(socket.fd(), bytes.data(), bytes.size(), 0);
  if (count > 0) return static_cast<size_t>(count);
  if (count == 0) {
    error = ECONNRESET;
  } else if (!would_block(errno)) {
    error = errno;
  }
  return 0;
}

size_t write_some(const Socket& socket, std::span<const std::byte> bytes, int& error, bool more) {
  if (bytes.empty()) return 0;
  const ssize_t count = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | (more ? MSG_MORE : 0));
  if (count >= 0) return static_cast<size_t>(count);
  if (!would_block(errno)) error = errno;
  return 0;
}

int read_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline) {
  int error = 0;
  while (!bytes.empty() && error == 0) {
    if (!wait_for(socket, POLLIN, deadline)) return ETIMEDOUT;
    bytes = bytes.subspan(read_some(socket, bytes, error));
  }
  return error;
}

int write_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline) {
  int error = 0;
  while (!bytes.empty() && error == 0) {
    if (!wait_for(socket, POLLOUT, deadline)) return ETIMEDOUT;
    bytes = bytes.subspan(write_some(socket, bytes, error));
  }
  return error;
}

EndPoint this_end(const Socket& socket) { return end_point(socket, getsockname); }
EndPoint other_end(const Socket& socket) { return end_point(socket, getpeername); }

int listen_at(int port, Socket& listener) {
  for (const int family : {AF_INET6, AF_INET}) {
    listener = Socket(::socket(family, kSocketType, 0));
    if (!listener.open()) continue;  // a machine without IPv6
    set(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    if (family == AF_INET6) set(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(static_cast<uint16_t>(port));
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = six.sin6_port;
    const auto* const address = family == AF_INET6 ? reinterpret_cast<const sockaddr*>(&six)
                                                   : reinterpret_cast<const sockaddr*>(&four);
    const socklen_t size = family == AF_INET6 ? sizeof six : sizeof four;
    if (bind(listener.fd(), address, size) == 0 && listen(listener.fd(), SOMAXCONN) == 0) return 0;
    if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) return errno;
  }
  return errno;
}

Socket accepted(const Socket& listener) {
  Socket peer(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (peer.open()) set_up(peer);
  return peer;
}

namespace {

/// One attempt.
int connect_once(const addrinfo& at, Socket& socket, Deadline deadline) {
  socket = Socket(::socket(at.ai_family, kSocketType, 0));
  if (!socket.open()) return errno;
  int error = connect(socket.fd(), at.ai_addr, at.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    if (!wait_for(socket, POLLOUT, deadline)) return ETIMEDOUT;
    socklen_t size = sizeof error;
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error != 0 || !(this_end(socket) == other_end(socket))) return error;
  // The port is not open, and the system gave this end the same port: it is connected with itself. A regular
  // end would keep the port from its owner for a minute.
  const linger reset{1, 0};
  setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  socket = Socket();
  return ECONNREFUSED;
}

}  // namespace

int connect_to(const EndPoint& place, Socket& socket, Deadline deadline, std::string_view variable) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int unknown = getaddrinfo(place.address.c_str(), std::to_string(place.port).c_str(), &hints, &found);
  if (unknown != 0) {
    throw config_error(fmt::format("{}={}", variable, place.address), "a host that this one knows",
                       gai_strerror(unknown), "set it to the name or address of rank 0's host");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  for (int reason = ETIMEDOUT;;) {
    for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
      const int error = connect_once(*at, socket, deadline);
      if (error == 0) {
        set_up(socket);
        return 0;
      }
      if (error != ETIMEDOUT) reason = error;  // a timeout tells less than the last connect error
    }
    if (Clock::now() >= deadline) return reason;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace meshgrad::tcp
