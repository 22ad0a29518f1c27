// SPDX-License-Identifier: Apache-2.0
// What a segment that is computed again keeps beside its inputs.
#pragma once
#include <meshgrad/autograd/tape.h>

#include <span>

#pragma GCC visibility push(default)
namespace meshgrad {

/// The outputs of some ops. Those that nobody would read again are not kept.
class Keep {
 public:
  constexpr Keep() = default;
  static const Keep inputs;    ///< nothing NOLINT(readability-identifier-naming)
  static const Keep products;  ///< of products, fused ops too NOLINT(readability-identifier-naming)
  // (Named like the values of an enumeration, as which they are used.)
  /// The names that outputs_of() takes: the ops of ops.h that a model is made of.
  static std::span<const std::string_view> names();
  /// Throws InvalidArgument for another name.
  static Keep outputs_of(std::string_view op);

  constexpr Keep operator|(Keep other) const { return Keep(ops_ | other.ops_); }
  bool operator==(const Keep&) const = default;
  bool covers(const OpUse& use) const;

 private:
  static constexpr uint32_t kProducts = 1U << 31;  // the bits below stand for names
  constexpr explicit Keep(uint32_t ops) : ops_(ops) {}
  uint32_t ops_ = 0;
};

inline constexpr Keep Keep::inputs{};
inline constexpr Keep Keep::products{Keep::kProducts};

}  // namespace meshgrad
#pragma GCC visibility pop
