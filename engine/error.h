// SPDX-License-Identifier: Apache-2.0
// Errors: seven kinds, each its own type, so that a caller catches only what it can handle.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

enum class ErrorKind { invalid_argument, config, data, out_of_memory, device, ranks, internal };

/// Base of all errors thrown by meshgrad. `what()` reads `[where] needed X, got Y; fix: Z`.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// A C++ caller passed something that the function's contract excludes.
struct InvalidArgument : Error {
  explicit InvalidArgument(const std::string& text) : Error(ErrorKind::invalid_argument, text) {}
};
/// A configuration key, command-line option or environment variable has a wrong value.
struct ConfigError : Error {
  explicit ConfigError(const std::string& text) : Error(ErrorKind::config, text) {}
};
/// A file is damaged, incomplete or inconsistent, or could not be read or written.
struct DataError : Error {
  explicit DataError(const std::string& text) : Error(ErrorKind::data, text) {}
};
/// An allocator has no memory left; the text holds its report and what to change, in order.
struct OutOfMemory : Error {
  explicit OutOfMemory(const std::string& text) : Error(ErrorKind::out_of_memory, text) {}
};
/// A device is absent, or refused a call, or work on it failed.
struct DeviceError : Error {
  explicit DeviceError(const std::string& text) : Error(ErrorKind::device, text) {}
};
/// Another rank of the job ended, does something else, or does not answer.
struct RankError : Error {
  explicit RankError(const std::string& text) : Error(ErrorKind::ranks, text) {}
};
/// The system starts no more threads. `needed` and `got` let a caller word the error for its own users.
struct ThreadsUnavailable : InvalidArgument {
  ThreadsUnavailable(std::string what_needed, std::string what_got);
  std::string needed, got;
};
/// A bug of meshgrad itself.
struct InternalError : Error {
  explicit InternalError(const std::string& text) : Error(ErrorKind::internal, text) {}
};

/// Functions that make errors: `throw data_error("train.tfrecord: record 3", "a CRC of 0x1234", "0x9876",
/// "download it again")`. `where` names the op, the file and record, or the config key; `fix` says what the
/// user can do (left out when empty).
InvalidArgument invalid_argument(std::string_view where, std::string_view needed, std::string_view got,
                                 std::string_view fix = {});
ConfigError config_error(std::string_view where, std::string_view needed, std::string_view got,
                         std::string_view fix);
DataError data_error(std::string_view where, std::string_view needed, std::string_view got,
                     std::string_view fix);
DeviceError device_error(std::string_view where, std::string_view needed, std::string_view got,
                         std::string_view fix);
RankError rank_error(std::string_view where, std::string_view needed, std::string_view got,
                     std::string_view fix);

/// The text names the source line of the caller.
InternalError internal_error(std::string_view what, const char* file = __builtin_FILE(),
                             int line = __builtin_LINE());

/// Throws `internal_error(what)` unless `condition` holds.
inline void check_internal(bool condition, std::string_view what, const char* file = __builtin_FILE(),
                           int line = __builtin_LINE()) {
  if (!condition) throw internal_error(what, file, line);
}

/// The candidate with the smallest edit distance to `word`, for "did you mean"; empty when none is within a
/// third of the word's length (at least 1).
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace meshgrad
#pragma GCC visibility pop
