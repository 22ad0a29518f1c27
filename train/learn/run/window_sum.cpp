// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/span.h>
#include <meshgrad/train/learn/run/window_sum.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace meshgrad {
namespace {

constexpr std::string_view kGradients = "sum of gradients";
constexpr std::string_view kLosses = "sum of losses";
constexpr std::string_view kChoice = "choice of NCCL";
constexpr int64_t kBucketElements = 16384;  // of a bucket, at least

/// Which two ranks have one GPU, of which NCCL allows none; empty where each has its own. Collective.
std::string shared_gpu(Ranks& ranks, Device device) {
  struct Gpu {
    uint64_t host = 0;
    std::array<char, 32> address{};
    bool operator==(const Gpu&) const = default;
  } mine{.host = ranks.host()};
  const std::string address = DeviceRanks::address(device);
  std::copy_n(address.begin(), std::min(address.size(), mine.address.size() - 1), mine.address.begin());
  const std::vector<Gpu> gpus = all_gather(ranks, mine, kChoice);
  for (auto second = gpus.begin(); second != gpus.end(); ++second) {
    const auto first = std::find(gpus.begin(), second, *second);
    if (first != second)
      return fmt::format("ranks {} and {} have the same GPU, {}", first - gpus.begin(), second - gpus.begin(),
                         first->address.data());
  }
  return {};
}

}  // namespace

void WindowSum::begin(const WindowAssignment* assignment, int64_t samples, Optimizer& optimizer) {
  assignment_ = assignment;
  rounds_ = 0;
  if (!active()) return;
  const StepState before = optimizer.state();
  non_finite_before_ = before.non_finite_losses;
  without_room_before_ = before.batches_without_room;
  losses_.assign(ordered() ? static_cast<size_t>(samples) : 0, 0.0);
}

void WindowSum::add_batch(const Tensor& gradients, Optimizer& optimizer) {
  if (!ordered()) return;
  StepState state = optimizer.state();
  const auto place = (*assignment_)[static_cast<size_t>(ranks_.rank())][static_cast<size_t>(rounds_)];
  losses_[static_cast<size_t>(place)] = state.window_loss;
  state.window_loss = 0.0;
  optimizer.set_state(state);
  add_round(gradients);
}

void WindowSum::finish(const Tensor& gradients, double window_weight, Optimizer& optimizer) {
  if (!active()) return;
  const Span span(kGradients);
  if (ordered()) {
    const auto size = static_cast<int64_t>(assignment_->size());
    const auto samples = static_cast<int64_t>(losses_.size());
    while (rounds_ < (samples + size - 1) / size) add_round(gradients);  // this rank has no sample in it
  }
  if (ordered()) {
    const Tensor host = to_host(gradients, runtime_.stream());
    dispatch_storage(host.dtype(), [&]<class T>() {
      if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
        const RankSlice own = rank_slice(host.elements(), ranks_.rank(), ranks_.size());
        std::copy_n(sum_.data<T>(), own.size(), host.data<T>() + own.begin);
        all_gather_slices(ranks_, host.values<T>(), kGradients);
      }
    });
    if (runtime_.stream().on_gpu()) copy(host, gradients, runtime_.stream());
    sum_ = {};
  } else {
    BucketSum& sum = buckets(gradients);
    const bool through_host = runtime_.stream().on_gpu() && between_gpus() == nullptr;
    const Tensor values = through_host ? to_host(gradients, runtime_.stream()) : gradients;
    if (!sum.started()) sum.start(values);
    sum.finish();
    if (through_host) copy(values, gradients, runtime_.stream());
  }
  sum_losses(window_weight, optimizer);
}

std::string WindowSum::choose_path() {
  if (reduction_ != RankReduction::fast || !active()) return {};
  if (agree(ranks_, !runtime_.stream().on_gpu(), kChoice)) return {};
  std::string why_not = DeviceRanks::why_none();
  if (agree(ranks_, !why_not.empty(), kChoice)) {
    if (why_not.empty()) why_not = "no NCCL on another rank";
  } else {
    why_not = shared_gpu(ranks_, runtime_.device());
  }
  if (!why_not.empty()) return "gradients are added in host memory: " + why_not;
  device_ = std::make_shared<const DeviceRanks>(ranks_, runtime_.device(), timeout_);
  return "NCCL adds gradients";
}

BucketSum& WindowSum::buckets(const Tensor& gradients) {
  if (buckets_ == nullptr) {
    std::vector<int64_t> begins = gradient_buckets(model_, kBucketElements);
    buckets_ = between_gpus() != nullptr
                   ? make_bucket_sum(*device_, runtime_.stream(), std::move(begins), kGradients)
                   : make_bucket_sum(ranks_, gradients.dtype(), std::move(begins), kGradients);
  }
  return *buckets_;
}

GradientsReady WindowSum::while_backward(const Tensor& gradients) {
  if (!active() || ordered() || (runtime_.stream().on_gpu() && between_gpus() == nullptr)) return {};
  buckets(gradients).start(gradients);
  return [this](int64_t first) { buckets_->ready_from(first); };
}

void WindowSum::add_round(const Tensor& gradients) {
  const Tensor host = to_host(gradients, runtime_.stream());
  dispatch_storage(host.dtype(), [&]<class T>() {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) add_round_of<T>(host);
  });
  fill_zero(gradients, runtime_.stream());
  ++rounds_;
}

template <class T>
void WindowSum::add_round_of(const Tensor& host) {
  const RankSlice own = rank_slice(host.elements(), ranks_.rank(), ranks_.size());
  if (!sum_.defined()) sum_ = host_tensor(Shape{own.size()}, host.dtype());
  if (!received_.defined() && !ranks_.single())
    received_ = host_tensor(Shape{ranks_.size(), own.size()}, host.dtype());
  const auto received_row = [&](int rank) {
    return std::span(received_.template data<T>() + rank * own.size(), static_cast<size_t>(own.size()));
  };
  // (place in the window, rank) of the round's samples, in the window's order.
  std::vector<std::pair<int64_t, int>> samples;
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const std::vector<int64_t>& part = (*assignment_)[static_cast<size_t>(rank)];
    if (rounds_ < static_cast<int64_t>(part.size()))
      samples.emplace_back(part[static_cast<size_t>(rounds_)], rank);
  }
  std::sort(samples.begin(), samples.end());
  std::vector<Send> sends;
  std::vector<Receive> receives;
  const std::span<T> values = host.values<T>();
  for (const auto& [place, rank] : samples) {
    if (rank != ranks_.rank()) {
      receives.push_back({rank, std::as_writable_bytes(received_row(rank))});
      continue;
    }
    for (int other = 0; other < ranks_.size(); ++other) {
      const RankSlice slice = rank_slice(host.elements(), other, ranks_.size());
      const auto part = values.subspan(static_cast<size_t>(slice.begin), static_cast<size_t>(slice.size()));
      if (other != ranks_.rank()) sends.push_back({other, std::as_bytes(part)});
    }
  }
  ranks_.exchange(sends, receives, kGradients);
  T* const sum = sum_.data<T>();
  for (const auto& [place, rank] : samples) {
    const T* const addend = rank == ranks_.rank() ? host.data<T>() + own.begin : received_row(rank).data();
    for (int64_t i = 0; i < own.size(); ++i) sum[i] += addend[i];
  }
}

/// The state of every rank gets the loss of the whole window, so that all decide the same.
void WindowSum::sum_losses(double window_weight, Optimizer& optimizer) {
  StepState state = optimizer.state();
  if (!ordered()) losses_.assign(1, state.window_loss);
  losses_.push_back(static_cast<double>(state.non_finite_losses - non_finite_before_));
  losses_.push_back(static_cast<double>(state.batches_without_room - without_room_before_));
  losses_.push_back(state.window_penalty);
  // Where the places are the samples', all ranks but one add 0 to each, which changes no bits.
  all_reduce(ranks_, std::span(losses_), kLosses);
  const auto counts = losses_.end() - 3;
  state.non_finite_losses = non_finite_before_ + static_cast<int64_t>(counts[0]);
  state.batches_without_room = without_room_before_ + static_cast<int64_t>(counts[1]);
  state.window_penalty = counts[2];
  state.window_loss = std::accumulate(losses_.begin(), counts, 0.0);
  state.window_weight = window_weight;
  optimizer.set_state(state);
}

}  // namespace meshgrad
