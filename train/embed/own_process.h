// SPDX-License-Identifier: Apache-2.0
// What a child of fork() may not use: objects on a GPU or with other ranks stay the parent's.
#pragma once
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/engine/runtime.h>

#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string_view>

namespace meshgrad {

/// The process that made something on a runtime, with these ranks.
class OwnProcess {
 public:
  OwnProcess(const Runtime& runtime, const Ranks& ranks)
      : bound_(runtime.stream().on_gpu() || !ranks.single()) {}
  /// Whether this is a copy in a child made by fork(), of what only its parent may use.
  bool left_behind() const { return bound_ && process_ != getpid(); }
  /// Throws InvalidArgument, which names `what`, where it is.
  void check(std::string_view what) const {
    if (!left_behind()) return;
    throw invalid_argument(what, "one of this process, on a GPU or with a communicator",
                           fmt::format("a copy of what process {} made before fork()", process_),
                           "make a runtime in this process");
  }

 private:
  bool bound_;
  pid_t process_ = getpid();
};

/// Deletes what has a member `process`, unless it is left behind: the device and the other ranks are the
/// parent's.
template <class State>
void delete_in_own_process(State* state) {
  std::unique_ptr<State> held(state);
  if (state->process.left_behind()) static_cast<void>(held.release());
}

}  // namespace meshgrad
