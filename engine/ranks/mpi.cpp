// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/mpi.h>

#include <algorithm>
#include <cstdlib>

#ifdef MESHGRAD_HAVE_MPI
#include <mpi.h>
#endif

namespace meshgrad {

namespace {

constexpr const char* kTorchrun = "WORLD_SIZE";

std::optional<Launcher> launcher_of(const char* name) {
  const char* value = std::getenv(name);
  const int processes = value == nullptr ? 1 : std::atoi(value);
  return processes > 1 ? std::optional(Launcher{name, processes}) : std::nullopt;
}

}  // namespace

std::optional<Launcher> found_launcher() {
  // SLURM jobs start one torchrun a host by srun, whose variables torchrun's processes inherit.
  if (std::getenv("TORCHELASTIC_RUN_ID") != nullptr) return launcher_of(kTorchrun);
  // Open MPI, MPICH and Intel MPI, MVAPICH, SLURM's srun.
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", kTorchrun})
    if (const std::optional<Launcher> launcher = launcher_of(name)) return launcher;
  return std::nullopt;
}

namespace {

ConfigError launcher_error(const Launcher& launcher, std::string_view got, std::string_view fix) {
  return config_error(fmt::format("{}={}", launcher.variable, launcher.processes),
                      fmt::format("{} ranks that MPI connects", launcher.processes), got, fix);
}

void check_launcher(const Launcher& launcher) {
  if (launcher.variable != kTorchrun) return;
  throw launcher_error(launcher, "a launcher without MPI, as torchrun is",
                       fmt::format("start them by mpirun -n {} or srun, or unset {} for one process",
                                   launcher.processes, kTorchrun));
}

}  // namespace

#ifndef MESHGRAD_HAVE_MPI

bool mpi_built() { return false; }

Ranks launched_ranks(const RanksOptions&) {
  const std::optional<Launcher> launcher = found_launcher();
  if (!launcher) return Ranks();
  check_launcher(*launcher);
  throw launcher_error(*launcher, "a build without MPI",
                       "install MPI (scripts/setup) and build again, or start one process, with run.threads "
                       "for its CPU cores");
}

Ranks ranks_of_communicator(int, const RanksOptions&) {
  throw config_error("communicator", "a build with MPI", "a build without MPI",
                     "install MPI (scripts/setup) and build again");
}

#else

bool mpi_built() { return true; }

namespace {

constexpr int kTag = 0;
constexpr int kLeft = 1;                        // of a message without bytes: its rank exchanges no more
constexpr size_t kMostBytes = size_t{1} << 30;  // MPI counts in int

/// Part i of bytes that are too many for one message.
template <class Bytes>
std::vector<Bytes> parts_of(Bytes bytes) {
  std::vector<Bytes> parts;
  do {
    const size_t size = std::min(bytes.size(), kMostBytes);
    parts.push_back(bytes.first(size));
    bytes = bytes.subspan(size);
  } while (!bytes.empty());
  return parts;
}

RankFailure mpi_failure(int other, int code) {
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<size_t>(length));
  if (code == MPI_ERR_TRUNCATE)
    return {other, fmt::format("a message of the expected size from rank {}", other), "a longer message",
            "start all ranks with the same program, configuration and data"};
  return {other, fmt::format("a message between this rank and rank {}", other), text,
          fmt::format("look for the end of rank {}", other)};
}

/// Throws when a rank has said that it exchanges no more messages.
void check_left(MPI_Comm communicator) {
  int left = 0;
  MPI_Status status;
  MPI_Iprobe(MPI_ANY_SOURCE, kLeft, communicator, &left, &status);
  if (left == 0) return;
  throw RankFailure{status.MPI_SOURCE, "all ranks to go on",
                    fmt::format("the end of rank {}", status.MPI_SOURCE), "see its error"};
}

class MpiRequest final : public RankTransport::Request {
 public:
  MpiRequest(MPI_Comm communicator, std::span<const Send> sends, std::span<const Receive> receives)
      : communicator_(communicator) {
    for (const Receive& receive : receives) {
      for (const std::span<std::byte> part : parts_of(receive.bytes)) {
        MPI_Request& request = add(receive.from, part.size());
        check(receive.from, MPI_Irecv(part.data(), static_cast<int>(part.size()), MPI_BYTE, receive.from,
                                      kTag, communicator, &request));
      }
    }
    received_ = requests_.size();
    for (const Send& send : sends) {
      for (const std::span<const std::byte> part : parts_of(send.bytes)) {
        MPI_Request& request = add(send.to, part.size());
        check(send.to, MPI_Isend(part.data(), static_cast<int>(part.size()), MPI_BYTE, send.to, kTag,
                                 communicator, &request));
      }
    }
  }
  /// The buffers go: MPI must write no more. What is being sent may not be cancelled; the job ends anyway.
  ~MpiRequest() override {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (i >= received_) {
        MPI_Request_free(&requests_[i]);
        continue;
      }
      MPI_Cancel(&requests_[i]);
      MPI_Wait(&requests_[i], MPI_STATUS_IGNORE);
    }
  }
  MpiRequest(const MpiRequest&) = delete;
  MpiRequest& operator=(const MpiRequest&) = delete;

  bool done() override {
    bool all = true;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      int arrived = 0;
      MPI_Status status;
      check(others_[i], MPI_Test(&requests_[i], &arrived, &status));
      all = all && arrived != 0;
      if (arrived != 0 && i < received_) check_size(i, status);
    }
    if (!all) check_left(communicator_);
    return all;
  }
  int awaited() const override {
    const auto open = std::find_if(requests_.begin(), requests_.end(),
                                   [](MPI_Request request) { return request != MPI_REQUEST_NULL; });
    return others_[static_cast<size_t>(open - requests_.begin())];
  }

 private:
  MPI_Request& add(int other, size_t bytes) {
    others_.push_back(other);
    bytes_.push_back(bytes);
    return requests_.emplace_back(MPI_REQUEST_NULL);
  }
  static void check(int other, int code) {
    if (code != MPI_SUCCESS) throw mpi_failure(other, code);
  }
  void check_size(size_t i, const MPI_Status& status) const {
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (static_cast<size_t>(bytes) == bytes_[i]) return;
    throw RankFailure{others_[i], fmt::format("{} bytes from rank {}", bytes_[i], others_[i]),
                      fmt::format("{}", bytes),
                      "start all ranks with the same program, configuration and data"};
  }

  MPI_Comm communicator_;
  std::vector<MPI_Request> requests_;  // receives, then sends
  std::vector<int> others_;
  std::vector<size_t> bytes_;
  size_t received_ = 0;
};

/// By the application: nothing is left to free, nor anybody to tell.
bool mpi_finalised() {
  int answer = 0;
  MPI_Finalized(&answer);
  return answer != 0;
}

class MpiTransport final : public RankTransport {
 public:
  /// Works on a duplicate, so that no message is mixed with the application's.
  MpiTransport(MPI_Comm communicator, bool owns_mpi) : owns_mpi_(owns_mpi) {
    MPI_Comm_dup(communicator, &communicator_);
    MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(communicator_, &rank_);
    MPI_Comm_size(communicator_, &size_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  uint64_t host() const override {
    std::string name(MPI_MAX_PROCESSOR_NAME, '\0');
    int length = 0;
    MPI_Get_processor_name(name.data(), &length);
    return std::hash<std::string_view>()(std::string_view(name).substr(0, static_cast<size_t>(length)));
  }
  std::unique_ptr<Request> start(std::span<const Send> sends, std::span<const Receive> receives) override {
    if (mpi_finalised())
      throw RankFailure{sends.empty() ? receives.front().from : sends.front().to,
                        "MPI until the last message", "a message after MPI_Finalize",
                        "end the Ranks, or close the runtime, before MPI_Finalize"};
    return std::make_unique<MpiRequest>(communicator_, sends, receives);
  }
  void abort(int exit_code) noexcept override { MPI_Abort(communicator_, exit_code); }
  void check() override {
    if (!mpi_finalised()) check_left(communicator_);
  }
  void leave() noexcept override {
    if (mpi_finalised()) return;
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      if (MPI_Isend(nullptr, 0, MPI_BYTE, other, kLeft, communicator_, &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
    }
  }
  void finish() override {
    if (mpi_finalised()) return;
    MPI_Comm_free(&communicator_);
    if (owns_mpi_) MPI_Finalize();
  }

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  bool owns_mpi_;
};

}  // namespace

Ranks launched_ranks(const RanksOptions& options) {
  const std::optional<Launcher> launcher = found_launcher();
  if (!launcher) return Ranks();
  check_launcher(*launcher);
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != launcher->processes) {
    MPI_Finalize();
    throw launcher_error(*launcher, fmt::format("{}", size),
                         "use the mpirun of the MPI that meshgrad is built with, or the srun --mpi that fits "
                         "it (srun --mpi=list)");
  }
  return Ranks(std::make_unique<MpiTransport>(MPI_COMM_WORLD, true), options);
}

namespace {

/// The program may have been compiled with another MPI, whose functions then answer in place of ours and know
/// nothing of our communicators.
void check_library() {
  constexpr size_t kLongest = 8192;  // of any MPI: the one that answers may have longer texts than ours
  std::string text(std::max<size_t>(kLongest, MPI_MAX_LIBRARY_VERSION_STRING), '\0');
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  text.resize(static_cast<size_t>(length));
#ifdef OPEN_MPI
  constexpr bool kOpenMpi = true;
#else
  constexpr bool kOpenMpi = false;
#endif
  const bool open = text.starts_with("Open MPI") || text.starts_with("FUJITSU MPI");  // which is made from it
  if (open == kOpenMpi) return;
  throw invalid_argument(
      "communicator",
      kOpenMpi ? "Open MPI, as meshgrad is built with" : "the MPI that meshgrad is built with",
      text.substr(0, text.find_first_of("\n,")), "compile the program and meshgrad with the same MPI");
}

}  // namespace

Ranks ranks_of_communicator(int communicator, const RanksOptions& options) {
  check_library();
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised == 0 || mpi_finalised()) {
    throw invalid_argument("communicator", "a communicator of an initialised MPI",
                           initialised == 0 ? "MPI before MPI_Init" : "MPI after MPI_Finalize",
                           "make the runtime between the two");
  }
  MPI_Comm const ours = MPI_Comm_f2c(communicator);
  if (ours == MPI_COMM_NULL || ours == MPI_Comm{}) {
    throw invalid_argument(
        "communicator", "a communicator that this process belongs to",
        ours == MPI_COMM_NULL ? "MPI_COMM_NULL" : fmt::format("{}, which is no handle", communicator),
        "give the handle of MPI_Comm_c2f; a process outside of it makes no runtime with it");
  }
  return Ranks(std::make_unique<MpiTransport>(ours, false), options);
}

#endif

}  // namespace meshgrad
