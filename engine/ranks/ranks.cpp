// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/engine/span.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

namespace meshgrad {
namespace {

using Clock = std::chrono::steady_clock;

/// Waiting ranks may share CPUs with those that they wait for: first spin, then offer the CPU, then sleep.
class Backoff {
 public:
  void pause() {
    ++pauses_;
    if (pauses_ < kSpins) return;
    if (pauses_ < kSpins + kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  static constexpr int64_t kSpins = 200;
  static constexpr int64_t kYields = 2000;
  int64_t pauses_ = 0;
};

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:.3g} s", static_cast<double>(time.count()) / 1e3);
}

}  // namespace

Ranks::Ranks(std::unique_ptr<RankTransport> transport, const RanksOptions& options)
    : transport_(std::move(transport)),
      options_(options),
      rank_(transport_->rank()),
      size_(transport_->size()) {
  const std::vector<uint64_t> hosts = all_gather(*this, transport_->host(), "start");
  const auto here = hosts.begin() + rank_;
  local_size_ = static_cast<int>(std::count(hosts.begin(), hosts.end(), *here));
  local_rank_ = static_cast<int>(std::count(hosts.begin(), here, *here));
}

/// A rank that finishes early must not fail ranks that still exchange messages.
Ranks::~Ranks() {
  try {
    if (std::uncaught_exceptions() == 0) finish();
  } catch (...) {
    // Another rank failed, or did not come: the one that it told, or that waits for it, has the error.
  }
  leave();
}

void Ranks::exchange(std::span<const Send> sends, std::span<const Receive> receives,
                     std::string_view operation) {
  wait(start_exchange(sends, receives, operation));
}

Ranks::Exchange Ranks::start_exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                      std::string_view operation) {
  const auto to_others = [&](auto other) {
    const int there = other;
    check_internal(there >= 0 && there < size_, "a message for a rank that does not exist");
    return there != rank_;
  };
  std::vector<Send> outgoing;
  std::vector<Receive> incoming;
  for (const Send& send : sends)
    if (to_others(send.to)) outgoing.push_back(send);
  for (const Receive& receive : receives)
    if (to_others(receive.from)) incoming.push_back(receive);
  exchange_with_self(sends, receives);
  Exchange exchange;
  exchange.operation = operation;
  if (outgoing.empty() && incoming.empty()) return exchange;
  for (const Send& send : outgoing) bytes_sent_ += static_cast<int64_t>(send.bytes.size());
  try {
    exchange.request = transport_->start(outgoing, incoming);
  } catch (const RankFailure& failure) {
    throw error_of(failure, operation);
  }
  return exchange;
}

void Ranks::exchange_with_self(std::span<const Send> sends, std::span<const Receive> receives) const {
  auto receive = receives.begin();
  for (const Send& send : sends) {
    if (send.to != rank_) continue;
    receive = std::find_if(receive, receives.end(), [&](const Receive& r) { return r.from == rank_; });
    check_internal(receive != receives.end() && receive->bytes.size() == send.bytes.size(),
                   "a message to this rank itself that it does not receive");
    if (!send.bytes.empty()) std::memcpy(receive->bytes.data(), send.bytes.data(), send.bytes.size());
    ++receive;
  }
}

void Ranks::wait(Exchange exchange) {
  if (exchange.request == nullptr) return;
  const Span span(exchange.operation, "ranks");
  const auto begin = Clock::now();
  Backoff backoff;
  try {
    while (!exchange.request->done()) {
      if (Clock::now() - begin > options_.timeout) {
        const int other = exchange.request->awaited();
        throw RankFailure{
            other, fmt::format("an answer of rank {} within {}", other, seconds_text(options_.timeout)),
            "none",
            fmt::format("look for the end of rank {}; if it only took longer, raise "
                        "ranks.timeout",
                        other)};
      }
      backoff.pause();
    }
  } catch (const RankFailure& failure) {
    throw error_of(failure, exchange.operation);
  }
}

bool Ranks::arrived(const Exchange& exchange) const {
  try {
    return exchange.request == nullptr || exchange.request->done();
  } catch (const RankFailure& failure) {
    throw error_of(failure, exchange.operation);
  }
}

void Ranks::check(std::string_view operation) const {
  try {
    if (transport_ != nullptr) transport_->check();
  } catch (const RankFailure& failure) {
    throw error_of(failure, operation);
  }
}

std::string Ranks::place(std::string_view operation) const {
  const std::string step = step_ < 0 ? std::string() : fmt::format(", step {}", step_);
  return fmt::format("rank {}: {}{}", rank_, operation, step);
}

RankError Ranks::error_of(const RankFailure& failure, std::string_view operation) const {
  return rank_error(place(operation), failure.needed, failure.got, failure.fix);
}

void Ranks::abort(int exit_code) noexcept {
  if (transport_ == nullptr) return;
  left_ = true;
  transport_->abort(exit_code);
}

void Ranks::leave() noexcept {
  if (transport_ != nullptr && !std::exchange(left_, true)) transport_->leave();
}

void Ranks::finish() {
  if (transport_ == nullptr || left_) return;
  or_leave(*this, [&] { end_barrier(*this); });
  left_ = true;
  transport_->finish();
}

}  // namespace meshgrad
