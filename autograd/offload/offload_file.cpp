// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload_store.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>

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

constexpr int64_t kBlock = 4096;  // places begin at its multiples, so that a page holds one value alone

class File {
 public:
  /// Nothing is left of it once this process has ended, however it ends.
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

  /// Sets room apart, or at least looks for it.
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
  /// Starts to bring a piece to the disk, without waiting.
  void flush(int64_t bytes, int64_t offset) const {
    sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);
  }
  /// Waits for that, and frees the page cache: it would be memory all the same.
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

/// One thread does what it is told in order, so that what is read was written, and a place is used again when
/// it was read. What is under way is at most what the tape's double buffering asks for.
class FileStore final : public OffloadStore {
 public:
  FileStore(const std::filesystem::path& folder, int64_t bytes, std::string_view key) : file_(folder, key) {
    file_.reserve(bytes, key);
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
  struct Piece {
    int64_t offset = 0, bytes = 0;
  };
  struct Place {
    Piece piece;
    bool under_way = false;
    std::exception_ptr error;
  };
  struct Job {
    size_t number = 0;
    Piece piece;
    const char* from = nullptr;
    char* to = nullptr;
  };

  void start_write(size_t number, const Tensor& from, const Stream&) override {
    int64_t end = 0;
    for (size_t i = 0; i < places_.size(); ++i) {
      const Piece& piece = places_[i].piece;
      if (is_taken(i)) end = std::max(end, piece.offset + (piece.bytes + kBlock - 1) / kBlock * kBlock);
    }
    {
      const std::lock_guard lock(mutex_);  // the thread looks places up
      while (places_.size() <= number) places_.emplace_back();
      places_[number].piece = {end, from.bytes()};
    }
    start({number, places_[number].piece, static_cast<const char*>(from.raw()), nullptr});
  }
  void start_read(size_t number, const Tensor& to, const Stream&) override {
    start({number, places_[number].piece, nullptr, static_cast<char*>(to.raw())});
  }
  void finish(size_t number, const Stream&) override {
    std::unique_lock lock(mutex_);
    Place& place = places_[number];
    done_.wait(lock, [&] { return !place.under_way; });
    if (const std::exception_ptr error = std::exchange(place.error, nullptr)) std::rethrow_exception(error);
  }

  void start(const Job& job) {
    {
      const std::lock_guard lock(mutex_);
      places_[job.number].under_way = true;
      jobs_.push_back(job);
    }
    wake_.notify_all();
  }

  void work() {
    Piece cached;  // written last, and perhaps not on the disk yet
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const Job job = jobs_.front();
      jobs_.pop_front();
      lock.unlock();
      const std::exception_ptr error = attempt(job);
      lock.lock();
      places_[job.number].under_way = false;
      places_[job.number].error = error;
      done_.notify_all();
      lock.unlock();
      // The next job waits for the disk here: so little more than two values are in the page cache.
      if (job.from != nullptr) file_.flush(job.piece.bytes, job.piece.offset);
      const Piece settled = job.from != nullptr ? std::exchange(cached, job.piece) : job.piece;
      if (settled.bytes > 0) file_.forget(settled.bytes, settled.offset);
      lock.lock();
    }
  }

  std::exception_ptr attempt(const Job& job) const {
    try {
      if (job.from != nullptr) file_.write(job.from, job.piece.bytes, job.piece.offset);
      if (job.to != nullptr) file_.read(job.to, job.piece.bytes, job.piece.offset);
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  File file_;
  std::deque<Place> places_;
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
