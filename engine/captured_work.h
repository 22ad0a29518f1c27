// SPDX-License-Identifier: Apache-2.0
// CapturedWork: work on a GPU that is the same every time, recorded once and then started as a whole. The
// first run() queues it launch by launch, which shows how much memory it needs; the second records it; all
// from the second on replay the recording. It has memory and a stream of its own, so that addresses stay.
#pragma once
#include <meshgrad/engine/runtime.h>

#include <optional>

namespace meshgrad {

class CapturedWork {
 public:
  /// `work` queues on the stream of the runtime it is given, and takes memory from that alone. What it reads
  /// and writes elsewhere must keep its place. `runtime` is on a GPU and outlives this.
  CapturedWork(Runtime& runtime, std::string name, std::function<void(Runtime&)> work);
  ~CapturedWork();
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  /// Queues the work once, in the order of the runtime's stream. Where it cannot be recorded it is queued
  /// launch by launch for good.
  void run();
  bool recorded() const { return graph_ != nullptr; }
  /// Why it cannot be recorded; empty as long as nothing is known against it.
  const std::string& refusal() const { return refusal_; }
  /// Memory that is kept for it.
  int64_t bytes() const { return bytes_; }

 private:
  void queue();
  void record();

  Runtime& runtime_;
  std::string name_;
  std::function<void(Runtime&)> work_;
  int64_t bytes_ = 0;
  int64_t returns_ = 0;
  int runs_ = 0;
  std::string refusal_;
  void* graph_ = nullptr;
  Event before_, after_;
  std::optional<Runtime> own_;
};

}  // namespace meshgrad
