// SPDX-License-Identifier: Apache-2.0
// Activation recomputation (checkpointing): segments of the forward pass that are recomputed in the backward
// pass instead of saving their activations. Method: Chen, Xu, Zhang, Guestrin, "Training deep nets with
// sublinear memory cost" (2016).
#pragma once
#include <meshgrad/autograd/tape.h>
#include <meshgrad/kernels/mlp.h>

#include <functional>
#include <span>
#include <string_view>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Selective recomputation: a set of ops whose outputs a recomputed segment saves besides its inputs. Outputs
/// that recomputation does not need are not saved in any case.
class SavePolicy {
 public:
  constexpr SavePolicy() = default;
  // Named like the values of an enumeration, since they are used like one.
  // NOLINTBEGIN(readability-identifier-naming)
  static const SavePolicy inputs;   ///< no outputs: everything is recomputed from the inputs
  static const SavePolicy matmuls;  ///< outputs of matrix multiplications and of fused ops
  // NOLINTEND(readability-identifier-naming)
  /// The names that outputs_of() accepts: the ops that models are made of.
  static std::span<const std::string_view> names();
  /// Throws InvalidArgument for another name.
  static SavePolicy outputs_of(std::string_view op);

  constexpr SavePolicy operator|(SavePolicy other) const { return SavePolicy(ops_ | other.ops_); }
  bool operator==(const SavePolicy&) const = default;
  /// Whether the op's outputs are saved.
  bool covers(const OpUse& use) const;

 private:
  static constexpr uint32_t kMatmuls = 1U << 31;  // the lower bits are indices into names()
  constexpr explicit SavePolicy(uint32_t ops) : ops_(ops) {}
  uint32_t ops_ = 0;
};

inline constexpr SavePolicy SavePolicy::inputs{};
inline constexpr SavePolicy SavePolicy::matmuls{SavePolicy::kMatmuls};

/// Inputs or outputs of a segment: at most kMaxMlpInputs, or InvalidArgument is thrown.
using Variables = PerInput<Variable>;

using Segment = std::function<Variables(Tape&, const Variables&)>;

/// Runs `segment` and saves only its inputs, and the outputs that `saves` names. Backward recomputes it, on
/// an inner tape and the same variables, and walks back through it. Ops whose outputs neither a backward
/// function nor another recomputed op reads are skipped. Gradients are accumulated in the same places and
/// order as without recomputation, so they are bit-identical. A fused op that is skipped recomputes its
/// hidden activations inside its backward kernel.
///
/// `segment` calls ops on the tape and variables that it is passed, and must call the same ops every time.
/// What it captures by reference must outlive the tape's entries. It may also read other variables of the
/// outer tape, weights and constants. Inputs and outputs may be absent variables.
///
/// Segments nest. On a tape that evaluates, this is a plain call. Throws InvalidArgument in backward when the
/// second run calls other ops than the first.
Variables checkpoint(Tape& tape, std::string_view name, const Segment& segment, const Variables& inputs,
                     SavePolicy saves = SavePolicy::inputs);

}  // namespace meshgrad
#pragma GCC visibility pop
