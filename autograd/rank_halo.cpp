// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/rank_halo.h>

#include <utility>

namespace meshgrad {
namespace {

/// Hands out consecutive rows of a tensor as bytes.
class RowBytes {
 public:
  explicit RowBytes(const Tensor& tensor)
      : at_(static_cast<std::byte*>(tensor.raw())),
        row_(static_cast<size_t>(tensor.width() * size_of(tensor.dtype()))) {}
  std::span<std::byte> next(int64_t rows) {
    const std::span<std::byte> bytes(at_, static_cast<size_t>(rows) * row_);
    at_ += bytes.size();
    return bytes;
  }

 private:
  std::byte* at_;
  size_t row_;
};

class RankFlight final : public HaloExchange::Flight {
 public:
  RankFlight(Ranks& ranks, Ranks::Exchange exchange) : ranks_(ranks), exchange_(std::move(exchange)) {}
  void wait() override { ranks_.wait(std::move(exchange_)); }

 private:
  Ranks& ranks_;
  Ranks::Exchange exchange_;
};

/// Each neighbour gets `sends` of the rows of `from`, and its `receives` rows go to `to`.
std::unique_ptr<HaloExchange::Flight> exchange_rows(Ranks& ranks, const Halo& halo, const Tensor& from,
                                                    int64_t Neighbour::*sends, const Tensor& to,
                                                    int64_t Neighbour::*receives,
                                                    std::string_view operation) {
  std::vector<Send> outgoing;
  std::vector<Receive> incoming;
  RowBytes sent(from), received(to);
  for (const Neighbour& neighbour : halo.neighbours) {
    const std::span<const std::byte> rows = sent.next(neighbour.*sends);
    if (!rows.empty()) outgoing.push_back({neighbour.rank, rows});
    const std::span<std::byte> place = received.next(neighbour.*receives);
    if (!place.empty()) incoming.push_back({neighbour.rank, place});
  }
  return std::make_unique<RankFlight>(ranks, ranks.start_exchange(outgoing, incoming, operation));
}

}  // namespace

std::unique_ptr<HaloExchange::Flight> RankHaloExchange::forward(const Halo& halo, const Tensor& sent,
                                                                const Tensor& ghosts) {
  return exchange_rows(ranks_, halo, sent, &Neighbour::sent, ghosts, &Neighbour::ghosts, "halo exchange");
}

std::unique_ptr<HaloExchange::Flight> RankHaloExchange::backward(const Halo& halo, const Tensor& d_ghosts,
                                                                 const Tensor& d_sent) {
  return exchange_rows(ranks_, halo, d_ghosts, &Neighbour::ghosts, d_sent, &Neighbour::sent,
                       "halo exchange of gradients");
}

}  // namespace meshgrad
