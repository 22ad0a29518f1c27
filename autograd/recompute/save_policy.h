// SPDX-License-Identifier: Apache-2.0
// Selective activation recomputation: which outputs a recomputed segment saves besides its inputs.
#pragma once
#include <meshgrad/autograd/tape.h>

#include <span>
#include <string_view>

#pragma GCC visibility push(default)
namespace meshgrad {

/// A set of ops whose outputs are saved. Outputs that recomputation does not need are not saved in any case.
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

}  // namespace meshgrad
#pragma GCC visibility pop
