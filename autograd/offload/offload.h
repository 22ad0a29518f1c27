// SPDX-License-Identifier: Apache-2.0
// The way of what segments keep to a store, and back in time for their second runs. For the tape: see
// Tape::offload().
#pragma once
#include <meshgrad/autograd/offload/offload_store.h>

namespace meshgrad {

/// Segments of one tape, in order. While one runs, what the one before it keeps is written; when it has run,
/// that leaves the device's memory. On the way back the values of a segment are read while the one behind it
/// runs again. The last one's stay: they are needed at once.
class Offload {
 public:
  /// A tensor through which somebody reads a value: empty while it is away.
  struct Holder {
    std::shared_ptr<Tensor> tensor;
    const bool* stays = nullptr;  ///< where it says true, the value stays where it is
  };

  /// Both outlive it.
  Offload(Runtime& runtime, OffloadStore& store) : runtime_(runtime), store_(store) {}
  ~Offload();
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  /// A segment is about to run for the first time, on these inputs.
  void begin_segment(const std::vector<Holder>& inputs);
  /// It ran, and keeps these. Returns its number.
  int64_t end_segment(const std::vector<Holder>& kept);
  /// It is about to run again: its values are there, and those of the segment before it on their way.
  void bring_back(int64_t segment);
  /// It did, or never will.
  void forget(int64_t segment);

 private:
  struct Value;
  using ValuePtr = std::shared_ptr<Value>;

  ValuePtr value_of(const Holder& holder, const std::vector<ValuePtr>& more) const;
  void start_write(Value& value);
  void leave(Value& value);
  void start_read(Value& value);
  void arrive(Value& value);
  void drop(Value& value) noexcept;

  Runtime& runtime_;
  OffloadStore& store_;
  std::vector<std::vector<ValuePtr>> segments_;
};

}  // namespace meshgrad
