// SPDX-License-Identifier: Apache-2.0
// What the first run of a segment leaves for the second: which ops there were, and which are run again.
#pragma once
#include <meshgrad/autograd/recompute/keep.h>

namespace meshgrad {

struct SegmentPlan {
  template <class T>
  using List = std::vector<T, Recycling<T>>;
  struct Output {
    uint64_t id = 0;               ///< 0: handed through
    bool needed = true;            ///< by an op that runs again, or by a backward
    Tensor kept;                   ///< as `keep` says, if it is read again
    std::optional<uint64_t> hash;  ///< of the first run's value, when recomputation is checked
  };
  struct Op {
    Op(const Recycling<std::byte>& memory, std::string_view op)
        : name(op, memory), inputs(memory), outputs(memory), prototypes(memory) {}
    RecycledString name;
    List<uint64_t> inputs;
    bool rereads_inputs = false;
    bool rereads_outputs = false;
    bool runs = true;
    List<Output> outputs;
    // Of an op that is a segment itself:
    std::shared_ptr<SegmentPlan> nested;
    List<GradientSlot> prototypes;  ///< like its outputs'; none: it always runs
  };
  RecycledString name;
  Keep keep;
  List<Op> ops;
  // Its ops and segments in it made the values of the numbers behind `before`, up to `last`.
  uint64_t before, last;

  SegmentPlan(const Recycling<std::byte>& memory, std::string_view segment, uint64_t made_before)
      : name(segment, memory), ops(memory), before(made_before), last(made_before) {}
  Op& add_op(std::string_view op) { return ops.emplace_back(Recycling<std::byte>(ops.get_allocator()), op); }
  /// Decides what is run again, when all ops are known. `last_made`: the number of the last value.
  void decide(uint64_t last_made);
  bool made(uint64_t id) const { return id > before && id <= last; }
  /// Adds what the ops read and none of them made.
  void add_outside(List<uint64_t>& ids) const;

  // Of the second run; all throw InvalidArgument where it is not like the first:
  const Op& op(size_t index) const;
  const Output& output(size_t op, size_t index) const;
  void check_op(size_t index, std::string_view op, size_t outputs) const;
  void check_end(size_t ops_seen, bool as_many_outputs) const;
  /// Throws InternalError unless the value has the bits of the first run's.
  void compare(size_t op, size_t index, uint64_t hash) const;
  /// Likewise for all values of another run of this segment, and of segments in it.
  void compare(const SegmentPlan& other) const;
};

/// Of the bytes of the real rows; waits for the device.
uint64_t hash_of(const Variable& variable, const Stream& stream);

}  // namespace meshgrad
