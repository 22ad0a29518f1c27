// SPDX-License-Identifier: Apache-2.0
// Tape: reverse-mode automatic differentiation. Records the ops of a forward pass in order, with what each
// saved for backward; backward() walks them once in reverse.
//
// Gradients cannot be differentiated again: backward functions call kernels, not ops.
#pragma once
#include <meshgrad/autograd/variable.h>
#include <meshgrad/engine/runtime.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Where a backward function writes the gradient of an input. Undefined tensor: not needed.
struct GradientTarget {
  Tensor tensor;
  bool accumulate = false;  ///< add to the tensor's contents; else overwrite them
};

/// What an op has just written; passed to observers.
struct OpWritten {
  struct Part {
    std::string name;  ///< "edges"; in the backward pass "gradient of edges"
    Tensor tensor;     ///< [rows, width]
    Rows rows;
  };
  std::string op;
  std::string scope;  ///< the MemoryScopes in which the op's forward ran: "processor.3"
  bool backward = false;
  std::vector<Part> parts;  ///< outputs of floating dtypes; not gradients of weights, nor what the op saves
};

struct NodeTermsAhead;  // kernels/mlp.h
struct SegmentPlan;
class Offload;
class OffloadStore;

/// What recomputation and offload need to know about an op. Of variables whose values its backward does not
/// read, the op should save only slots.
struct OpUse {
  std::string_view op;
  std::span<const Variable> inputs;
  bool backward_reads_inputs = false;   ///< backward reads the inputs' values
  bool backward_reads_outputs = false;  ///< backward reads the values of the op's own outputs
  bool matmul = false;                  ///< a matrix multiplication, or a fused op of several
};

/// How often ops ran, on a tape and its inner tapes.
struct OpCounts {
  int64_t forwards = 0;    ///< ops of the forward pass
  int64_t recomputed = 0;  ///< ops run again for backward
  int64_t segments = 0;    ///< segments recomputed
};

/// Not thread-safe. The Runtime outlives it.
class Tape {
 public:
  using Observer = std::function<void(const OpWritten&)>;
  enum class Mode {
    record,
    train,    ///< records, too; what is for training alone, as dropout, is done on such a tape only
    evaluate  ///< ops save nothing, and backward() throws
  };
  explicit Tape(Runtime& runtime, Mode mode = Mode::record);
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Runtime& runtime() const { return runtime_; }
  const Stream& stream() const { return runtime_.stream(); }
  /// True when ops must save what their backward reads.
  bool recording() const { return kind_ == Kind::record; }
  bool evaluating() const { return kind_ == Kind::evaluate; }
  /// Whether this tape, or the one that an inner tape belongs to, was made with Mode::train.
  bool training() const { return shared_->training; }
  /// Number of recorded ops.
  size_t size() const { return entries_.size(); }
  const OpCounts& counts() const { return shared_->counts; }

  /// Calls `observer` after each op of this recording tape, in the forward and backward pass. It may
  /// synchronize.
  void observe(Observer observer) { observer_ = std::move(observer); }

  /// Calls `ready(first)` in backward() as soon as nothing more adds to the gradients of weights from element
  /// `first` of their arena on, for each `first` that begin_weights() told. Call it before the first op.
  void on_weight_gradients(std::function<void(int64_t first)> ready) { weights_ready_ = std::move(ready); }
  /// Ops recorded from here on may use any weights; those before it used none from element `first` of the
  /// arena on, unless an earlier call had this `first` or a larger one: then it says nothing new.
  void begin_weights(int64_t first);

  /// Compares recomputed values with those of the first run, bit for bit; throws InternalError naming segment
  /// and op when they differ. Synchronizes the device after each op.
  void check_recomputation() { shared_->check = true; }

  /// Calls `check` before each op and each step of backward(), also within segments. It may throw, which ends
  /// the pass; the tape is then of no further use.
  void check_each_op(std::function<void()> check) { shared_->check_op = std::move(check); }

  /// Offloads to `store` what segments of this recording tape save: from the end of the next segment's first
  /// run until shortly before their own second run. Only values made by ops that nothing but segments needs
  /// are offloaded: not a tensor with other owners, nor one that the backward of an op outside of segments
  /// reads. After this call, an input of a segment must be read by segments only. `store` outlives the tape.
  /// Call it before the first segment.
  void offload(OffloadStore& store);

  /// A value from outside that needs no gradient.
  Variable input(Tensor value, Rows rows) const { return Variable(std::move(value), false, rows); }

  /// Told by forward(): whether a further stage runs on this tape after the present one.
  void set_stage_follows(bool follows) { stage_follows_ = follows; }
  bool stage_follows() const { return stage_follows_; }

  // For ops, to be called in this order:
  /// An op's output, [rows, width] or `shape`: uninitialised, with the activations' tag. Without memory when
  /// an inner tape knows that the value is not needed.
  Variable output(Rows rows, int64_t width, DType dtype, bool needs_gradient, std::string_view name) {
    return output(Shape{rows.capacity, width}, rows, dtype, needs_gradient, name);
  }
  Variable output(const Shape& shape, Rows rows, DType dtype, bool needs_gradient, std::string_view name);
  /// False when recomputation does not need this op: the op must then not call its kernels.
  bool runs() const;
  /// True when an observer or a check of recomputation reads what an op wrote as soon as it is recorded.
  bool reads_outputs() const { return observer_ != nullptr || shared_->check; }
  /// The tag for what an op saves for backward.
  Tag tag() const { return tag_; }
  /// Records the op. `backward(Tape&)` holds what the op saved; it is called at most once and destroyed right
  /// after.
  void record(const OpUse& use, std::function<void(Tape&)> backward);
  /// After record(): leaves what the op made of its output `value` for the next op. That one takes it,
  /// or null, before its own record(), which drops what was not taken.
  void leave_for_next(const Variable& value, std::shared_ptr<const NodeTermsAhead> terms);
  std::shared_ptr<const NodeTermsAhead> take_from_last(const Variable& value);

  /// Walks back from `sum`, whose gradient is `seed`: f64 [1] in device memory (loss scale / weight of the
  /// window). Gradients of leaf variables and weights are accumulated. Each entry is destroyed once it is
  /// done. Throws InvalidArgument for a tape that evaluates or a seed of another shape or dtype.
  void backward(const Variable& sum, const Tensor& seed);
  /// The same from several values, each with its gradient, of its shape and dtype: ops may write to the
  /// gradients' memory. Throws InvalidArgument likewise, and for another number of gradients.
  void backward(std::span<const Variable> values, std::vector<Tensor> gradients);

  // For the backward functions of ops:
  /// Takes the gradient of an op's output out of its slot; undefined when the output did not contribute to
  /// the loss.
  Tensor take_gradient(const GradientSlot& slot) const;
  /// Where to write the gradient of an input; allocated by the first call.
  GradientTarget gradient_for(const GradientSlot& slot) const;
  /// Adds a finished gradient. An empty slot takes the tensor itself, which the caller must then not modify.
  void add_gradient(const GradientSlot& slot, const Tensor& gradient) const;
  /// Scratch memory of an op, with the workspace tag.
  Tensor scratch(const Shape& shape, DType dtype, std::string_view name) const;

 private:
  friend class SegmentRun;
  enum class Kind : uint8_t {
    record,
    evaluate,
    first_run  // of a segment: gradients will be needed, but ops save nothing
  };
  struct Shared {  // by a root tape and its inner tapes
    OpCounts counts;
    uint64_t ids = 0;
    bool check = false;
    bool training = false;
    std::function<void()> check_op;
    int64_t weights_begun = -1;  // the largest `first` of begin_weights()
    std::shared_ptr<Offload> offload;
  };
  /// An inner tape.
  Tape(const Tape& outer, Kind kind, std::shared_ptr<SegmentPlan> plan);
  struct Entry {
    std::string op;
    std::function<void(Tape&)> backward;
    std::string scope;  // when there is an observer, or spans are wanted
    bool segment = false;
  };
  void push(std::string_view op, std::function<void(Tape&)> backward, bool segment = false);
  void note_op(const OpUse& use);
  void note_gradient(const GradientSlot& slot) const;
  void notify_observer(std::string_view op, std::string scope, bool backward);
  bool recomputes() const { return kind_ == Kind::record && plan_ != nullptr; }
  Offload* root_offload() const { return plan_ == nullptr && recording() ? shared_->offload.get() : nullptr; }
  void note_readers(const OpUse& use) const;
  void add_to_plan(const OpUse& use);
  void follow_plan(const OpUse& use);
  void walk();

  Runtime& runtime_;
  Kind kind_;
  Tag tag_ = Tag::activations;
  std::vector<Entry> entries_;
  Observer observer_;
  std::function<void(int64_t)> weights_ready_;  // of a root tape
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<SegmentPlan> plan_;  // of inner tapes: written in the first run, followed in the second
  std::vector<Variable> outputs_;      // since the last op
  bool stage_follows_ = false;
  GradientSlot left_of_;
  std::shared_ptr<const NodeTermsAhead> left_;
  size_t next_op_ = 0;
  int64_t op_begin_ = 0;                          // of the op that runs, where spans are recorded
  mutable std::vector<OpWritten::Part> written_;  // since the last op, when there is an observer
};

}  // namespace meshgrad
#pragma GCC visibility pop
