// SPDX-License-Identifier: Apache-2.0
// An ordered queue of work on a device. On the CPU work runs at once, on the thread pool.
//
// All that reads or writes a tensor's memory is work on a stream: a dry stream leaves it out, so that the
// same code shows what memory it takes without any (RuntimeOptions::dry).
#pragma once
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/threads/thread_pool.h>

#pragma GCC visibility push(default)
namespace meshgrad {

class Stream {
 public:
  /// A stream for kernels. Streams of one allocator differ in their id.
  Stream(Device device, ThreadPool& pool, int id = 0, void* native = nullptr)
      : device_(device), pool_(&pool), id_(id), native_(native) {}
  /// A stream of somebody else's: for allocators only. `native` is the device's own handle (a cudaStream_t).
  explicit Stream(Device device, int id = 0, void* native = nullptr)
      : device_(device), id_(id), native_(native) {}
  Device device() const { return device_; }
  bool on_gpu() const { return device_.kind == DeviceKind::cuda; }
  int id() const { return id_; }
  void* native() const { return native_; }

  /// CPU only: runs tasks 0..n-1 in any order and returns when all are done.
  void parallel_for(int64_t tasks, TaskRef body) const { pool_->parallel_for(tasks, body); }
  int threads() const { return pool_->threads(); }
  /// CPU only: runs `body` here and now.
  template <class Body>
  void run(Body&& body) const {
    if (!dry()) body();
  }
  /// Whether work is left out.
  bool dry() const { return pool_ != nullptr && pool_->leaves_out(); }

  /// Returns when all work queued so far is done; at once on the CPU. Throws DeviceError when it failed.
  void synchronize() const;

 private:
  Device device_;
  ThreadPool* pool_ = nullptr;
  int id_;
  void* native_ = nullptr;
};

/// A point in a stream's queue. On the CPU every event has passed as soon as it is recorded.
class Event {
 public:
  Event() = default;
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream);
  bool passed() const;
  /// Returns when it has passed.
  void await() const;
  /// Makes what is queued on `stream` from now on wait, without stopping the host.
  void hold_back(const Stream& stream) const;
  int stream_id() const { return stream_id_; }

 private:
  int stream_id_ = -1;
  void* native_ = nullptr;
};

}  // namespace meshgrad
#pragma GCC visibility pop
