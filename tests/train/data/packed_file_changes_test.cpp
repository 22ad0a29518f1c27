// SPDX-License-Identifier: Apache-2.0
// A packed file that is cut short, overwritten or touched while it is in use.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <meshgrad/train/data/packed_file.h>
#include <sys/stat.h>

#include <chrono>
#include <thread>

#include "support.h"
#include "train/fault_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::FaultFixture;
using test::message_of;

/// Writes in place and, if asked, puts the modification time back.
class Writer {
 public:
  explicit Writer(const fs::path& path) : descriptor_(open(path.c_str(), O_WRONLY | O_CLOEXEC)) {
    fstat(descriptor_, &before_);
  }
  ~Writer() { close(descriptor_); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void write(uint64_t at, const std::string& bytes) const {
    CHECK(pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(at)) ==
          static_cast<ssize_t>(bytes.size()));
  }
  void cut(uint64_t bytes) const { CHECK(ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0); }
  void set_time(int64_t seconds_ago) const {
    const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    const timespec times[2] = {{now - seconds_ago, 0}, {now - seconds_ago, 0}};
    futimens(descriptor_, times);
  }
  void restore_time() const {
    const timespec times[2] = {before_.st_mtim, before_.st_mtim};
    futimens(descriptor_, times);
  }

 private:
  int descriptor_;
  struct stat before_ {};
};

/// A file whose time of change is long ago, so that what was checked stays so.
fs::path old_waves(const fs::path& folder) {
  const fs::path path = test::pack_waves(folder);
  Writer(path).set_time(100);
  return path;
}

TEST_CASE("a trajectory written after its check is not used") {
  const test::ScratchDirectory scratch;
  const fs::path path = old_waves(scratch.path);
  const uint64_t offset = PackedFile::open(path)->trajectory_record(1).offset;
  const Dataset dataset = Dataset::open(path);
  const auto use = [&](int64_t i) {
    dataset.trajectory("train", i);
    dataset.check_unchanged();
  };
  for (const int64_t i : {0, 1, 0, 1}) use(i);
  const std::string byte(1, test::read_text(path)[offset]);
  const Writer writer(path);
  writer.write(offset, byte);  // the same content: touched, not changed
  writer.write(1 << 30, "appended");
  CHECK_NOTHROW(use(1));
  writer.write(offset, std::string(1, static_cast<char>(byte[0] ^ 1)));
  const std::string used = message_of([&] { dataset.check_unchanged(); });
  const std::string message = message_of([&] { dataset.trajectory("train", 1); });
  CHECK(used == message);
  CHECK(test::contains(message, path.string() + ": trajectory 1 (train.tfrecord: record 1)"));
  CHECK_NOTHROW(dataset.trajectory("train", 0));
  writer.write(offset, byte);
  CHECK_NOTHROW(use(1));
  writer.cut(fs::file_size(path) / 2);
  writer.cut(4096);
  CHECK(test::contains(message_of([&] { dataset.check_unchanged(); }), "cut short"));
}

void handle(int, siginfo_t* info, void*) {
  if (!replace_lost_pages(info->si_addr)) _exit(99);
}

TEST_CASE("lost pages of a guarded file read as zeros") {
  struct sigaction action = {}, before = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, &before);
  const test::ScratchDirectory scratch;
  const fs::path path = scratch.path / "file";
  std::ofstream(path) << std::string(100'000, 'x');
  {
    MappedFile first(path), other(path);
    other.guard();
    first.guard();
    MappedFile file(std::move(first));
    Writer(path).cut(10'000);
    CHECK_FALSE(file.lost());
    CHECK(file.bytes()[50'000] == std::byte{0});
    CHECK(file.bytes()[99'999] == std::byte{0});
    CHECK(file.bytes()[1000] == std::byte{'x'});
    CHECK(file.lost());
    CHECK_FALSE(other.lost());
  }
  const MappedFile unguarded(path);
  CHECK_FALSE(replace_lost_pages(unguarded.bytes().data()));
  sigaction(SIGBUS, &before, nullptr);
}

void wait_for_metrics(test::Process& process, const fs::path& run) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (test::read_text(run / "metrics.jsonl").empty() && process.running() &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
}

/// Trains without end, lets `change` write to the data, and expects one error that names the file.
void check_training_notices(const std::function<void(const Writer&, const PackedFile&)>& change,
                            const std::vector<std::string>& settings = {}) {
  FaultFixture f;
  f.config.train.steps = 1'000'000;
  f.config.train.validate_every = 0;
  f.config.train.log_every = 1;
  test::write_config(f.scratch.path, f.config);
  const fs::path path = f.config.data.path;
  Writer(path).set_time(100);
  std::vector<std::string> arguments{"train", f.file, "--quiet"};
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  test::Process process(arguments);
  wait_for_metrics(process, f.config.run.dir);
  {
    const auto packed = PackedFile::open(path);
    change(Writer(path), *packed);
  }
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (process.running() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(5ms);
  CHECK_FALSE(process.running());
  process.send(SIGKILL);
  test::check_one_error(process.wait(), 1, {path.string(), "fix: "});
}

TEST_CASE("a run whose data is cut short ends in one error") {
  check_training_notices([](const Writer& file, const PackedFile&) { file.cut(0); });
  check_training_notices(
      [](const Writer& file, const PackedFile& packed) { file.cut(packed.trajectory_record(0).offset); });
  check_training_notices([](const Writer& file, const PackedFile& packed) {
    file.write(0, std::string(packed.trailer().file_bytes, '\0'));
  });
  check_training_notices([](const Writer& file, const PackedFile& packed) {
    for (int64_t i = 0; i < 2; ++i)
      file.write(packed.trajectory_record(i).offset, std::string(packed.trajectory_record(i).bytes, '\0'));
  });
}

/// Overwrites node numbers of every mesh; the file looks unchanged.
void spoil_node_numbers(const Writer& file, const PackedFile& packed, uint64_t MeshLayout::*part) {
  for (uint64_t mesh = 0; mesh < packed.trailer().mesh_count; ++mesh) {
    const MeshRecord& record = packed.mesh_record(mesh);
    file.write(record.offset + (*mesh_layout(record)).*part, std::string(4UL * record.nodes, '\x7f'));
  }
  file.restore_time();
}

TEST_CASE("node numbers that change unnoticed do not lead out of bounds") {
  for (const auto part : {&MeshLayout::senders, &MeshLayout::receivers, &MeshLayout::sender_order,
                          &MeshLayout::receiver_offsets, &MeshLayout::sender_offsets}) {
    check_training_notices(
        [&](const Writer& file, const PackedFile& packed) { spoil_node_numbers(file, packed, part); });
  }
}

TEST_CASE("data.verify = \"epoch\" finds content that changed unnoticed") {
  const auto change = [](const Writer& file, const PackedFile& packed) {
    const TrajectoryRecord& record = packed.trajectory_record(0);
    file.write(record.offset, std::string(record.bytes, '\0'));
    file.restore_time();
  };
  check_training_notices(change, {"data.verify=epoch"});
}

}  // namespace
}  // namespace meshgrad
