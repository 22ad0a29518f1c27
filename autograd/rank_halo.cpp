// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/rank_halo.h>
#include <meshgrad/engine/gpu.h>

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

class RankRequest final : public HaloExchange::Request {
 public:
  RankRequest(Ranks& ranks, Ranks::Exchange exchange) : ranks_(ranks), exchange_(std::move(exchange)) {}
  void wait() override { ranks_.wait(std::move(exchange_)); }

 private:
  Ranks& ranks_;
  Ranks::Exchange exchange_;
};

struct Messages {
  std::vector<Send> outgoing;
  std::vector<Receive> incoming;
};

/// Each neighbour gets `sends` of the rows of `from`, and its `receives` rows go to `to`.
Messages messages_of(const Halo& halo, const Tensor& from, int64_t Neighbour::*sends, const Tensor& to,
                     int64_t Neighbour::*receives) {
  Messages messages;
  RowBytes sent(from), received(to);
  for (const Neighbour& neighbour : halo.neighbours) {
    const std::span<const std::byte> rows = sent.next(neighbour.*sends);
    if (!rows.empty()) messages.outgoing.push_back({neighbour.rank, rows});
    const std::span<std::byte> place = received.next(neighbour.*receives);
    if (!place.empty()) messages.incoming.push_back({neighbour.rank, place});
  }
  return messages;
}

Messages forward_messages(const Halo& halo, const Tensor& sent, const Tensor& ghosts) {
  return messages_of(halo, sent, &Neighbour::sent, ghosts, &Neighbour::ghosts);
}
Messages backward_messages(const Halo& halo, const Tensor& d_ghosts, const Tensor& d_sent) {
  return messages_of(halo, d_ghosts, &Neighbour::ghosts, d_sent, &Neighbour::sent);
}

constexpr std::string_view kForward = "halo exchange";
constexpr std::string_view kBackward = "halo exchange of gradients";

std::unique_ptr<HaloExchange::Request> through_host(Ranks& ranks, const Messages& messages,
                                                    std::string_view operation) {
  return std::make_unique<RankRequest>(ranks,
                                       ranks.start_exchange(messages.outgoing, messages.incoming, operation));
}

class DeviceRequest final : public HaloExchange::Request {
 public:
  DeviceRequest(const DeviceRanks& ranks, const Stream& stream, std::string_view operation)
      : ranks_(ranks), stream_(stream), operation_(operation) {}
  /// NCCL would write to the ghosts' memory after it has been freed.
  ~DeviceRequest() override {
    if (!waited_) ranks_.abort();
  }
  void wait() override {
    waited_ = true;
    ranks_.await(stream_, operation_);
  }

 private:
  const DeviceRanks& ranks_;
  const Stream& stream_;
  std::string_view operation_;
  bool waited_ = false;
};

/// Null where this rank has no neighbour.
std::unique_ptr<HaloExchange::Request> between_gpus(const DeviceRanks& ranks, const Messages& messages,
                                                    const Stream& stream, std::string_view operation) {
  if (messages.outgoing.empty() && messages.incoming.empty()) return nullptr;
  ranks.exchange(messages.outgoing, messages.incoming, stream, operation);
  return std::make_unique<DeviceRequest>(ranks, stream, operation);
}

}  // namespace

std::unique_ptr<HaloExchange::Request> RankHaloExchange::forward(const Halo& halo, const Tensor& sent,
                                                                 const Tensor& ghosts) {
  return through_host(ranks_, forward_messages(halo, sent, ghosts), kForward);
}

std::unique_ptr<HaloExchange::Request> RankHaloExchange::backward(const Halo& halo, const Tensor& d_ghosts,
                                                                  const Tensor& d_sent) {
  return through_host(ranks_, backward_messages(halo, d_ghosts, d_sent), kBackward);
}

DeviceHaloExchange::DeviceHaloExchange(std::shared_ptr<const DeviceRanks> ranks, const Stream& computes)
    : ranks_(std::move(ranks)),
      computes_(computes),
      native_(gpu::create_stream(computes.device().index), gpu::destroy_stream),
      own_(computes.device(), 1, native_.get()) {}

std::unique_ptr<HaloExchange::Request> DeviceHaloExchange::forward(const Halo& halo, const Tensor& sent,
                                                                   const Tensor& ghosts) {
  follow_computes();
  return between_gpus(*ranks_, forward_messages(halo, sent, ghosts), own_, kForward);
}

std::unique_ptr<HaloExchange::Request> DeviceHaloExchange::backward(const Halo& halo, const Tensor& d_ghosts,
                                                                    const Tensor& d_sent) {
  follow_computes();
  return between_gpus(*ranks_, backward_messages(halo, d_ghosts, d_sent), own_, kBackward);
}

void DeviceHaloExchange::follow_computes() {
  ready_.record(computes_);
  ready_.make_wait(own_);
}

}  // namespace meshgrad
