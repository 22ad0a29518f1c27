// SPDX-License-Identifier: Apache-2.0
#include "simulated_ranks.h"

#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

namespace meshgrad::test {
namespace {

using Clock = std::chrono::steady_clock;

/// What ends the thread of a rank that is lost.
struct Lost {};

struct Message {
  std::vector<std::byte> bytes;
  Clock::time_point arrives;
};

/// Messages in flight. The n-th of a pair of ranks has number n, whenever it arrives.
class Network {
 public:
  explicit Network(const SimulatedNetwork& options) : options_(options), random_(options.seed) {}
  const SimulatedNetwork& options() const { return options_; }

  void send(int from, int to, int64_t number, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    const auto late = std::uniform_int_distribution<int64_t>(0, options_.latest.count())(random_);
    messages_[{from, to, number}] = {{bytes.begin(), bytes.end()},
                                     Clock::now() + std::chrono::microseconds(late)};
  }
  /// False while it has not arrived. Throws RankFailure for another size, or when the job ended before it was
  /// sent.
  bool receive(int from, int to, int64_t number, std::span<std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = messages_.find({from, to, number});
    if (found == messages_.end()) {
      throw_if_aborted();
      return false;
    }
    if (found->second.arrives > Clock::now()) return false;
    const Message& message = found->second;
    if (message.bytes.size() != bytes.size()) {
      throw RankFailure{from, fmt::format("{} bytes from rank {}", bytes.size(), from),
                        fmt::format("{}", message.bytes.size()),
                        "start all ranks with the same program, configuration and data"};
    }
    if (!bytes.empty()) std::memcpy(bytes.data(), message.bytes.data(), bytes.size());
    messages_.erase(found);
    return true;
  }
  void check() {
    const std::lock_guard lock(mutex_);
    throw_if_aborted();
  }
  void abort(int rank) {
    const std::lock_guard lock(mutex_);
    if (aborted_by_ < 0) aborted_by_ = rank;
  }
  /// Returns when the other ranks have ended, so that what hangs ends last.
  void hang() {
    std::unique_lock lock(mutex_);
    ended_changed_.wait(lock, [&] { return ended_ >= options_.ranks - 1; });
  }
  void end() {
    const std::lock_guard lock(mutex_);
    ++ended_;
    ended_changed_.notify_all();
  }

 private:
  void throw_if_aborted() const {
    if (aborted_by_ < 0) return;
    throw RankFailure{aborted_by_, "all ranks to go on", fmt::format("the end of rank {}", aborted_by_),
                      "see its error"};
  }

  SimulatedNetwork options_;
  std::mutex mutex_;
  std::condition_variable ended_changed_;
  std::mt19937_64 random_;
  std::map<std::tuple<int, int, int64_t>, Message> messages_;
  int aborted_by_ = -1;
  int ended_ = 0;
};

struct Awaited {
  Receive receive;
  int64_t number;
  bool arrived;
};

class SimulatedRequest final : public RankTransport::Request {
 public:
  SimulatedRequest(Network& network, int rank, std::vector<Awaited> awaited)
      : network_(network), rank_(rank), awaited_(std::move(awaited)) {}
  bool done() override {
    bool all = true;
    for (Awaited& next : awaited_) {
      if (!next.arrived)
        next.arrived = network_.receive(next.receive.from, rank_, next.number, next.receive.bytes);
      all = all && next.arrived;
    }
    return all;
  }
  int awaited() const override {
    for (const Awaited& next : awaited_)
      if (!next.arrived) return next.receive.from;
    return rank_;
  }

 private:
  Network& network_;
  int rank_;
  std::vector<Awaited> awaited_;
};

class SimulatedTransport final : public RankTransport {
 public:
  SimulatedTransport(Network& network, int rank) : network_(network), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return network_.options().ranks; }
  uint64_t host() const override { return static_cast<uint64_t>(rank_ / network_.options().ranks_per_host); }
  std::unique_ptr<Request> start(std::span<const Send> sends, std::span<const Receive> receives) override {
    const SimulatedNetwork::Loss& loss = network_.options().loss;
    if (loss.rank == rank_ && exchanges_++ == loss.at) {
      if (loss.hangs) network_.hang();
      lost_ = true;
      throw Lost();
    }
    int64_t bytes = 0;
    for (const Send& send : sends) bytes += std::ssize(send.bytes);
    if (network_.options().observer) network_.options().observer(rank_, bytes);
    for (const Send& send : sends) network_.send(rank_, send.to, sent_[send.to]++, send.bytes);
    std::vector<Awaited> awaited;
    for (const Receive& receive : receives) awaited.push_back({receive, received_[receive.from]++, false});
    return std::make_unique<SimulatedRequest>(network_, rank_, std::move(awaited));
  }
  void check() override { network_.check(); }
  void abort(int) noexcept override { network_.abort(rank_); }
  void leave() noexcept override {
    if (!lost_) network_.abort(rank_);
  }

 private:
  Network& network_;
  int rank_;
  int64_t exchanges_ = 0;
  bool lost_ = false;
  std::map<int, int64_t> sent_, received_;
};

std::string run_rank(Network& network, int rank, const std::function<void(Ranks&)>& body) {
  std::string ending;
  try {
    Ranks ranks(std::make_unique<SimulatedTransport>(network, rank), RanksOptions{network.options().timeout});
    body(ranks);
    ranks.finish();
  } catch (const Lost&) {
    ending = "lost";
  } catch (const std::exception& error) {
    ending = error.what();
  }
  network.end();
  return ending;
}

}  // namespace

Endings try_on_ranks(const SimulatedNetwork& options, const std::function<void(Ranks&)>& body) {
  Network network(options);
  Endings endings(static_cast<size_t>(options.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back([&, rank] { endings[static_cast<size_t>(rank)] = run_rank(network, rank, body); });
  }
  for (std::thread& thread : threads) thread.join();
  return endings;
}

void on_ranks(const SimulatedNetwork& network, const std::function<void(Ranks&)>& body) {
  std::string error;  // a cause, rather than what follows from it on another rank
  for (const std::string& ending : try_on_ranks(network, body)) {
    const bool follows = ending.find("needed all ranks to go on") != std::string::npos;
    if (error.empty() || (!ending.empty() && !follows)) error = ending;
    if (!ending.empty() && !follows) break;
  }
  if (!error.empty()) throw std::runtime_error(error);
}

}  // namespace meshgrad::test
