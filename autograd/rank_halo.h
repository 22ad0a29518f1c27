// SPDX-License-Identifier: Apache-2.0
// The exchange of rows when each part of a mesh belongs to a rank: part r to rank r. Through host memory, or
// between GPUs.
#pragma once
#include <meshgrad/autograd/halo.h>
#include <meshgrad/engine/ranks/device_ranks.h>
#include <meshgrad/engine/ranks/ranks.h>

namespace meshgrad {

class RankHaloExchange final : public HaloExchange {
 public:
  /// `ranks` outlives it.
  explicit RankHaloExchange(Ranks& ranks) : ranks_(ranks) {}
  std::unique_ptr<Request> forward(const Halo& halo, const Tensor& sent, const Tensor& ghosts) override;
  std::unique_ptr<Request> backward(const Halo& halo, const Tensor& d_ghosts, const Tensor& d_sent) override;

 private:
  Ranks& ranks_;
};

/// Rows go by NCCL on a stream of their own, after what the computing stream had queued when they were
/// handed over. wait() blocks the host until they are there, so that a rank that does not answer is found:
/// what is to be computed meanwhile is queued before.
class DeviceHaloExchange final : public HaloExchange {
 public:
  /// `computes` outlives it.
  DeviceHaloExchange(std::shared_ptr<const DeviceRanks> ranks, const Stream& computes);
  bool on_device() const override { return true; }
  std::unique_ptr<Request> forward(const Halo& halo, const Tensor& sent, const Tensor& ghosts) override;
  std::unique_ptr<Request> backward(const Halo& halo, const Tensor& d_ghosts, const Tensor& d_sent) override;

 private:
  void follow_computes();

  std::shared_ptr<const DeviceRanks> ranks_;
  const Stream& computes_;
  std::shared_ptr<void> native_;
  Stream own_;
  Event ready_;
};

}  // namespace meshgrad
