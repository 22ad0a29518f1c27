// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/program/cli.h>
#include <meshgrad/train/tools/program/failure.h>

#include <filesystem>
#include <new>

namespace meshgrad::cli {
namespace {

int exit_code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
    case ErrorKind::config:
      return kExitUsage;
    case ErrorKind::device:
      return kExitNoDevice;
    case ErrorKind::data:
    case ErrorKind::out_of_memory:
    case ErrorKind::ranks:
    case ErrorKind::internal:
      return kExitFailed;
  }
  return kExitFailed;
}

}  // namespace

Failure current_failure() {
  try {
    throw;
  } catch (const Error& error) {
    return {error.what(), exit_code_of(error.kind())};
  } catch (const std::bad_alloc&) {
    return {"out of memory; fix: close other programs or use smaller settings", kExitFailed};
  } catch (const std::filesystem::filesystem_error& error) {
    return {data_error(error.path1().string(), "a path that can be used", error.code().message(),
                       "check the path and its permissions, and the disk")
                .what(),
            kExitFailed};
  } catch (const std::exception& error) {
    return {std::string(error.what()) + "; this is a bug in meshgrad, please report it", kExitFailed};
  }
}

}  // namespace meshgrad::cli
