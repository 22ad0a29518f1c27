// SPDX-License-Identifier: Apache-2.0
// Numbers of VTK files, from bytes or from text.
#pragma once
#include <meshgrad/train/convert/sources/vtk_grid.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// A type of numbers in a file: a kind of NumPy's ('f', 'i', 'u') and its bytes.
struct VtkType {
  char kind = 'f';
  size_t bytes = 4;
};

/// The type of an XML file ("Float32", "UInt8", ...) or a legacy one ("float", "vtktypeint64", ...); nothing
/// for text, bits and what is no type.
std::optional<VtkType> vtk_type(std::string_view name);

/// The numbers in `bytes`, a multiple of the type's: f32, f64, or int64 for any integer (UInt64 wraps).
using VtkValues = decltype(VtkArray::values);
VtkValues vtk_values(std::span<const std::byte> bytes, VtkType type, bool big_endian);

/// A time in a file's text, in any locale. Throws DataError for what is no finite number.
double time_in_text(std::string_view text, const std::string& file);

/// Reads numbers that white space separates.
class VtkText {
 public:
  explicit VtkText(std::string_view text) : text_(text) {}
  /// The next word; empty at the end.
  std::string_view word();
  /// The next `count` numbers as vtk_values gives them; nothing when there are fewer, or one is none.
  std::optional<VtkValues> values(size_t count, VtkType type);
  /// Why values() of these gives nothing, or leaves a word: "12 at number 5", "x at number 0", or "4", as
  /// many as there are.
  std::string fault(size_t count, VtkType type) const;
  std::string_view rest() const { return text_; }
  /// Skips the next `bytes` bytes.
  void skip(size_t bytes) { text_.remove_prefix(bytes); }
  /// The rest of the line, without its end, which is skipped, too.
  std::string_view line();

 private:
  std::string_view text_;
};

}  // namespace meshgrad
