// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/child_source.h>

namespace meshgrad {
namespace {

// What follows in the pipe: a text for all but records (a number) and a trajectory.
enum class Message : char { records, trajectory, end, warning, data_error, config_error, no_memory };

/// The child's end of the pipe. Without a parent there is nothing left to do.
class Sender {
 public:
  explicit Sender(int pipe) : pipe_(pipe) {}
  template <class T>
  void number(T value) {
    bytes(&value, sizeof value);
  }
  template <class Values>
  void list(const Values& values) {
    number(uint64_t{values.size()});
    bytes(values.data(), values.size() * sizeof(*values.data()));
  }
  void text(Message message, const std::string& value) {
    number(message);
    list(value);
  }

  void trajectory(const RawTrajectory& t, uint64_t bytes_read) {
    number(Message::trajectory);
    number(bytes_read);
    list(t.name);
    for (const int64_t value : {t.record, t.first_frame, t.frames, t.nodes, int64_t{t.dim},
                                int64_t{t.nodes_per_cell}, static_cast<int64_t>(t.fields.size())})
      number(value);
    number(t.cell_kind.has_value());
    number(t.cell_kind.value_or(CellKind::none));
    number(t.dt);
    list(t.times);
    list(t.positions);
    list(t.wide_positions);
    list(t.node_type);
    list(t.cells);
    list(t.edges);
    list(t.cell_type);
    list(t.faced.nodes);
    list(t.faced.face_ends);
    list(t.faced.cell_ends);
    for (const RawField& field : t.fields) {
      list(field.name);
      list(field.unit);
      number(int64_t{field.components});
      number(field.dynamic);
      number(field.on);
      number(field.node_split);
      number(field.third_is_empty);
      number(field.repeats);
      number(field.values.index());
      std::visit([&](const auto& values) { list(values); }, field.values);
      list(field.wide);
    }
    number(uint64_t{t.read_as.size()});
    for (const auto& [name, array] : t.read_as) {
      list(name);
      list(array);
    }
  }

 private:
  void bytes(const void* data, size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = write(pipe_, at, size);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) _exit(1);
      at += written;
      size -= static_cast<size_t>(written);
    }
  }
  int pipe_;
};

void limit(int resource, rlim_t value) {
  rlimit limits{};
  getrlimit(static_cast<__rlimit_resource_t>(resource), &limits);
  limits.rlim_cur = std::min(value, limits.rlim_max);
  setrlimit(static_cast<__rlimit_resource_t>(resource), &limits);
}

void limit_memory(uint64_t beyond_now) {
  long pages = 0;
  if (FILE* statm = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(statm, "%ld", &pages) != 1) pages = 0;
    std::fclose(statm);
  }
  if (pages > 0)
    limit(RLIMIT_AS, static_cast<rlim_t>(pages) * static_cast<rlim_t>(getpagesize()) + beyond_now);
}

uint64_t half_of_host() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(size) / 2 : 0;
}

void limit_time(int64_t seconds) {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  limit(RLIMIT_CPU, static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec + 1 + seconds));
}

/// Signals as in a new process, no core file, and messages of libraries to nowhere.
void become_child(const ChildLimits& limits) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nowhere, stream);
  limit(RLIMIT_CORE, 0);
  limit_memory(limits.memory);
}

void serve(const OpenSource& open, const ChildLimits& limits, bool count_only, Sender sender) {
  uint64_t allowed = limits.memory;
  try {
    constexpr uint64_t kCopies = 6, kBytesPerSecond = 10'000'000;
    const auto alive = [&](uint64_t unpacked) {
      limit_time(limits.cpu_seconds + static_cast<int64_t>(unpacked / kBytesPerSecond));
      // A hostile file may say much, so half of the host's memory is the most.
      const uint64_t needed = std::min(kCopies * unpacked, half_of_host());
      if (needed <= allowed) return;
      allowed = needed;
      limit_memory(allowed);
    };
    alive(0);
    const auto source = open([&](const std::string& text) { sender.text(Message::warning, text); }, alive);
    sender.number(Message::records);
    sender.number(source->records());
    while (!count_only) {
      alive(0);
      const auto trajectory = source->next();
      if (!trajectory) break;
      sender.trajectory(*trajectory, source->bytes_read());
    }
    sender.number(Message::end);
  } catch (const ConfigError& error) {
    sender.text(Message::config_error, error.what());
  } catch (const std::bad_alloc&) {
    sender.number(Message::no_memory);
    sender.number(allowed);
  } catch (const std::exception& error) {
    sender.text(Message::data_error, error.what());
  }
}

class ChildSource : public TrajectorySource {
 public:
  ChildSource(std::filesystem::path path, std::string library, const ChildLimits& limits, OpenSource open,
              WarningCallback warn)
      : path_(std::move(path)),
        library_(std::move(library)),
        limits_(limits),
        open_(std::move(open)),
        warn_(std::move(warn)) {
    const StopAtEnd end{*this};  // no destructor is called after an error here
    start(true);
    while (await() == Message::records) records_ = number<int64_t>();
  }
  ~ChildSource() override { stop(); }
  ChildSource(const ChildSource&) = delete;
  ChildSource& operator=(const ChildSource&) = delete;

  int64_t records() const override { return records_; }
  uint64_t bytes_read() const override { return bytes_; }

  std::optional<RawTrajectory> next() override {
    if (ended_) return std::nullopt;
    if (child_ < 0) start(false);
    Message message = await();
    if (message == Message::records) {
      number<int64_t>();
      message = await();
    }
    if (message == Message::trajectory) return trajectory();
    ended_ = true;
    stop();
    return std::nullopt;
  }

 private:
  struct StopAtEnd {
    ChildSource& source;
    ~StopAtEnd() { source.stop(); }
  };

  void start(bool count_only) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw no_child();
    child_ = fork();
    if (child_ == 0) {
      close(ends[0]);
      become_child(limits_);
      serve(open_, limits_, count_only, Sender(ends[1]));
      _exit(0);
    }
    close(ends[1]);
    pipe_ = ends[0];
    if (child_ < 0) throw no_child();
  }

  /// Returns how it ended, as waitpid says.
  int stop() {
    if (pipe_ >= 0) close(std::exchange(pipe_, -1));
    int status = 0;
    if (child_ > 0) {
      if (!dying_) kill(child_, SIGKILL);
      while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
      }
    }
    child_ = -1;
    return status;
  }

  DataError no_child() const {
    return data_error(path_.string(), "a process that reads the file", std::strerror(errno),
                      "raise the limit (ulimit -u, ulimit -n) or close other programs");
  }

  /// The pipe ended before the last message.
  DataError broken() {
    dying_ = true;
    const int status = stop();
    const int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    std::string got = fmt::format("a crash of the library ({})", number > 0 ? strsignal(number) : "exit");
    if (number == SIGXCPU)
      got = fmt::format("a file that keeps the library busy for {} s", limits_.cpu_seconds);
    return data_error(path_.string(), fmt::format("a file that {} can read", library_), got,
                      "the file is damaged or hostile: write it again, or convert it to NPZ");
  }

  DataError no_memory(uint64_t allowed) const {
    return data_error(path_.string(),
                      fmt::format("trajectories that take at most {:.0f} MiB to read",
                                  mebibytes(static_cast<int64_t>(allowed))),
                      fmt::format("an allocation of {} beyond", library_),
                      "write shorter trajectories, or convert the file to NPZ");
  }

  /// The next message that is not a warning.
  Message await() {
    while (true) {
      const auto message = number<Message>();
      switch (message) {
        case Message::warning: {
          const auto text = list<std::string>();
          if (warn_) warn_(text);
          break;
        }
        case Message::data_error:
          throw DataError(list<std::string>());
        case Message::config_error:
          throw ConfigError(list<std::string>());
        case Message::no_memory:
          throw no_memory(number<uint64_t>());
        case Message::records:
        case Message::trajectory:
        case Message::end:
          return message;
        default:
          throw broken();
      }
    }
  }

  void bytes(void* data, size_t size) {
    char* at = static_cast<char*>(data);
    while (size > 0) {
      const ssize_t got = read(pipe_, at, size);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw broken();
      at += got;
      size -= static_cast<size_t>(got);
    }
  }
  template <class T>
  T number() {
    T value{};
    bytes(&value, sizeof value);
    return value;
  }
  /// Grows as the values come: what a spoiled child says of their number is not believed.
  template <class Values>
  Values list() {
    constexpr size_t kAtOnce = 1 << 20;
    auto left = number<uint64_t>();
    Values values;
    while (left > 0) {
      const size_t some = std::min<uint64_t>(left, kAtOnce);
      const size_t before = values.size();
      values.resize(before + some);
      bytes(values.data() + before, some * sizeof(*values.data()));
      left -= some;
    }
    return values;
  }

  template <class T>
  FieldValues field_values() {
    return list<std::vector<T>>();
  }

  RawTrajectory trajectory() {
    RawTrajectory t;
    bytes_ = number<uint64_t>();
    t.name = list<std::string>();
    t.record = number<int64_t>();
    t.first_frame = number<int64_t>();
    t.frames = number<int64_t>();
    t.nodes = number<int64_t>();
    t.dim = static_cast<int>(number<int64_t>());
    t.nodes_per_cell = static_cast<int>(number<int64_t>());
    const auto fields = number<int64_t>();
    const bool has_kind = number<bool>();
    const auto cell_kind = number<CellKind>();
    if (has_kind) t.cell_kind = cell_kind;
    t.dt = number<double>();
    t.times = list<std::vector<double>>();
    t.positions = list<std::vector<float>>();
    t.wide_positions = list<std::vector<double>>();
    t.node_type = list<std::vector<int32_t>>();
    t.cells = list<std::vector<int32_t>>();
    t.edges = list<std::vector<int32_t>>();
    t.cell_type = list<std::vector<int32_t>>();
    t.faced.nodes = list<std::vector<int32_t>>();
    t.faced.face_ends = list<std::vector<int64_t>>();
    t.faced.cell_ends = list<std::vector<int64_t>>();
    for (int64_t i = 0; i < fields; ++i) {
      RawField& field = t.fields.emplace_back();
      field.name = list<std::string>();
      field.unit = list<std::string>();
      field.components = static_cast<int>(number<int64_t>());
      field.dynamic = number<bool>();
      field.on = number<FieldOn>();
      field.node_split = number<bool>();
      field.third_is_empty = number<bool>();
      field.repeats = number<bool>();
      const auto kind = number<size_t>();
      field.values = kind == 0   ? field_values<float>()
                     : kind == 1 ? field_values<int32_t>()
                                 : field_values<int64_t>();
      field.wide = list<std::vector<double>>();
    }
    for (auto left = number<uint64_t>(); left > 0; --left) {
      const auto name = list<std::string>();
      t.read_as[name] = list<std::string>();
    }
    return t;
  }

  std::filesystem::path path_;
  std::string library_;
  ChildLimits limits_;
  OpenSource open_;
  WarningCallback warn_;
  pid_t child_ = -1;
  int pipe_ = -1;
  bool dying_ = false;  // by itself
  bool ended_ = false;
  int64_t records_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<TrajectorySource> read_in_child(const std::filesystem::path& path, const std::string& library,
                                                const ChildLimits& limits, OpenSource open,
                                                WarningCallback warn) {
  return std::make_unique<ChildSource>(path, library, limits, std::move(open), std::move(warn));
}

}  // namespace meshgrad
