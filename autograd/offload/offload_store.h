// SPDX-License-Identifier: Apache-2.0
// OffloadStore: memory outside the device for offloaded values: pinned host memory, or a file.
#pragma once
#include <meshgrad/engine/tensor.h>

#include <filesystem>
#include <memory>
#include <vector>

namespace meshgrad {

/// Copies run in the background. Call order for a value: write, finish_write, read, finish_read; cancel() at
/// any point. Call from one thread. "On `stream`" means ordered with the work queued there. A copy that
/// failed throws DataError or DeviceError, at the latest in finish_write() or finish_read().
class OffloadStore {
 public:
  virtual ~OffloadStore() = default;
  OffloadStore(const OffloadStore&) = delete;
  OffloadStore& operator=(const OffloadStore&) = delete;

  /// Starts writing a value that is computed on `stream`. Its memory must not change until finish_write() or
  /// cancel(). Returns the value's number.
  int64_t write(const Tensor& from, const Stream& stream);
  /// The write is done on `stream`: work queued from now on may reuse the value's memory.
  void finish_write(int64_t number, const Stream& stream);
  /// Starts reading the value into `to`, which work queued on `stream` before may still use.
  void read(int64_t number, const Tensor& to, const Stream& stream);
  /// The read is done on `stream`: work queued from now on may use `to`. Frees the number.
  void finish_read(int64_t number, const Stream& stream);
  /// Waits for any copy of the value and discards it. Frees the number.
  void cancel(int64_t number, const Stream& stream) noexcept;

  /// Bytes of values between write() and finish_read() or cancel(): now, and the most so far.
  int64_t bytes() const { return bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  /// Sum of all writes so far.
  int64_t written_bytes() const { return written_bytes_; }

 protected:
  OffloadStore() = default;
  bool in_use(size_t number) const { return number < slot_bytes_.size() && slot_bytes_[number] >= 0; }

 private:
  virtual void start_write(size_t number, const Tensor& from, const Stream& stream) = 0;
  virtual void start_read(size_t number, const Tensor& to, const Stream& stream) = 0;
  /// The last copy started for this number is done on `stream`.
  virtual void finish(size_t number, const Stream& stream) = 0;
  void free_number(int64_t number);

  std::vector<int64_t> slot_bytes_;  // by number; -1: free
  int64_t bytes_ = 0, peak_bytes_ = 0, written_bytes_ = 0;
};

/// Counts bytes and copies nothing: for dry runs.
std::unique_ptr<OffloadStore> make_counting_store();
/// Pinned host memory for values of a GPU. Copies run on a stream of their own, concurrently with kernels.
/// Memory is cached for the next step. Throws DeviceError.
std::unique_ptr<OffloadStore> make_host_store(Device device);
/// An unnamed temporary file in `folder`, for values in host memory. A thread of its own writes and reads it,
/// bypassing the page cache where it can. `bytes` are reserved at once if the file system supports that.
/// Throws ConfigError naming `key` when the file cannot be created, or not of that size.
std::unique_ptr<OffloadStore> make_file_store(const std::filesystem::path& folder, int64_t bytes,
                                              std::string_view key);

}  // namespace meshgrad
