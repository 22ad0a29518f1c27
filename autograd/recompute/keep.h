// SPDX-License-Identifier: Apache-2.0
// Selective activation recomputation: which outputs a recomputed segment saves besides its inputs.
#pragma once
#include <meshgrad/autograd/tape.h>

#include <span>
#include <string_view>

namespace meshgrad {

/// A set of ops whose outputs are saved. Outputs that recomputation does not need are not saved in any case.
class Keep {
 public:
  constexpr Keep() = default;
  // Named like the values of an enumeration, since they are used like one:
  static const Keep inputs;  ///< no outputs NOLINT(readability-identifier-naming)
  static const Keep
      products;  ///< of matrix multiplications and fused ops NOLINT(readability-identifier-naming)
  /// The names that outputs_of() accepts: the ops that models are made of.
  static std::span<const std::string_view> names();
  /// Throws InvalidArgument for another name.
  static Keep outputs_of(std::string_view op);

  constexpr Keep operator|(Keep other) const { return Keep(ops_ | other.ops_); }
  bool operator==(const Keep&) const = default;
  /// Whether the op's outputs are saved.
  bool covers(const OpUse& use) const;

 private:
  static constexpr uint32_t kProducts = 1U << 31;  // the lower bits are indices into names()
  constexpr explicit Keep(uint32_t ops) : ops_(ops) {}
  uint32_t ops_ = 0;
};

inline constexpr Keep Keep::inputs{};
inline constexpr Keep Keep::products{Keep::kProducts};

}  // namespace meshgrad
