// SPDX-License-Identifier: Apache-2.0
// Ranks: the processes that work on one job together, and messages between them. One primitive, exchange();
// every other operation is a function above it (collectives.h), with a fixed order of sums.
//
// All ranks call the same operations in the same order. A message that does not come within the time-out is
// an error that names both ranks, the operation and the step: no rank waits for ever.
#pragma once
#include <meshgrad/engine/error.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Bytes in host memory for another rank.
struct Send {
  int to = 0;
  std::span<const std::byte> bytes;
};

/// Host memory for as many bytes as the other rank sends.
struct Receive {
  int from = 0;
  std::span<std::byte> bytes;
};

/// What carries the messages: MPI (mpi.h), or the threads of a test. It knows no deadline.
class RankTransport {
 public:
  /// Messages in flight. Destroyed while some are missing, it gives them up: then the job can only end.
  class Request {
   public:
    virtual ~Request() = default;
    /// Whether every message was sent and has arrived; returns at once. Throws RankFailure.
    virtual bool done() = 0;
    /// A rank whose message is missing, or that has not taken one. Only after done() was false.
    virtual int awaited() const = 0;
  };
  virtual ~RankTransport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The same number for ranks of one host.
  virtual uint64_t host() const = 0;
  /// The n-th message from one rank to another fills the n-th receive that the other started for it.
  virtual std::unique_ptr<Request> start(std::span<const Send> sends, std::span<const Receive> receives) = 0;
  /// Ends every rank of the job with an exit code, this one included where ranks are processes.
  virtual void abort(int exit_code) noexcept = 0;
  /// This rank exchanges no more messages: ranks that wait for one of it get a RankFailure. Processes go on.
  virtual void leave() noexcept = 0;
  /// Throws RankFailure if another rank is known to have ended, for those that wait for something else.
  virtual void check() {}
  /// All ranks are done: the last call.
  virtual void finish() {}
};

/// What a transport throws: Ranks adds the operation and the step.
struct RankFailure {
  int other = 0;
  std::string needed, got, fix;
};

struct RanksOptions {
  std::chrono::milliseconds timeout{300'000};  ///< of one message (ranks.timeout)
};

class Ranks {
 public:
  /// One exchange in flight. Its buffers must stay until Ranks::wait.
  class Exchange {
    friend class Ranks;
    std::unique_ptr<RankTransport::Request> request;
    std::string operation;
  };

  /// A single rank: it exchanges messages only with itself.
  Ranks() = default;
  /// Collective: finds out which ranks share a host. Throws RankError.
  explicit Ranks(std::unique_ptr<RankTransport> transport, const RanksOptions& options = {});
  /// At a regular end finish(), whose error is dropped; while an exception unwinds it, leave().
  ~Ranks();
  Ranks(Ranks&&) = default;
  Ranks& operator=(Ranks&&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool single() const { return size_ == 1; }
  bool first() const { return rank_ == 0; }
  /// Among the ranks of this host, in the order of ranks.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  /// The same number for ranks of one host.
  uint64_t host() const { return transport_ == nullptr ? 0 : transport_->host(); }

  /// Sends and receives, and returns when all is done. Messages between two ranks are matched by their order,
  /// also those of this rank to itself. Throws RankError when one is missing after the time-out, or has
  /// another size.
  void exchange(std::span<const Send> sends, std::span<const Receive> receives, std::string_view operation);
  /// The same without waiting: each result goes to wait(), once, in any order.
  Exchange start_exchange(std::span<const Send> sends, std::span<const Receive> receives,
                          std::string_view operation);
  void wait(Exchange exchange);
  /// Whether all its messages were sent and have arrived; returns at once, and moves messages on that are in
  /// flight. Throws RankError.
  bool arrived(const Exchange& exchange) const;
  /// Throws RankError if another rank is known to have ended; returns at once. For loops that wait for a GPU.
  void check(std::string_view operation) const;

  /// For messages of errors.
  void set_step(int64_t step) { step_ = step; }
  /// What their messages begin with: this rank, the operation, and the step if it is in one.
  std::string place(std::string_view operation) const;
  void set_timeout(std::chrono::milliseconds timeout) { options_.timeout = timeout; }
  /// Bytes that this rank has sent to others.
  int64_t bytes_sent() const { return bytes_sent_; }

  /// After an error of this rank, which has been reported: ends all ranks with its exit code.
  void abort(int exit_code) noexcept;
  /// After an error of this rank in the middle of an operation of all, where its process goes on, and where
  /// it gives up: the others, which wait for it or are about to, get a RankError at once instead of after the
  /// time-out.
  void leave() noexcept;
  /// Whether this rank exchanges no more messages: after leave(), abort() and finish().
  bool left() const { return left_; }
  /// At the regular end, on every rank: the last call, which waits for the others. Does nothing after
  /// leave(). Throws RankError.
  void finish();

 private:
  void exchange_with_self(std::span<const Send> sends, std::span<const Receive> receives) const;
  RankError error_of(const RankFailure& failure, std::string_view operation) const;

  std::unique_ptr<RankTransport> transport_;  // null: a single rank
  RanksOptions options_;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  int64_t step_ = -1;  // -1: outside of steps
  int64_t bytes_sent_ = 0;
  bool left_ = false;
};

}  // namespace meshgrad
#pragma GCC visibility pop
