// SPDX-License-Identifier: Apache-2.0
// All tensors of a batch in one piece of memory, so that one copy takes it to a device.
#pragma once
#include <meshgrad/nn/batch.h>

#pragma GCC visibility push(default)
namespace meshgrad {

struct BatchSizes {
  int64_t nodes = 0, edges = 0;
  int64_t node_inputs = 0, edge_inputs = 0;
  int64_t outputs = 0;         ///< 0: to predict, without target and mask
  int64_t steps = 1;           ///< that a sample is unrolled over
  bool second_change = false;  ///< Unroll::second_change
  bool operator==(const BatchSizes&) const = default;
};

/// Where each tensor lies in the piece: the same for every piece of these sizes.
class BatchMemory {
 public:
  /// Of each tensor in the piece, and of the piece, in bytes.
  static constexpr int64_t kAlignment = 256;
  enum class Sizes : uint8_t {
    exact,    ///< of one batch
    capacity  ///< the most of many: the batch carries its real counts (Graph::counts)
  };
  /// Features are of `dtype`, the target of its accumulator.
  BatchMemory(const BatchSizes& sizes, DType dtype, Sizes kind);

  const BatchSizes& sizes() const { return sizes_; }
  int64_t bytes() const { return bytes_; }
  /// The tensors over a piece of `bytes()`, on the host or on a device; offsets and samples are empty.
  Batch batch(const StoragePtr& piece) const;
  /// f64 [1]: loss terms of the window that the batch is part of.
  Tensor window_weight(const StoragePtr& piece) const;

 private:
  int64_t place(int64_t bytes);

  BatchSizes sizes_;
  DType dtype_;
  bool counted_;
  int64_t bytes_ = 0;
  int64_t senders_, receivers_, receiver_offsets_, sender_offsets_, sender_order_;
  int64_t edge_features_, node_features_, target_, mask_, counts_, window_weight_;
  int64_t further_node_features_ = 0, further_target_ = 0, source_ = 0, ratio_ = 0;
};

}  // namespace meshgrad
#pragma GCC visibility pop
