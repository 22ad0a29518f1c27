// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/tcp_meeting.h>

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

namespace meshgrad::tcp {
namespace {

constexpr uint64_t kMagic = 0x31706374'6172676d;  // "mgratcp1"

/// The first words on every connection, from the higher rank.
struct Hello {
  uint64_t magic = kMagic;
  uint64_t job = 0;  // what rank 0 told; 0 for rank 0
  int32_t rank = 0;
  int32_t size = 0;
  int32_t port = 0;  // where it waits for higher ranks
  int32_t unused = 0;
};

/// Rank 0's answer: a random number that tells this job from others, and where each rank waits.
struct Place {
  std::array<char, 60> address{};
  int32_t port = 0;
};

constexpr std::string_view kFix =
    "check that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are those of one job on every rank, that all "
    "ranks were started, and that no firewall is between them";

class Meeting {
 public:
  Meeting(const TcpJob& job, std::chrono::milliseconds timeout)
      : job_(job),
        limit_(fmt::format("{:.3g} s", static_cast<double>(timeout.count()) / 1e3)),
        deadline_(Clock::now() + timeout),
        peers_(static_cast<size_t>(job.size)) {}

  std::vector<Socket> connections() {
    if (job_.rank == 0) {
      wait_as_first();
    } else {
      join();
    }
    return std::move(peers_);
  }

 private:
  void wait_as_first() {
    // The system may have lent the port to an outgoing connection for a moment.
    const Deadline patience = std::min(deadline_, Clock::now() + std::chrono::seconds(2));
    int error = listen_at(job_.port, listener_);
    while (error == EADDRINUSE && Clock::now() < patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      error = listen_at(job_.port, listener_);
    }
    if (error != 0) {
      throw config_error(fmt::format("MASTER_PORT={}", job_.port), "a port that rank 0 can wait at",
                         std::strerror(error),
                         "choose another one (torchrun --master-port, or --rdzv-endpoint HOST:PORT)");
    }
    std::vector<Place> places(peers_.size());
    accept_from(1, [&](const Hello& hello, const Socket& peer) {
      Place& place = places[static_cast<size_t>(hello.rank)];
      const std::string address = other_end(peer).address;
      // Of the same host as rank 0, others reach it where they reach rank 0: then the address stays empty.
      const bool same_host = address.starts_with("127.") || address == "::1";
      if (!same_host) address.copy(place.address.data(), place.address.size() - 1);
      place.port = hello.port;
    });
    std::random_device random;
    job_number_ = (uint64_t{random()} << 32) | random();
    for (int rank = 1; rank < job_.size; ++rank) {
      told(rank, write_all(peer(rank), bytes_of(job_number_), deadline_));
      told(rank, write_all(peer(rank), std::as_bytes(std::span(places)), deadline_));
    }
  }

  void join() {
    const EndPoint first{job_.address, job_.port};
    const int error = connect_to(first, peer(0), deadline_, "MASTER_ADDR");
    if (error != 0) {
      throw rank_error(where(), fmt::format("rank 0 at {}:{} within {}", first.address, first.port, limit_),
                       std::strerror(error), kFix);
    }
    // Not earlier: the system might choose the port at which rank 0, on this host, is about to wait.
    told(job_.rank, listen_at(0, listener_));
    say_hello(0);
    told(0, read_all(peer(0), bytes_of(job_number_), deadline_));
    std::vector<Place> places(peers_.size());
    told(0, read_all(peer(0), std::as_writable_bytes(std::span(places)), deadline_));
    for (int rank = 1; rank < job_.rank; ++rank) {
      const Place& place = places[static_cast<size_t>(rank)];
      std::string address = place.address.data();
      if (address.empty()) address = other_end(peer(0)).address;
      told(rank, connect_to({address, place.port}, peer(rank), deadline_, "address of a rank"));
      say_hello(rank);
    }
    accept_from(job_.rank + 1, [](const Hello&, const Socket&) {});
  }

  Socket& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  std::string where() const { return fmt::format("rank {}: start", job_.rank); }

  void say_hello(int rank) {
    Hello hello;
    hello.job = job_number_;
    hello.rank = job_.rank;
    hello.size = job_.size;
    hello.port = this_end(listener_).port;
    told(rank, write_all(peer(rank), bytes_of(hello), deadline_));
  }

  /// All ranks from `lowest` on. Who says something else, or nothing for a while, is not one of us.
  template <class Accepted>
  void accept_from(int lowest, const Accepted& accepted) {
    for (int missing = job_.size - lowest; missing > 0;) {
      if (!wait_for(listener_, POLLIN, deadline_)) throw too_few(missing);
      Socket peer = tcp::accepted(listener_);
      if (!peer.open() && (errno == EMFILE || errno == ENFILE)) {
        throw rank_error(where(), fmt::format("connections with {} ranks", job_.size - 1),
                         std::strerror(errno), "raise ulimit -n");
      }
      if (!peer.open()) continue;
      Hello hello;
      const Deadline soon = std::min(deadline_, Clock::now() + std::chrono::seconds(10));
      if (read_all(peer, bytes_of(hello), soon) != 0 || hello.magic != kMagic || hello.job != job_number_)
        continue;
      check_hello(hello, lowest);
      accepted(hello, peer);
      this->peer(hello.rank) = std::move(peer);
      --missing;
    }
  }

  void check_hello(const Hello& hello, int lowest) {
    if (hello.size != job_.size) {
      throw rank_error(where(), fmt::format("WORLD_SIZE={} on every rank", job_.size),
                       fmt::format("{} on rank {}", hello.size, hello.rank), kFix);
    }
    if (hello.rank < lowest || hello.rank >= job_.size || peer(hello.rank).open()) {
      throw rank_error(where(), "one process of each rank",
                       fmt::format("a further process with RANK={}", hello.rank), kFix);
    }
  }

  RankError too_few(int missing) {
    int first = job_.size - 1;
    for (int rank = job_.size - 1; rank > job_.rank; --rank)
      if (!peer(rank).open()) first = rank;
    return rank_error(where(), fmt::format("rank {} within {}", first, limit_),
                      fmt::format("none, and {} of {} ranks are missing", missing, job_.size), kFix);
  }

  void told(int rank, int error) const {
    if (error == 0) return;
    throw rank_error(where(), fmt::format("an answer of rank {} within {}", rank, limit_),
                     std::strerror(error), fmt::format("look for the end of rank {}", rank));
  }

  TcpJob job_;
  std::string limit_;
  Deadline deadline_;
  std::vector<Socket> peers_;
  Socket listener_;
  uint64_t job_number_ = 0;
};

}  // namespace

std::vector<Socket> meet(const TcpJob& job, std::chrono::milliseconds timeout) {
  return Meeting(job, timeout).connections();
}

}  // namespace meshgrad::tcp
