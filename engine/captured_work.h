// SPDX-License-Identifier: Apache-2.0
// CapturedWork: repeated GPU work as a CUDA graph. The first run() launches kernels one by one, which
// allocates the memory that the work needs; the second captures a graph and launches it; later ones launch
// the graph. It has a Runtime of its own, with a stream and an allocator, so that addresses in the graph stay
// valid.
#pragma once
#include <meshgrad/engine/runtime.h>

#include <optional>
#include <string>

namespace meshgrad {

class CapturedWork {
 public:
  /// `work` queues kernels on the stream of the Runtime that it is passed and allocates from that Runtime
  /// only. Other memory that it reads or writes must keep its address. `runtime` is on a GPU and outlives
  /// this.
  CapturedWork(Runtime& runtime, std::string name, std::function<void(Runtime&)> work);
  ~CapturedWork();
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  /// Queues the work once, ordered with `runtime`'s stream. When capturing fails, this and all later runs
  /// launch kernels one by one.
  void run();
  bool recorded() const { return graph_ != nullptr; }
  /// Why capturing failed; empty if it did not.
  const std::string& refusal() const { return refusal_; }
  /// Device memory that it holds, allocated from `runtime`.
  int64_t bytes() const { return bytes_; }

 private:
  void queue();
  void record();

  Runtime& runtime_;
  std::string name_;
  std::function<void(Runtime&)> work_;
  int64_t bytes_ = 0;
  int64_t frees_ = 0;  // of memory back to runtime_
  int runs_ = 0;
  std::string refusal_;
  void* graph_ = nullptr;
  Event before_, after_;
  std::optional<Runtime> own_;
};

}  // namespace meshgrad
