// SPDX-License-Identifier: Apache-2.0
// Scalars for TensorBoard, which W&B and others read too.
#pragma once
#include <meshgrad/train/learn/run/append_file.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace meshgrad {

/// Appends events to a new file `events.out.tfevents.SECONDS.HOST.PID` in `directory` (made when missing):
/// TFRecords of tensorflow.Event messages, fields as in tensorboard/compat/proto/event.proto and
/// summary.proto. A resumed run opens another file; TensorBoard lets the later one win where steps repeat.
/// DataError when a file cannot be written.
class TensorboardWriter {
 public:
  /// Seconds since 1970; replaced in tests.
  using Clock = std::function<double()>;

  explicit TensorboardWriter(const std::filesystem::path& directory, Clock clock = wall_seconds);

  /// One event with these (tag, value) pairs, on disk when the call returns.
  void scalars(std::int64_t step, std::span<const std::pair<std::string, double>> values);

  static double wall_seconds();

 private:
  Clock clock_;
  AppendFile file_;
};

}  // namespace meshgrad
