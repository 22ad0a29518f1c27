// SPDX-License-Identifier: Apache-2.0
// BucketSum: the sum of an array over all ranks, as all_reduce, bucket by bucket from its end to its start
// while the part before them is still being computed. So gradients travel while backward goes on (Li et al.:
// "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020, section 3.2.3).
#pragma once
#include <meshgrad/engine/ranks/device_ranks.h>
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/engine/stream.h>
#include <meshgrad/engine/tensor.h>

#include <memory>
#include <string_view>
#include <vector>

namespace meshgrad {

/// Every rank starts the same sums in the same order; when, is its own matter.
class BucketSum {
 public:
  /// Bucket i has elements [begins[i], begins[i + 1]), the last one the rest; begins[0] is 0.
  explicit BucketSum(std::vector<int64_t> begins) : begins_(std::move(begins)), left_(begins_.size()) {}
  virtual ~BucketSum() = default;
  BucketSum(const BucketSum&) = delete;
  BucketSum& operator=(const BucketSum&) = delete;

  /// Of f32 or f64 [n], of the dtype that it was made for.
  void start(const Tensor& values);
  bool started() const { return values_.defined(); }
  /// Elements from `first` on hold what this rank adds, and leave. Waits for nothing. Throws RankError.
  void ready_from(int64_t first);
  /// All elements do. Afterwards they are the sums, on a GPU for work queued from now on.
  void finish();

 private:
  virtual void add(const Tensor& bucket) = 0;
  virtual void complete() = 0;

  std::vector<int64_t> begins_;
  size_t left_;  // buckets that are not started
  Tensor values_;
};

/// In host memory: the bits of all_reduce. `ranks` outlives it.
std::unique_ptr<BucketSum> make_bucket_sum(Ranks& ranks, DType dtype, std::vector<int64_t> begins,
                                           std::string_view operation);
/// On GPUs: on a stream of its own, after the work that `stream` has when a bucket is ready. Both outlive it.
std::unique_ptr<BucketSum> make_bucket_sum(const DeviceRanks& ranks, const Stream& stream,
                                           std::vector<int64_t> begins, std::string_view operation);

}  // namespace meshgrad
