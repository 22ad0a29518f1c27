// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/tcp.h>
#include <meshgrad/engine/ranks/tcp_meeting.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

namespace meshgrad {
namespace tcp {
namespace {

// Before each message stands the number of its bytes. Two numbers are no messages:
constexpr uint64_t kGoodbye = ~uint64_t{0};       // nothing more comes, as agreed
constexpr uint64_t kAborted = uint64_t{1} << 63;  // + exit code: this rank ends all

class TcpTransport final : public RankTransport {
 public:
  TcpTransport(const TcpJob& job, std::vector<Socket> sockets)
      : rank_(job.rank), peers_(sockets.size()), polled_(sockets.size()) {
    for (size_t i = 0; i < peers_.size(); ++i) peers_[i].socket = std::move(sockets[i]);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  uint64_t host() const override {
    std::array<char, 256> name{};
    gethostname(name.data(), name.size() - 1);
    return std::hash<std::string_view>()(name.data());
  }
  std::unique_ptr<RankTransport::Flight> start(std::span<const Send> sends,
                                               std::span<const Receive> receives) override;
  void check() override { progress(); }
  std::optional<int> ended_by_other() override {
    try {
      if (!ended_with_) progress();
    } catch (const RankFailure&) {
      // What it found is in ended_with_.
    }
    return ended_with_;
  }
  void abort(int exit_code) noexcept override {
    give_up();
    for (Peer& peer : peers_) {
      uint64_t word = kAborted + static_cast<uint64_t>(exit_code);
      int error = 0;
      if (peer.socket.open()) write_some(peer.socket, bytes_of(word), error);
    }
    close_all();
  }
  void leave() noexcept override { abort(ended_with_.value_or(1)); }
  void finish() override;

 private:
  /// Sends and receives what it can at once, and looks for ranks that have ended. Throws RankFailure for the
  /// first of them, always from then on, after the messages that came before its end.
  void progress();

  class TcpFlight;

  template <class Bytes>
  struct Message {
    Bytes bytes;
    size_t* open;       // messages of its flight that are not complete
    uint64_t word = 0;  // what precedes them
    size_t done = 0;    // bytes, with those of the word
  };
  struct Peer {
    Socket socket;
    std::deque<Message<std::span<const std::byte>>> sends;
    std::deque<Message<std::span<std::byte>>> receives;
    std::vector<std::byte> ahead;  // what it had sent before its end, for receives to come
    bool cut = false;              // what comes next is the rest of a message
  };

  /// Buffers go whose messages are not complete: what is left of the connections tells others of the end.
  void give_up() noexcept {
    for (Peer& peer : peers_) {
      if (!peer.sends.empty() && peer.sends.front().done > 0) peer.socket = Socket();
      if (!peer.receives.empty() && peer.receives.front().done > 0) peer.cut = true;
      peer.sends.clear();
      peer.receives.clear();
    }
    gave_up_ = true;
  }
  void close_all() noexcept {
    for (Peer& peer : peers_) {
      if (peer.socket.open()) shutdown(peer.socket.fd(), SHUT_WR);
      peer.socket = Socket();
    }
  }

  int send_to(Peer& peer);
  int receive_from(int rank, Peer& peer);
  void read_ahead(Peer& peer);
  RankFailure end_of(int rank, int error) const;

  int rank_;
  std::vector<Peer> peers_;
  std::vector<pollfd> polled_;
  std::optional<int> ended_with_;
  std::optional<RankFailure> end_;  // of the first rank that ended
  bool gave_up_ = false;
};

class TcpTransport::TcpFlight final : public RankTransport::Flight {
 public:
  TcpFlight(TcpTransport& transport, std::span<const Send> sends, std::span<const Receive> receives)
      : transport_(transport) {
    for (const Receive& receive : receives)
      transport_.peers_[static_cast<size_t>(receive.from)].receives.push_back({receive.bytes, &open_, 0, 0});
    for (const Send& send : sends)
      transport_.peers_[static_cast<size_t>(send.to)].sends.push_back(
          {send.bytes, &open_, uint64_t{send.bytes.size()}, 0});
    open_ = sends.size() + receives.size();
  }
  ~TcpFlight() override {
    if (open_ > 0) transport_.give_up();
  }
  TcpFlight(const TcpFlight&) = delete;
  TcpFlight& operator=(const TcpFlight&) = delete;

  bool done() override {
    if (open_ > 0 && transport_.gave_up_) throw transport_.end_of(awaited(), ENOTCONN);
    try {
      if (open_ > 0) transport_.progress();
    } catch (const RankFailure&) {
      if (open_ > 0) throw;  // otherwise the next exchange reports the closed connection
    }
    return open_ == 0;
  }
  int awaited() const override {  // after give_up() this rank itself
    const auto mine = [&](const auto& message) { return message.open == &open_; };
    for (int rank = 0; rank < transport_.size(); ++rank) {
      const Peer& peer = transport_.peers_[static_cast<size_t>(rank)];
      if (std::any_of(peer.receives.begin(), peer.receives.end(), mine)) return rank;
    }
    for (int rank = 0; rank < transport_.size(); ++rank) {
      const Peer& peer = transport_.peers_[static_cast<size_t>(rank)];
      if (std::any_of(peer.sends.begin(), peer.sends.end(), mine)) return rank;
    }
    return transport_.rank();
  }

 private:
  TcpTransport& transport_;
  size_t open_ = 0;
};

std::unique_ptr<RankTransport::Flight> TcpTransport::start(std::span<const Send> sends,
                                                           std::span<const Receive> receives) {
  if (gave_up_) throw end_of(sends.empty() ? receives.front().from : sends.front().to, ENOTCONN);
  auto flight = std::make_unique<TcpFlight>(*this, sends, receives);
  flight->done();
  return flight;
}

int TcpTransport::send_to(Peer& peer) {
  int error = 0;
  while (!peer.sends.empty()) {
    auto& message = peer.sends.front();
    const std::span<const std::byte> word = bytes_of(message.word);
    const bool in_word = message.done < word.size();
    const auto rest =
        in_word ? word.subspan(message.done) : message.bytes.subspan(message.done - word.size());
    const size_t count = write_some(peer.socket, rest, error, in_word && !message.bytes.empty());
    message.done += count;
    if (count < rest.size()) break;
    if (message.done < word.size() + message.bytes.size()) continue;
    --*message.open;
    peer.sends.pop_front();
  }
  return error;
}

int TcpTransport::receive_from(int rank, Peer& peer) {
  int error = 0;
  const auto read = [&](std::span<std::byte> to) {
    if (peer.socket.open()) return read_some(peer.socket, to, error);
    const size_t count = std::min(to.size(), peer.ahead.size());
    std::copy_n(peer.ahead.begin(), count, to.begin());
    peer.ahead.erase(peer.ahead.begin(), peer.ahead.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  };
  while (!peer.receives.empty()) {
    auto& message = peer.receives.front();
    const std::span<std::byte> word = bytes_of(message.word);
    if (message.done < word.size()) {
      message.done += read(word.subspan(message.done));
      if (message.done < word.size()) break;
      if (message.word >= kAborted) {
        ended_with_ = static_cast<int>(message.word & 0xff);
        message.done = 0;
        return ECONNRESET;
      }
      if (message.word != message.bytes.size()) {
        throw RankFailure{rank, fmt::format("{} bytes from rank {}", message.bytes.size(), rank),
                          fmt::format("{}", message.word),
                          "start all ranks with the same program, configuration and data"};
      }
    }
    const std::span<std::byte> rest = message.bytes.subspan(message.done - word.size());
    const size_t count = read(rest);
    message.done += count;
    if (count < rest.size()) break;
    --*message.open;
    peer.receives.pop_front();
  }
  return error;
}

void TcpTransport::progress() {
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    const int wanted = POLLRDHUP | (peer.receives.empty() ? 0 : POLLIN) | (peer.sends.empty() ? 0 : POLLOUT);
    // Without a socket: -1, which poll() passes over.
    polled_[i] = {peer.socket.fd(), static_cast<short>(wanted), 0};
    if (!peer.ahead.empty()) receive_from(static_cast<int>(i), peer);
  }
  if (end_) throw RankFailure(*end_);
  if (poll(polled_.data(), polled_.size(), 0) <= 0) return;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const int found = polled_[i].revents;
    if (found == 0) continue;
    const auto rank = static_cast<int>(i);
    int error = receive_from(rank, peers_[i]);  // first: it may have said why it ended
    if (error == 0 && (found & POLLOUT) != 0) error = send_to(peers_[i]);
    if (error == 0 && (found & (POLLRDHUP | POLLHUP | POLLERR)) != 0) error = ECONNRESET;
    if (error == 0) continue;
    read_ahead(peers_[i]);
    peers_[i].socket = Socket();
    if (!end_) end_ = end_of(rank, error);
  }
  if (end_) throw RankFailure(*end_);
}

/// A rank has ended: keeps the messages not asked for yet. After them stands whether it said so.
void TcpTransport::read_ahead(Peer& peer) {
  const Deadline soon = Clock::now() + std::chrono::seconds(1);
  if (peer.cut || (!peer.receives.empty() && peer.receives.front().done > 0)) return;  // it ended within one
  for (uint64_t word = 0; read_all(peer.socket, bytes_of(word), soon) == 0;) {
    if (word >= kAborted) {
      ended_with_ = static_cast<int>(word & 0xff);
      return;
    }
    std::vector<std::byte> message(sizeof(word));
    std::memcpy(message.data(), &word, sizeof(word));
    constexpr uint64_t kPiece = uint64_t{1} << 20;  // the length may be of no message
    for (uint64_t left = word; left > 0;) {
      const size_t before = message.size();
      message.resize(before + std::min(left, kPiece));
      if (read_all(peer.socket, std::span(message).subspan(before), soon) != 0) return;
      left -= message.size() - before;
    }
    peer.ahead.insert(peer.ahead.end(), message.begin(), message.end());
  }
}

RankFailure TcpTransport::end_of(int rank, int error) const {
  return {rank, fmt::format("a connection with rank {}", rank),
          ended_with_ ? fmt::format("its end with exit code {}", *ended_with_)
                      : std::string(std::strerror(error)),
          fmt::format("look for the end of rank {}", rank)};
}

/// No rank closes a connection before all have said goodbye: until then, one that ends is an error.
void TcpTransport::finish() {
  const Deadline deadline = Clock::now() + std::chrono::seconds(30);
  for (Peer& peer : peers_) {
    uint64_t word = kGoodbye;
    if (peer.socket.open()) write_all(peer.socket, bytes_of(word), deadline);
  }
  for (Peer& peer : peers_) {
    uint64_t word = 0;
    if (peer.socket.open()) read_all(peer.socket, bytes_of(word), deadline);
  }
  close_all();
}

}  // namespace
}  // namespace tcp

namespace {

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int number_of(const char* name, int least, int most) {
  const std::string_view text = variable(name);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    throw config_error(
        name, fmt::format("a number from {} to {}", least, most),
        text.empty() ? "none" : fmt::format("\"{}\"", text),
        "start the ranks with torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT for each");
  }
  return number;
}

}  // namespace

TcpJob tcp_job_of_environment() {
  TcpJob job;
  job.size = number_of("WORLD_SIZE", 1, 1 << 20);
  job.rank = number_of("RANK", 0, job.size - 1);
  job.port = number_of("MASTER_PORT", 1, 65534);
  if (variable("TORCHELASTIC_USE_AGENT_STORE") == std::string_view("True")) ++job.port;
  job.address = variable("MASTER_ADDR");
  if (job.address.empty())
    throw config_error("MASTER_ADDR", "the host of rank 0", "none", "set it for each rank");
  return job;
}

std::unique_ptr<RankTransport> connect_by_tcp(const TcpJob& job, std::chrono::milliseconds timeout) {
  return std::make_unique<tcp::TcpTransport>(job, tcp::meet(job, timeout));
}

}  // namespace meshgrad
