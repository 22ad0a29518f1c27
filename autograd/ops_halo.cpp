// SPDX-License-Identifier: Apache-2.0
// One mesh over several parts: the exchange of rows at the parts' borders, and of their gradients.
#include <meshgrad/autograd/halo.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/kernels/message_passing.h>
#include <meshgrad/kernels/segment_sum.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace meshgrad {
namespace {

/// Unwritten memory on the host for a tensor that exchanges fill: its own, where it lies there. A dry run
/// exchanges nothing but sizes.
Tensor host_side(const Tensor& tensor, const Stream& stream) {
  return stream.on_gpu() && !stream.dry() ? host_tensor(tensor.shape(), tensor.dtype()) : tensor;
}

Tensor fetched(const Tensor& tensor, const Stream& stream) {
  return stream.dry() ? tensor : to_host(tensor, stream);
}

}  // namespace

Halo make_halo(Runtime& runtime, int64_t owned, std::vector<Neighbour> neighbours,
               std::span<const int32_t> sent, std::shared_ptr<HaloExchange> exchange) {
  int64_t rows = 0, ghosts = 0;
  for (const Neighbour& neighbour : neighbours) {
    rows += neighbour.sent;
    ghosts += neighbour.ghosts;
  }
  if (static_cast<size_t>(rows) != sent.size()) {
    throw invalid_argument("make_halo: sent", std::to_string(rows) + " rows, as the neighbours' counts say",
                           std::to_string(sent.size()));
  }
  for (const int32_t node : sent) {
    if (node >= 0 && node < owned) continue;
    throw invalid_argument("make_halo: sent", "owned nodes, 0 .. " + std::to_string(owned) + " - 1",
                           std::to_string(node));
  }
  if (exchange == nullptr) throw invalid_argument("make_halo", "an exchange", "none");
  Halo halo{.owned = owned, .ghosts = ghosts, .neighbours = std::move(neighbours)};
  halo.first_sent = sent.empty() ? owned : *std::min_element(sent.begin(), sent.end());
  std::vector<int32_t> offsets(static_cast<size_t>(owned - halo.first_sent) + 1, 0), order(sent.size());
  const auto place = [&](int32_t node) { return static_cast<size_t>(node - halo.first_sent); };
  for (const int32_t node : sent) ++offsets[place(node) + 1];
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  std::vector<int32_t> next(offsets.begin(), offsets.end() - 1);
  for (size_t i = 0; i < sent.size(); ++i)
    order[static_cast<size_t>(next[place(sent[i])]++)] = static_cast<int32_t>(i);
  const auto tensor = [&](std::span<const int32_t> values, std::string_view name) {
    return Tensor::from<int32_t>(runtime, values, Shape{static_cast<int64_t>(values.size())}, Tag::data,
                                 name);
  };
  halo.sent = tensor(sent, "halo: sent");
  halo.sum_offsets = tensor(offsets, "halo: offsets");
  halo.sum_order = tensor(order, "halo: order");
  halo.exchange = std::move(exchange);
  return halo;
}

void add_sent_gradients(const Halo& halo, const Tensor& d_sent, const Tensor& d_owned, const Stream& stream) {
  kernels::segment_sum({.segments = halo.owned - halo.first_sent,
                        .offsets = halo.sum_offsets,
                        .order = halo.sum_order,
                        .x = d_sent,
                        .out = d_owned.row_range(halo.first_sent, halo.owned),
                        .accumulate = true},
                       stream);
}

/// Sends `from`, and fills `to`.
void HaloRound::launch(const Tape& tape, const Tensor& from, const Tensor& to, bool back) {
  HaloExchange& exchange = *halo_.exchange;
  stream_ = &tape.stream();
  target_ = to;
  outgoing_ = exchange.on_device() ? from : fetched(from, *stream_);
  incoming_ = exchange.on_device() ? to : host_side(to, *stream_);
  request_ =
      back ? exchange.backward(halo_, outgoing_, incoming_) : exchange.forward(halo_, outgoing_, incoming_);
  if (request_ == nullptr) finish();
}

void HaloRound::finish() {
  if (const auto request = std::exchange(request_, nullptr)) request->wait();
  if (incoming_.defined() && incoming_.raw() != target_.raw()) copy(incoming_, target_, *stream_);
  outgoing_ = incoming_ = {};
  if (!started_back_) target_ = {};
}

std::optional<GhostExchange> HaloRound::overlapped(const Graph& graph) const {
  const bool on_gpu = graph.receivers.device().kind == DeviceKind::cuda;
  if (on_gpu && (!halo_.border_receivers.defined() || graph.counts.defined())) return std::nullopt;
  return GhostExchange{.interior = halo_.interior,
                       .interior_edges = halo_.interior_edges,
                       .border_receivers = halo_.border_receivers,
                       .border_offsets = halo_.border_offsets,
                       .call = {}};
}

void HaloRound::start(const Tape& tape, const Tensor& owned, const Tensor& ghosts) {
  const Tensor sent = tape.scratch(Shape{halo_.sent.rows(), owned.width()}, owned.dtype(), "sent rows");
  kernels::gather({.rows = sent.rows(), .index = halo_.sent, .x = owned, .out = sent}, tape.stream());
  launch(tape, sent, ghosts, false);
}

void HaloRound::start_backward(const Tape& tape, const Tensor& d_ghosts) {
  started_back_ = true;
  launch(tape, d_ghosts,
         tape.scratch(Shape{halo_.sent.rows(), d_ghosts.width()}, d_ghosts.dtype(), "gradients of sent rows"),
         true);
}

void HaloRound::finish_backward(const Tape& tape, const Tensor& d_owned, const Tensor& d_ghosts) {
  if (!started_back_) start_backward(tape, d_ghosts);
  finish();
  add_sent_gradients(halo_, target_, d_owned, tape.stream());
}

Variable ops::halo_exchange(Tape& tape, const Variable& x, const std::shared_ptr<HaloRound>& round) {
  const Halo& halo = round->halo();
  if (x.value().rows() != halo.owned) {
    throw invalid_argument("halo_exchange", std::to_string(halo.owned) + " rows, one for each owned node",
                           std::to_string(x.value().rows()));
  }
  const int64_t all = halo.owned + halo.ghosts;
  Variable y =
      tape.output(Rows{all}, x.value().width(), x.value().dtype(), x.needs_gradient(), "nodes and ghosts");
  if (tape.runs()) {
    copy(x.value(), y.value().row_range(0, halo.owned), tape.stream());
    round->start(tape, x.value(), y.value().row_range(halo.owned, all));
    if (tape.reads_outputs()) round->finish();
  }
  tape.record({.op = "halo_exchange", .inputs = {&x, 1}},
              [x = x.slot(), y = y.slot(), round, owned = halo.owned](Tape& back) {
                const Tensor d_y = back.take_gradient(y);
                if (!d_y.defined() || !x.needs_gradient()) return;
                const Tensor d_x = d_y.row_range(0, owned);
                round->finish_backward(back, d_x, d_y.row_range(owned, d_y.rows()));
                back.add_gradient(x, d_x);
              });
  return y;
}

Variable ops::halo_exchange(Tape& tape, const Variable& x, const Halo& halo) {
  const auto round = std::make_shared<HaloRound>(halo);
  const Variable y = halo_exchange(tape, x, round);
  round->finish();
  return y;
}

}  // namespace meshgrad
