// SPDX-License-Identifier: Apache-2.0
// Halo: what a part of a mesh exchanges with other parts. The part owns its nodes; after them stand ghost
// nodes, copies of rows that neighbours own.
#pragma once
#include <meshgrad/autograd/tape.h>

#include <memory>
#include <optional>
#include <vector>

namespace meshgrad {

/// A rank with which rows are exchanged.
struct Neighbour {
  int32_t rank = 0;
  int64_t sent = 0;    ///< rows that it needs of this part
  int64_t ghosts = 0;  ///< ghost rows that it owns
  bool operator==(const Neighbour&) const = default;
};

struct Halo;

/// Moves rows between parts. One implementation has a rank for each part (rank_halo.h), another computes part
/// after part in one process.
class HaloExchange {
 public:
  /// Rows in flight; their tensors must stay until wait(). Destroyed without it, the exchange is given up.
  class Request {
   public:
    virtual ~Request() = default;
    virtual void wait() = 0;
  };
  virtual ~HaloExchange() = default;
  /// Whether tensors lie on the device that computes, and are read and written after the work that is queued
  /// there; otherwise they lie on the host.
  virtual bool on_device() const { return false; }
  /// Tensors are [rows, width], neighbour after neighbour in the order of the halo.
  /// Sends `sent` [sum of Neighbour::sent] and fills `ghosts` [sum of Neighbour::ghosts]. Null: all done.
  virtual std::unique_ptr<Request> forward(const Halo& halo, const Tensor& sent, const Tensor& ghosts) = 0;
  /// The other way: sends the ghosts' gradients to their owners, and fills `d_sent` with those of the rows
  /// that this part sent.
  virtual std::unique_ptr<Request> backward(const Halo& halo, const Tensor& d_ghosts,
                                            const Tensor& d_sent) = 0;
};

/// Index tensors are i32 and lie on the device that computes.
struct Halo {
  int64_t owned = 0;
  int64_t ghosts = 0;
  /// The first nodes receive from no ghost: their edges can be computed during an exchange.
  int64_t interior = 0;
  /// Of the first edge set, only on a GPU: the number of edges that the interior nodes receive, and the other
  /// edges' receivers and offsets, as GhostExchange (kernels/message_passing.h) has them.
  int64_t interior_edges = 0;
  Tensor border_receivers, border_offsets;
  std::vector<Neighbour> neighbours;  ///< ascending by rank
  Tensor sent;                        ///< [sent rows]: owned nodes, neighbour after neighbour
  /// Which received gradients each owned node from `first_sent` on adds up, as in a SegmentSum: by neighbour,
  /// then by place in its list. No node before it is sent.
  int64_t first_sent = 0;
  Tensor sum_offsets;  ///< [owned - first_sent + 1]
  Tensor sum_order;    ///< [sent rows]
  std::shared_ptr<HaloExchange> exchange;
};

/// `interior` is 0 until the caller says more. Throws InvalidArgument for a node outside of 0 .. owned - 1,
/// for counts that do not add up, and without an exchange.
Halo make_halo(Runtime& runtime, int64_t owned, std::vector<Neighbour> neighbours,
               std::span<const int32_t> sent, std::shared_ptr<HaloExchange> exchange);

/// Adds the gradients [sent rows, width] that came back, on the halo's device, to those of the owned nodes
/// [owned, width], in an order that depends only on the halo.
void add_sent_gradients(const Halo& halo, const Tensor& d_sent, const Tensor& d_owned, const Stream& stream);

struct Graph;
struct GhostExchange;  // kernels/message_passing.h

/// One exchange of a halo, forward and backward, with what its messages read and write.
class HaloRound {
 public:
  explicit HaloRound(const Halo& halo) : halo_(halo) {}
  const Halo& halo() const { return halo_; }

  /// Forward, from the owned nodes' rows; finish() returns when the ghosts' are filled, and does nothing
  /// twice.
  void start(const Tape& tape, const Tensor& owned, const Tensor& ghosts);
  bool pending() const { return request_ != nullptr; }
  void finish();
  /// The exchange as an edge update over `graph`, the first edge set's, overlaps with it; the caller adds
  /// `call`. nullopt: the update has to wait for the rows.
  std::optional<GhostExchange> overlapped(const Graph& graph) const;
  /// Backward, from the ghosts' gradients; what comes back is added to the owned nodes'.
  void start_backward(const Tape& tape, const Tensor& d_ghosts);
  void finish_backward(const Tape& tape, const Tensor& d_owned, const Tensor& d_ghosts);

 private:
  void launch(const Tape& tape, const Tensor& from, const Tensor& to, bool back);

  const Halo& halo_;
  Tensor outgoing_, incoming_, target_;  // the target is on the device, where incoming rows go in the end
  const Stream* stream_ = nullptr;       // of the target
  bool started_back_ = false;
  std::unique_ptr<HaloExchange::Request> request_;
};

}  // namespace meshgrad
