// SPDX-License-Identifier: Apache-2.0
// Where values wait while the device needs its memory for others: a pinned piece of the host's memory, or a
// file.
#pragma once
#include <meshgrad/engine/tensor.h>

#include <filesystem>
#include <memory>
#include <vector>

namespace meshgrad {

/// Values are written and read in the background; they keep their place from write() to arrive() or drop().
/// All calls come from one thread, and what they say of a stream is in the order of its queue. Throws
/// DataError or DeviceError for a copy that failed, at the latest from settle() and arrive().
class OffloadStore {
 public:
  virtual ~OffloadStore() = default;
  OffloadStore(const OffloadStore&) = delete;
  OffloadStore& operator=(const OffloadStore&) = delete;

  /// Begins to write a value that `stream` computes. It stays as it is until settle() or drop(). Returns its
  /// number.
  int64_t write(const Tensor& from, const Stream& stream);
  /// From now on its memory may be used for something else.
  void settle(int64_t number, const Stream& stream);
  /// Begins to read the value into memory that `stream` may still use.
  void read(int64_t number, const Tensor& to, const Stream& stream);
  /// From now on it can be used; the number is given back.
  void arrive(int64_t number, const Stream& stream);
  /// Ends whatever is under way; the number is given back.
  void drop(int64_t number, const Stream& stream) noexcept;

  /// Of values that wait, or are on their way: now, and at most.
  int64_t bytes() const { return bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  /// All that was written so far.
  int64_t written_bytes() const { return written_bytes_; }

 protected:
  OffloadStore() = default;
  bool is_taken(size_t number) const { return number < taken_.size() && taken_[number] >= 0; }

 private:
  virtual void start_write(size_t number, const Tensor& from, const Stream& stream) = 0;
  virtual void start_read(size_t number, const Tensor& to, const Stream& stream) = 0;
  /// What was started last under this number is done, as far as `stream` is concerned.
  virtual void finish(size_t number, const Stream& stream) = 0;
  void give_back(int64_t number);

  std::vector<int64_t> taken_;  // bytes, by number; -1: free
  int64_t bytes_ = 0, peak_bytes_ = 0, written_bytes_ = 0;
};

/// Counts what would be written: for dry runtimes, whose tensors hold nothing.
std::unique_ptr<OffloadStore> make_counting_store();
/// In the host's memory, pinned, for values of a GPU; copied beside its kernels, on a stream of its own.
/// Memory is kept for the next step. Throws DeviceError.
std::unique_ptr<OffloadStore> make_host_store(Device device);
/// In a file without a name in `folder`, for values in the host's memory; written and read by a thread of its
/// own, and kept out of the page cache. `bytes` are set apart at once where the file system can. Throws
/// ConfigError that names `key` when there cannot be such a file, or not of that size.
std::unique_ptr<OffloadStore> make_file_store(const std::filesystem::path& folder, int64_t bytes,
                                              std::string_view key);

}  // namespace meshgrad
