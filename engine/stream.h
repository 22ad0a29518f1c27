// SPDX-License-Identifier: Apache-2.0
// Stream: an ordered queue of work on a device (a cudaStream_t). On the CPU work runs at once, on the thread
// pool.
//
// Everything that reads or writes a tensor's memory goes through a stream. A dry-run stream skips it, so that
// the same code shows how much memory it needs without doing the work (RuntimeOptions::dry).
#pragma once
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/threads/thread_pool.h>

#pragma GCC visibility push(default)
namespace meshgrad {

class Stream {
 public:
  /// A stream for kernels; `pool` outlives it. Streams of one allocator need different ids. `native` is the
  /// device's handle (a cudaStream_t), not owned.
  Stream(Device device, ThreadPool& pool, int id = 0, void* native = nullptr)
      : device_(device), pool_(&pool), id_(id), native_(native) {}
  /// A host application's stream, for allocators only: it cannot run CPU work.
  explicit Stream(Device device, int id = 0, void* native = nullptr)
      : device_(device), id_(id), native_(native) {}
  Device device() const { return device_; }
  bool on_gpu() const { return device_.kind == DeviceKind::cuda; }
  int id() const { return id_; }
  void* native() const { return native_; }

  /// CPU only: runs tasks 0..n-1 in any order and returns when all are done (ThreadPool::parallel_for).
  void parallel_for(int64_t tasks, TaskRef body) const { pool_->parallel_for(tasks, body); }
  int threads() const { return pool_->threads(); }
  /// CPU only: calls `body` on this thread, unless this is a dry run.
  template <class Body>
  void run(Body&& body) const {
    if (!dry()) body();
  }
  /// True in a dry run: work is skipped.
  bool dry() const { return pool_ != nullptr && pool_->skips_work(); }

  /// Blocks the host until all queued work is done; returns at once on the CPU. Throws DeviceError when that
  /// work failed.
  void synchronize() const;

 private:
  Device device_;
  ThreadPool* pool_ = nullptr;
  int id_;
  void* native_ = nullptr;
};

/// A point in a stream's queue (a cudaEvent_t, created at the first record()). On the CPU, and in a dry run,
/// an event has passed as soon as it is recorded. All calls throw DeviceError.
class Event {
 public:
  Event() = default;
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream);
  /// Whether all work before it is done (cudaEventQuery); true when it was never recorded.
  bool passed() const;
  /// Blocks the host until it has passed (cudaEventSynchronize).
  void await() const;
  /// Makes work queued on `stream` from now on wait on the device (cudaStreamWaitEvent); the host goes on.
  void make_wait(const Stream& stream) const;

 private:
  void* native_ = nullptr;
};

}  // namespace meshgrad
#pragma GCC visibility pop
