// SPDX-License-Identifier: Apache-2.0
// safetensors files: named tensors and string metadata. Format of the huggingface/safetensors project: 8
// bytes header length (little endian), a JSON header, then the packed row-major little-endian values.
#pragma once
#include <meshgrad/engine/dtype.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

class MappedFile;

enum class SafetensorsDtype { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

/// The name in the file, for example "F32" or "BOOL".
std::string_view dtype_name(SafetensorsDtype dtype);
/// Bytes of one value.
std::size_t dtype_size(SafetensorsDtype dtype);

/// The file's name for an engine dtype.
SafetensorsDtype safetensors_dtype(DType dtype);

/// One tensor; `bytes` is borrowed (from the file that was parsed, or from the caller who writes) and has
/// product(shape) * dtype_size(dtype) bytes. An empty shape is a scalar. In a parsed file `bytes` may lie at
/// any address: copy values out with to_f64, to_f32, to_i64 or memcpy, do not cast the pointer.
struct SafetensorsTensor {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;

  std::size_t elements() const { return bytes.size() / dtype_size(dtype); }
};

/// The content of a file. Borrows the bytes it was parsed from.
struct SafetensorsView {
  std::string file;                        ///< name used in errors
  std::vector<SafetensorsTensor> tensors;  ///< in the order of their bytes in the file
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::size_t> index;  ///< name -> position in `tensors`

  bool contains(const std::string& name) const { return index.contains(name); }
  /// The tensor, or DataError that names the file and the nearest name in it.
  const SafetensorsTensor& at(const std::string& name) const;
  /// The tensor if it has this dtype and shape, or DataError that says what it has.
  const SafetensorsTensor& at(const std::string& name, SafetensorsDtype dtype,
                              std::span<const std::int64_t> shape) const;
  /// The metadata value, or DataError that names the file and the key.
  const std::string& metadata_at(const std::string& key) const;
};

/// Parses a whole file in memory. Defined for arbitrary bytes: throws DataError (naming `file`, the tensor
/// and the fix) unless the header is at most 100 MB of JSON of the right form, every key occurs once, every
/// dtype is known, shapes agree with the offsets, and the tensors cover the data without overlap, hole or
/// trailing byte. Does not copy tensor data; `bytes` must outlive the view.
SafetensorsView parse_safetensors(std::span<const std::byte> bytes, std::string_view file = "safetensors");

/// A memory-mapped file and its view. Copies share the mapping. The file must not be shortened while mapped
/// (files replaced by rename, as write_safetensors does, are safe).
class SafetensorsFile {
 public:
  /// Throws DataError when the file cannot be read or parse_safetensors rejects it.
  explicit SafetensorsFile(const std::filesystem::path& path);
  const SafetensorsView& view() const { return view_; }
  const SafetensorsTensor& at(const std::string& name) const { return view_.at(name); }

 private:
  std::shared_ptr<const MappedFile> mapping_;
  SafetensorsView view_;
};

/// Writes a file through AtomicFile, tensor by tensor, without a copy of the data. The same content gives the
/// same bytes whatever the order of `tensors`: they are sorted by value size (largest first, so that all are
/// aligned) and then by name, and the header is padded with spaces to a multiple of 8. InvalidArgument on a
/// duplicate, an empty or the reserved name `__metadata__`, text that is not UTF-8, or bytes that do not fit
/// the shape; DataError when the file cannot be written.
void write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// What a file begins with whose values, those of `tensors` in this order, are written after it as they come:
/// `bytes` are not looked at, and names and shapes are not checked.
std::string safetensors_header(std::span<const SafetensorsTensor> tensors,
                               const std::map<std::string, std::string>& metadata);

/// Values of any dtype as doubles: exact, but for I64 beyond 2^53, which rounds.
std::vector<double> to_f64(const SafetensorsTensor& tensor);
/// Values of any dtype as floats, rounded to nearest.
std::vector<float> to_f32(const SafetensorsTensor& tensor);
/// Values of an integer or BOOL tensor; DataError for floating dtypes.
std::vector<std::int64_t> to_i64(const SafetensorsTensor& tensor);

}  // namespace meshgrad
