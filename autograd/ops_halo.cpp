// SPDX-License-Identifier: Apache-2.0
// One mesh over several parts: the exchange of rows at the parts' borders, and of their gradients.
#include <meshgrad/autograd/halo.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/kernels/segment_sum.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace meshgrad {
namespace {

/// The same tensor on the host, where exchanges want it, or unwritten memory there for it.
Tensor host_side(const Tensor& tensor) {
  return tensor.device().kind != DeviceKind::cpu ? host_tensor(tensor.shape(), tensor.dtype()) : tensor;
}

void fetch_ghosts(const Tape& tape, const Halo& halo, const Tensor& owned, const Tensor& ghosts) {
  const Tensor sent = tape.scratch(Shape{halo.sent.rows(), owned.width()}, owned.dtype(), "sent rows");
  kernels::gather({.rows = sent.rows(), .index = halo.sent, .x = owned, .out = sent}, tape.stream());
  const Tensor received = host_side(ghosts);
  halo.exchange->forward(halo, to_host(sent, tape.stream()), received);
  if (tape.stream().on_gpu()) copy(received, ghosts, tape.stream());
}

void return_gradients(const Tape& tape, const Halo& halo, const Tensor& d_owned, const Tensor& d_ghosts) {
  const Tensor d_sent =
      tape.scratch(Shape{halo.sent.rows(), d_owned.width()}, d_owned.dtype(), "gradients of sent rows");
  const Tensor received = host_side(d_sent);
  halo.exchange->backward(halo, to_host(d_ghosts, tape.stream()), received);
  if (tape.stream().on_gpu()) copy(received, d_sent, tape.stream());
  add_sent_gradients(halo, d_sent, d_owned, tape.stream());
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

Variable ops::halo_exchange(Tape& tape, const Variable& x, const Halo& halo) {
  if (x.value().rows() != halo.owned) {
    throw invalid_argument("halo_exchange", std::to_string(halo.owned) + " rows, one for each owned node",
                           std::to_string(x.value().rows()));
  }
  const int64_t all = halo.owned + halo.ghosts;
  Variable y =
      tape.output(Rows{all}, x.value().width(), x.value().dtype(), x.needs_gradient(), "nodes and ghosts");
  if (tape.runs()) {
    copy(x.value(), y.value().row_range(0, halo.owned), tape.stream());
    fetch_ghosts(tape, halo, x.value(), y.value().row_range(halo.owned, all));
  }
  tape.record({.op = "halo_exchange", .inputs = {&x, 1}},
              [x = x.slot(), y = y.slot(), h = &halo](Tape& back) {
                const Tensor d_y = back.take_gradient(y);
                if (!d_y.defined() || !x.needs_gradient()) return;
                const Tensor d_x = d_y.row_range(0, h->owned);
                return_gradients(back, *h, d_x, d_y.row_range(h->owned, d_y.rows()));
                back.add_gradient(x, d_x);
              });
  return y;
}

}  // namespace meshgrad
