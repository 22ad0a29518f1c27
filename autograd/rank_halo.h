// SPDX-License-Identifier: Apache-2.0
// RankHaloExchange: the exchange of rows when each part of a mesh belongs to a rank.
#pragma once
#include <meshgrad/autograd/halo.h>
#include <meshgrad/engine/ranks/ranks.h>

namespace meshgrad {

class RankHaloExchange final : public HaloExchange {
 public:
  /// Part r of the mesh is that of rank r. `ranks` outlives it.
  explicit RankHaloExchange(Ranks& ranks) : ranks_(ranks) {}
  std::unique_ptr<Flight> forward(const Halo& halo, const Tensor& sent, const Tensor& ghosts) override;
  std::unique_ptr<Flight> backward(const Halo& halo, const Tensor& d_ghosts, const Tensor& d_sent) override;

 private:
  Ranks& ranks_;
};

}  // namespace meshgrad
