// SPDX-License-Identifier: Apache-2.0
// The tape: what ran, in order, and what each op kept for its way back.
#pragma once
#include <meshgrad/autograd/variable.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Where an op's backward puts the gradient of an input: into `tensor`, added to what is there or written.
/// An undefined tensor: not wanted.
struct GradientTarget {
  Tensor tensor;
  bool accumulate = false;
};

/// What an op just wrote, for those who look on.
struct OpWritten {
  struct Part {
    std::string name;  ///< "edges"; on the way back "gradient of edges"
    Tensor tensor;     ///< [rows, width]
    Rows rows;
  };
  std::string op;
  std::string scope;  ///< the MemoryScopes in which the op ran forward: "processor.3"
  bool backward = false;
  std::vector<Part> parts;  ///< but for gradients of weights and what an op keeps for itself
};

struct SegmentPlan;
class Offload;
class OffloadStore;

/// An op for those who run it again: what it read, and which values its backward will read. Of variables
/// whose values it does not read, a backward owns the slots alone, so that nothing keeps those values for it.
struct OpUse {
  std::string_view op;
  std::span<const Variable> inputs;
  bool rereads_inputs = false;   ///< backward reads the inputs' values
  bool rereads_outputs = false;  ///< backward reads the values of the op's own outputs
  bool product = false;          ///< a matrix product, or a fused call of several
};

/// How often ops ran on a tape and its inner ones.
struct OpCounts {
  int64_t forwards = 0;    ///< for the first time
  int64_t recomputed = 0;  ///< again, for a backward
  int64_t segments = 0;    ///< segments that were run again
};

class Tape {
 public:
  using Observer = std::function<void(const OpWritten&)>;
  enum class Mode { record, evaluate };
  /// In Mode::evaluate ops keep nothing and backward has nothing to do.
  explicit Tape(Runtime& runtime, Mode mode = Mode::record)
      : runtime_(runtime),
        kind_(mode == Mode::record ? Kind::record : Kind::evaluate),
        entries_(recycling()),
        shared_(make_recycled<Shared>(recycling())),
        made_(recycling()) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Runtime& runtime() const { return runtime_; }
  const Stream& stream() const { return runtime_.stream(); }
  /// True where ops save what their backward wants.
  bool recording() const { return kind_ == Kind::record; }
  bool evaluating() const { return kind_ == Kind::evaluate; }
  size_t size() const { return entries_.size(); }
  const OpCounts& counts() const { return shared_->counts; }

  /// `observer` is called after each op of this recording tape, there and back, and may wait for the device.
  void observe(Observer observer) { observer_ = std::move(observer); }

  /// Compares what segments compute again to what they computed first, bit for bit, and throws InternalError
  /// naming segment and op where they differ. Waits for the device after each op.
  void check_recomputation() { shared_->check = true; }

  /// What segments of this recording tape keep waits in `store`, from when the next segment has run until
  /// shortly before the second run. That goes for values that ops made, and that nobody else keeps: who holds
  /// the tensor, or an op whose backward reads it, keeps it in memory. A value that was a segment's input is
  /// from then on read by segments alone. The store outlives the tape; call it before the first segment.
  void offload(OffloadStore& store);

  /// A value from outside that needs no gradient.
  Variable input(Tensor value, Rows rows) const {
    return Variable(std::move(value), false, rows, recycling());
  }

  // For ops, in this order:
  /// An op's output, [rows, width]: uninitialised, of the activations' tag. Its value has no memory where an
  /// inner tape knows that nobody will read it.
  Variable output(Rows rows, int64_t width, DType dtype, bool needs_gradient, std::string_view name) {
    return output(Shape{rows.capacity, width}, rows, dtype, needs_gradient, name);
  }
  Variable output(const Shape& shape, Rows rows, DType dtype, bool needs_gradient, std::string_view name);
  /// False when an inner tape has all it needs of this op without running its kernels again.
  bool runs() const;
  /// What an op saves for its backward carries this tag.
  Tag tag() const { return tag_; }
  /// Notes that an op ran. `backward(Tape&)` owns what the op saved; it is called once and destroyed right
  /// after.
  template <class Backward>
  void record(const OpUse& use, Backward backward) {
    if (kind_ == Kind::evaluate) return;
    note_op(use);
    if (kind_ == Kind::record) push(use.op, std::move(backward));
    if (observer_) tell(use.op, runtime_.allocator().scope(), false);
  }

  /// Walks back once from `sum`, whose gradient is `seed`: f64 [1] in device memory (loss scale / window
  /// weight). Gradients of leaf variables and weights are accumulated; entries are gone afterwards.
  void backward(const Variable& sum, const Tensor& seed);

  // For the backward functions of ops:
  /// The gradient that reached an op's output, taken from its slot; undefined when nothing used the output.
  Tensor take_gradient(const GradientSlot& slot) const;
  /// The slot of an input's gradient; the first request allocates it.
  GradientTarget gradient_for(const GradientSlot& slot) const;
  /// Adds a finished gradient; an empty slot takes over the tensor itself, which the caller then no longer
  /// owns.
  void give_gradient(const GradientSlot& slot, const Tensor& gradient) const;
  /// Scratch memory of an op.
  Tensor scratch(const Shape& shape, DType dtype, std::string_view name) const;

 private:
  friend class SegmentRun;
  enum class Kind : uint8_t {
    record,
    evaluate,
    forget  // the first run of a segment: gradients will be wanted, but nothing is kept
  };
  struct Shared {
    OpCounts counts;
    uint64_t ids = 0;
    bool check = false;
    std::shared_ptr<Offload> offload;
  };
  /// An inner tape.
  Tape(const Tape& outer, Kind kind, std::shared_ptr<SegmentPlan> plan);
  struct Entry {
    RecycledString op;
    std::shared_ptr<void> saved;
    void (*backward)(void* saved, Tape&);
    std::string scope;  // if observed
    bool segment = false;
  };
  template <class Backward>
  void push(std::string_view op, Backward backward, bool segment = false) {
    entries_.push_back({RecycledString(op, recycling()),
                        make_recycled<Backward>(recycling(), std::move(backward)),
                        [](void* saved, Tape& tape) { (*static_cast<Backward*>(saved))(tape); },
                        observer_ ? runtime_.allocator().scope() : std::string(), segment});
  }
  const Recycling<std::byte>& recycling() const { return runtime_.allocator().recycling(); }
  void note_op(const OpUse& use);
  void note_gradient(const GradientSlot& slot) const;
  void tell(std::string_view op, std::string scope, bool backward);
  bool follows() const { return kind_ == Kind::record && plan_ != nullptr; }
  Offload* root_offload() const { return plan_ == nullptr && recording() ? shared_->offload.get() : nullptr; }
  void note_readers(const OpUse& use) const;
  void note(const OpUse& use);
  void follow(const OpUse& use);
  void walk();

  Runtime& runtime_;
  Kind kind_;
  Tag tag_ = Tag::activations;
  std::vector<Entry, Recycling<Entry>> entries_;
  Observer observer_;
  std::shared_ptr<Shared> shared_;
  // Of inner tapes: written by one that forgets, followed by one that records.
  std::shared_ptr<SegmentPlan> plan_;
  std::vector<Variable, Recycling<Variable>> made_;  // since the last op
  size_t next_op_ = 0;
  mutable std::vector<OpWritten::Part> written_;  // since the last op, if observed
};

}  // namespace meshgrad
#pragma GCC visibility pop
