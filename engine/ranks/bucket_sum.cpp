// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/ranks/bucket_sum.h>
#include <meshgrad/engine/ranks/collectives.h>

#include <deque>
#include <string>
#include <utility>

namespace meshgrad {

void BucketSum::start(const Tensor& values) {
  left_ = begins_.size();
  values_ = values;
}

void BucketSum::ready_from(int64_t first) {
  while (left_ > 0 && begins_[left_ - 1] >= first) {
    const int64_t end = left_ < begins_.size() ? begins_[left_] : values_.elements();
    add(values_.row_range(begins_[--left_], end));
  }
}

void BucketSum::finish() {
  ready_from(0);
  complete();
  values_ = {};
}

namespace {

template <class T>
class HostBucketSum final : public BucketSum {
 public:
  HostBucketSum(Ranks& ranks, std::vector<int64_t> begins, std::string_view operation)
      : BucketSum(std::move(begins)), ranks_(ranks), operation_(operation) {}

 private:
  /// complete() sends the sums, so that all ranks send in the same order: messages are matched by it, and a
  /// rank that waited here for a slower one would compute later what it can compute now.
  void add(const Tensor& bucket) override {
    for (const SlicesInFlight<T>& flight : reduced_) ranks_.arrived(flight.exchange);
    reduced_.push_back(start_reduce_scatter(ranks_, bucket.values<T>(), operation_));
  }
  void complete() override {
    std::deque<Ranks::Exchange> gathered;
    for (; !reduced_.empty(); reduced_.pop_front()) {
      const std::span<T> values = reduced_.front().values;
      finish_reduce_scatter(ranks_, std::move(reduced_.front()));
      gathered.push_back(start_all_gather_slices(ranks_, values, operation_));
    }
    for (Ranks::Exchange& exchange : gathered) ranks_.wait(std::move(exchange));
  }

  Ranks& ranks_;
  std::string operation_;
  std::deque<SlicesInFlight<T>> reduced_;
};

class DeviceBucketSum final : public BucketSum {
 public:
  DeviceBucketSum(const DeviceRanks& ranks, const Stream& stream, std::vector<int64_t> begins,
                  std::string_view operation)
      : BucketSum(std::move(begins)),
        ranks_(ranks),
        stream_(stream),
        operation_(operation),
        native_(gpu::create_stream(stream.device().index), gpu::destroy_stream),
        own_(stream.device(), 1, native_.get()) {}

 private:
  void add(const Tensor& bucket) override {
    ready_.record(stream_);
    ready_.make_wait(own_);
    ranks_.all_reduce(bucket, own_, operation_);
  }
  void complete() override {
    ranks_.await(own_, operation_);
    summed_.record(own_);
    summed_.make_wait(stream_);
  }

  const DeviceRanks& ranks_;
  const Stream& stream_;
  std::string operation_;
  std::shared_ptr<void> native_;
  Stream own_;
  Event ready_, summed_;
};

}  // namespace

std::unique_ptr<BucketSum> make_bucket_sum(Ranks& ranks, DType dtype, std::vector<int64_t> begins,
                                           std::string_view operation) {
  if (dtype == DType::f64)
    return std::make_unique<HostBucketSum<double>>(ranks, std::move(begins), operation);
  return std::make_unique<HostBucketSum<float>>(ranks, std::move(begins), operation);
}

std::unique_ptr<BucketSum> make_bucket_sum(const DeviceRanks& ranks, const Stream& stream,
                                           std::vector<int64_t> begins, std::string_view operation) {
  return std::make_unique<DeviceBucketSum>(ranks, stream, std::move(begins), operation);
}

}  // namespace meshgrad
