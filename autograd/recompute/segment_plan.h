// SPDX-License-Identifier: Apache-2.0
// SegmentPlan: what the first run of a recomputed segment records for the second: its ops, and which of them
// must run again. Private to the tape and checkpoint().
#pragma once
#include <meshgrad/autograd/recompute/checkpoint.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshgrad {

struct SegmentPlan {
  struct Output {
    uint64_t id = 0;               ///< Variable's id; 0: an input passed through
    bool needed = true;            ///< by an op that runs again, or by a backward function
    Tensor saved;                  ///< if `saves` covers the op and the value is needed
    std::optional<uint64_t> hash;  ///< of the first run's value, for Tape::check_recomputation()
  };
  struct Op {
    explicit Op(std::string op) : name(std::move(op)) {}
    std::string name;
    std::vector<uint64_t> inputs;  ///< ids
    bool backward_reads_inputs = false;
    bool backward_reads_outputs = false;
    bool runs = true;
    std::vector<Output> outputs;
    // Of a nested segment:
    std::shared_ptr<SegmentPlan> nested;
    std::vector<GradientSlot> prototypes;  ///< slots like those of its outputs; empty: it always runs
  };
  std::string name;
  SavePolicy saves;
  std::vector<Op> ops;
  uint64_t before, last;  ///< ids in (before, last] were made by its ops and nested segments

  SegmentPlan(std::string_view segment, uint64_t last_id) : name(segment), before(last_id), last(last_id) {}
  /// Decides which ops run again, once all ops are known. `last_id`: id of the latest value.
  void decide(uint64_t last_id);
  bool made(uint64_t id) const { return id > before && id <= last; }
  /// Appends the ids that the ops read and none of them made.
  void append_outside_inputs(std::vector<uint64_t>& ids) const;

  // For the second run; all throw InvalidArgument when it differs from the first:
  const Op& op(size_t index) const;
  const Output& output(size_t op, size_t index) const;
  void check_op(size_t index, std::string_view op, size_t outputs) const;
  void check_end(size_t ops_seen, bool as_many_outputs) const;
  /// Throws InternalError unless the value has the same bits as in the first run.
  void compare(size_t op, size_t index, uint64_t hash) const;
  /// The same for all values of another run of this segment and its nested ones.
  void compare(const SegmentPlan& other) const;
};

/// A hash of the bytes of the real rows; synchronizes the device.
uint64_t hash_of(const Variable& variable, const Stream& stream);

}  // namespace meshgrad
