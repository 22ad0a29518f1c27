// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload_store.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/threads/blocked_signals.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace meshgrad {
namespace {

constexpr int64_t kPage = 4096;  // slots start at multiples, so that no page holds two values

class File {
 public:
  /// The file has no name, so nothing remains of it however the process ends.
  File(const std::filesystem::path& folder, std::string_view key) : name_(folder.string()) {
    descriptor_ = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (descriptor_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
      std::string path = (folder / "offload.XXXXXX").string();
      descriptor_ = mkostemp(path.data(), O_CLOEXEC);
      if (descriptor_ >= 0) unlink(path.c_str());
    }
    if (descriptor_ >= 0) return;
    throw config_error(key, "a folder for a temporary file", name_ + ": " + std::strerror(errno),
                       "name a folder that can be written to");
  }
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  /// Reserves disk space, or at least checks for it.
  void reserve(int64_t bytes, std::string_view key) const {
    struct statvfs disk {};
    int error = bytes > 0 && fallocate(descriptor_, 0, 0, bytes) != 0 ? errno : 0;
    if (error == EOPNOTSUPP) {
      const bool known = fstatvfs(descriptor_, &disk) == 0;
      const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
      error = known && free < bytes ? ENOSPC : 0;
    }
    if (error == 0) return;
    throw config_error(key, fmt::format("a folder with room for {:.1f} MiB", mebibytes(bytes)),
                       name_ + ": " + std::strerror(error),
                       "make room, name a folder on another disk, or set recompute.offload = \"none\"");
  }

  void write(const char* from, int64_t bytes, int64_t offset) const {
    while (bytes > 0) {
      const ssize_t done = pwrite(descriptor_, from, static_cast<size_t>(bytes), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail("written", done);
      from += done, bytes -= done, offset += done;
    }
  }
  void read(char* to, int64_t bytes, int64_t offset) const {
    while (bytes > 0) {
      const ssize_t done = pread(descriptor_, to, static_cast<size_t>(bytes), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail("read", done);
      to += done, bytes -= done, offset += done;
    }
  }
  /// Starts writing cached pages to the disk, without waiting.
  void flush(int64_t bytes, int64_t offset) const {
    sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);
  }
  /// Waits for that and drops the pages from the page cache, which would use as much memory as the values
  /// did.
  void forget(int64_t bytes, int64_t offset) const {
    sync_file_range(descriptor_, offset, bytes,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_DONTNEED);
  }

 private:
  [[noreturn]] void fail(std::string_view what, ssize_t done) const {
    throw data_error("temporary file in " + name_, fmt::format("values to be {}", what),
                     done == 0 ? "the end of the file" : std::strerror(errno),
                     "make room, name a folder on another disk, or set recompute.offload = \"none\"");
  }

  std::string name_;
  int descriptor_ = -1;
};

/// One thread runs jobs in order, so that a read follows its write and a slot's reuse follows its read. At
/// most the two values of the tape's double buffering are in flight.
class FileStore final : public OffloadStore {
 public:
  FileStore(const std::filesystem::path& folder, int64_t bytes, std::string_view key) : file_(folder, key) {
    file_.reserve(bytes, key);
    const BlockedSignals blocked;
    thread_ = std::thread([this] { work(); });
  }
  ~FileStore() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

 private:
  struct Range {
    int64_t offset = 0, bytes = 0;
  };
  struct Slot {
    Range range;
    bool in_flight = false;
    std::exception_ptr error;
  };
  struct Job {
    size_t number = 0;
    Range range;
    const char* from = nullptr;
    char* to = nullptr;
  };

  void start_write(size_t number, const Tensor& from, const Stream&) override {
    int64_t end = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Range& range = slots_[i].range;
      if (in_use(i)) end = std::max(end, range.offset + (range.bytes + kPage - 1) / kPage * kPage);
    }
    {
      const std::lock_guard lock(mutex_);  // the thread reads slots_
      while (slots_.size() <= number) slots_.emplace_back();
      slots_[number].range = {end, from.bytes()};
    }
    start({number, slots_[number].range, static_cast<const char*>(from.raw()), nullptr});
  }
  void start_read(size_t number, const Tensor& to, const Stream&) override {
    start({number, slots_[number].range, nullptr, static_cast<char*>(to.raw())});
  }
  void finish(size_t number, const Stream&) override {
    std::unique_lock lock(mutex_);
    Slot& slot = slots_[number];
    done_.wait(lock, [&] { return !slot.in_flight; });
    if (const std::exception_ptr error = std::exchange(slot.error, nullptr)) std::rethrow_exception(error);
  }

  void start(const Job& job) {
    {
      const std::lock_guard lock(mutex_);
      slots_[job.number].in_flight = true;
      jobs_.push_back(job);
    }
    wake_.notify_all();
  }

  void work() {
    Range cached;  // written last, perhaps not on the disk yet
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const Job job = jobs_.front();
      jobs_.pop_front();
      lock.unlock();
      const std::exception_ptr error = attempt(job);
      lock.lock();
      slots_[job.number].in_flight = false;
      slots_[job.number].error = error;
      done_.notify_all();
      lock.unlock();
      // Waiting for the disk here, before the next job, keeps the page cache to little more than two values.
      if (job.from != nullptr) file_.flush(job.range.bytes, job.range.offset);
      const Range written = job.from != nullptr ? std::exchange(cached, job.range) : job.range;
      if (written.bytes > 0) file_.forget(written.bytes, written.offset);
      lock.lock();
    }
  }

  std::exception_ptr attempt(const Job& job) const {
    try {
      if (job.from != nullptr) file_.write(job.from, job.range.bytes, job.range.offset);
      if (job.to != nullptr) file_.read(job.to, job.range.bytes, job.range.offset);
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  File file_;
  std::deque<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Job> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<OffloadStore> make_file_store(const std::filesystem::path& folder, int64_t bytes,
                                              std::string_view key) {
  return std::make_unique<FileStore>(folder, bytes, key);
}

}  // namespace meshgrad
