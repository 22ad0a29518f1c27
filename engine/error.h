// SPDX-License-Identifier: Apache-2.0
// Errors: six kinds, each thrown as its own type so that a caller can catch what it can mend.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

enum class ErrorKind { invalid_argument, config, data, out_of_memory, device, internal };

/// Base of all errors thrown by meshgrad. `what()` reads `[where] needed X, got Y; fix: Z`.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

struct InvalidArgument : Error {
  explicit InvalidArgument(const std::string& text) : Error(ErrorKind::invalid_argument, text) {}
};
struct ConfigError : Error {
  explicit ConfigError(const std::string& text) : Error(ErrorKind::config, text) {}
};
struct DataError : Error {
  explicit DataError(const std::string& text) : Error(ErrorKind::data, text) {}
};
struct OutOfMemory : Error {
  explicit OutOfMemory(const std::string& text) : Error(ErrorKind::out_of_memory, text) {}
};
struct DeviceError : Error {
  explicit DeviceError(const std::string& text) : Error(ErrorKind::device, text) {}
};
/// Threads that cannot be had as they were asked for: so many (RuntimeOptions::threads), or each on a CPU of
/// its own (RuntimeOptions::pin).
struct ThreadsRefused : InvalidArgument {
  enum class Asked : uint8_t { count, pin };
  ThreadsRefused(Asked what, std::string what_needed, std::string what_got);
  Asked asked;
  std::string needed, got;
};
struct InternalError : Error {
  explicit InternalError(const std::string& text) : Error(ErrorKind::internal, text) {}
};

/// Makers: `throw data_error("train.tfrecord: record 3", "a CRC of 0x1234", "0x9876", "download it again")`.
/// `where` names the op, the file and record, or the config key; `fix` says what the user can do.
InvalidArgument invalid_argument(std::string_view where, std::string_view needed, std::string_view got,
                                 std::string_view fix = {});
ConfigError config_error(std::string_view where, std::string_view needed, std::string_view got,
                         std::string_view fix);
DataError data_error(std::string_view where, std::string_view needed, std::string_view got,
                     std::string_view fix);
DeviceError device_error(std::string_view where, std::string_view needed, std::string_view got,
                         std::string_view fix);

/// A bug of meshgrad itself; names the source line.
InternalError internal_error(std::string_view what, const char* file = __builtin_FILE(),
                             int line = __builtin_LINE());

/// Throws `internal_error(what)` unless `condition` holds.
inline void check_internal(bool condition, std::string_view what, const char* file = __builtin_FILE(),
                           int line = __builtin_LINE()) {
  if (!condition) throw internal_error(what, file, line);
}

/// The candidate with the smallest edit distance to `word`, for "did you mean"; empty when nothing is near
/// (distance above a third of the word's length, and at least 1).
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace meshgrad
#pragma GCC visibility pop
