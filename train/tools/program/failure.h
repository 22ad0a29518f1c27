// SPDX-License-Identifier: Apache-2.0
// What an exception that ends a command means for the user.
#pragma once
#include <string>

namespace meshgrad::cli {

struct Failure {
  std::string text;
  int exit_code = 1;
};

/// Of the exception that is being handled: call it in a catch block.
Failure current_failure();

}  // namespace meshgrad::cli
