// SPDX-License-Identifier: Apache-2.0
// Offload: moves values that segments save to an OffloadStore and fetches them in time for the segments'
// second runs. Private to the tape; Tape::offload() describes what is offloaded.
#pragma once
#include <meshgrad/autograd/offload/offload_store.h>

namespace meshgrad {

/// The segments of one tape, in order. While a segment runs, the saved values of the one before it are
/// written; when it ends, their device memory is freed. In the backward pass, values of a segment are read
/// while the next one (in forward order) is recomputed. Those of the last segment are not offloaded: they are
/// needed at once.
class Offload {
 public:
  /// One of the tensors that refer to a value; it has no memory while the value is offloaded.
  struct Holder {
    std::shared_ptr<Tensor> tensor;
    const bool* stays = nullptr;  ///< when it points to true, the value must not be offloaded
  };

  /// `runtime` and `store` outlive it.
  Offload(Runtime& runtime, OffloadStore& store) : runtime_(runtime), store_(store) {}
  ~Offload();
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  /// Before the first run of a segment with these inputs.
  void begin_segment(const std::vector<Holder>& inputs);
  /// After it: the values that the segment saves. Returns the segment's number.
  int64_t end_segment(const std::vector<Holder>& saved);
  /// Before its second run: makes its values resident and starts reading those of the segment before it.
  void fetch(int64_t segment);
  /// After its second run, or when there will be none.
  void release(int64_t segment);

 private:
  struct Value;
  using ValuePtr = std::shared_ptr<Value>;

  ValuePtr value_of(const Holder& holder, const std::vector<ValuePtr>& more) const;
  void start_write(Value& value);
  void evict(Value& value);
  void start_read(Value& value);
  void make_resident(Value& value);
  void cancel(Value& value) noexcept;

  Runtime& runtime_;
  OffloadStore& store_;
  std::vector<std::vector<ValuePtr>> segments_;
};

}  // namespace meshgrad
