// SPDX-License-Identifier: Apache-2.0
// Ports of this machine, for tests whose processes connect with each other.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace meshgrad::test {

/// An open port, which the system chose.
class HeldPort {
 public:
  HeldPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof address;
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    if (bind(fd_, name, size) != 0 || listen(fd_, 1) != 0 || getsockname(fd_, name, &size) != 0)
      throw std::runtime_error("no port");
    port_ = ntohs(address.sin_port);
  }
  ~HeldPort() { close(fd_); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

/// An unused one; the system does not give it away again soon.
inline int free_port() { return HeldPort().port(); }

/// Connects with it, as soon as it is open, and says something.
inline void say(int port, const std::string& text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 1000; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    if (connected && send(fd, text.data(), text.size(), MSG_NOSIGNAL) < 0) throw std::runtime_error("send");
    close(fd);
    if (connected) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace meshgrad::test
