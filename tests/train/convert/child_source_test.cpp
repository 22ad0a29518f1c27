// SPDX-License-Identifier: Apache-2.0
// Sources that crash, loop or take all memory, and HDF5 files that make the library do so.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/child_source.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "paths.h"
#include "train/fault_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

RawTrajectory full_trajectory() {
  RawTrajectory t;
  t.name = "a: 1";
  t.record = 7;
  t.first_frame = 2;
  t.frames = 3;
  t.nodes = 2;
  t.dim = 2;
  t.positions = {0, 1, 2, 3};
  t.wide_positions = {0, 1, 2, 3};
  t.node_type = {4, 5};
  t.cells = {0, 1, 0};
  t.nodes_per_cell = 3;
  t.edges = {0, 1};
  t.dt = 0.25;
  t.fields.push_back({"f", 1, true, "m/s", std::vector<float>(6, 1.5F), FieldOn::node});
  t.fields.back().wide.assign(6, 1.5);
  t.fields.push_back({"i", 2, false, "", std::vector<int32_t>{1, 2, 3, 4}, FieldOn::edge});
  t.fields.push_back({"l", 1, false, "K", std::vector<int64_t>{1LL << 40}, FieldOn::graph});
  return t;
}

/// Two records, each of which calls `read` first.
class FakeSource : public TrajectorySource {
 public:
  explicit FakeSource(std::function<void(int)> read) : read_(std::move(read)) {}
  int64_t records() const override { return 2; }
  uint64_t bytes_read() const override { return 10 * static_cast<uint64_t>(done_); }
  std::optional<RawTrajectory> next() override {
    if (done_ == 2) return std::nullopt;
    read_(done_++);
    return full_trajectory();
  }

 private:
  std::function<void(int)> read_;
  int done_ = 0;
};

std::unique_ptr<TrajectorySource> fake(std::function<void(int, const AliveCallback&)> read,
                                       WarningCallback warn = nullptr) {
  return read_in_child(
      "some.h5", "HDF5", {.memory = uint64_t{256} << 20, .cpu_seconds = 1},
      [read = std::move(read)](const WarningCallback& warn_parent, const AliveCallback& alive) {
        warn_parent("opened");
        return std::make_unique<FakeSource>([read, alive](int record) { read(record, alive); });
      },
      std::move(warn));
}

TEST_CASE("trajectories and warnings of a child arrive as they are") {
  std::vector<std::string> warnings;
  const pid_t parent = getpid();
  const auto source = fake(
      [parent](int, const AliveCallback&) {
        if (getpid() == parent) throw std::logic_error("read in the parent");
      },
      [&](const std::string& text) { warnings.push_back(text); });
  CHECK(source->records() == 2);
  const auto t = source->next();
  REQUIRE(t);
  const RawTrajectory wanted = full_trajectory();
  CHECK(t->name == wanted.name);
  CHECK(t->record == wanted.record);
  CHECK(t->first_frame == wanted.first_frame);
  CHECK(t->frames == wanted.frames);
  CHECK(t->nodes == wanted.nodes);
  CHECK(t->dim == wanted.dim);
  CHECK(t->positions == wanted.positions);
  CHECK(t->wide_positions == wanted.wide_positions);
  CHECK(t->node_type == wanted.node_type);
  CHECK(t->cells == wanted.cells);
  CHECK(t->nodes_per_cell == wanted.nodes_per_cell);
  CHECK(t->edges == wanted.edges);
  CHECK(t->dt == wanted.dt);
  REQUIRE(t->fields.size() == wanted.fields.size());
  for (size_t i = 0; i < wanted.fields.size(); ++i) {
    CHECK(t->fields[i].name == wanted.fields[i].name);
    CHECK(t->fields[i].components == wanted.fields[i].components);
    CHECK(t->fields[i].dynamic == wanted.fields[i].dynamic);
    CHECK(t->fields[i].unit == wanted.fields[i].unit);
    CHECK(t->fields[i].on == wanted.fields[i].on);
    CHECK(t->fields[i].values == wanted.fields[i].values);
    CHECK(t->fields[i].wide == wanted.fields[i].wide);
  }
  CHECK(source->bytes_read() == 10);
  CHECK(source->next());
  CHECK(source->bytes_read() == 20);
  CHECK_FALSE(source->next());
  CHECK_FALSE(source->next());
  CHECK(warnings.size() == 2);  // of the child that counts, and of the one that reads
}

std::string error_of(const std::function<void(int)>& read) {
  const auto source = fake([read](int record, const AliveCallback&) { read(record); });
  try {
    while (source->next()) {
    }
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a child that crashes, loops or grows is one error") {
  const std::string crash = error_of([](int record) {
    if (record == 1) raise(SIGSEGV);
  });
  CHECK(test::contains(crash, "[some.h5] needed a file that HDF5 can read, got a crash of the library"));
  CHECK(test::contains(error_of([](int) { _exit(3); }), "a crash of the library"));
  CHECK(test::contains(error_of([](int) { raise(SIGXCPU); }), "keeps the library busy for 1 s"));
  CHECK(test::contains(error_of([](int) {
                         while (getppid() >= 0) {
                         }
                       }),
                       "keeps the library busy for 1 s"));
  CHECK(test::contains(
      error_of([](int) { std::vector<char>(size_t{300} << 20, 'x'); }),
      "needed trajectories that take at most 256 MiB to read, got an allocation of HDF5 beyond"));
  CHECK(error_of([](int) { throw data_error("here", "a", "b", "c"); }) == "[here] needed a, got b; fix: c");
  CHECK(error_of([](int) {}).empty());
}

TEST_CASE("a child that reports progress has more time") {
  const auto seconds_left = [] {
    rlimit limit{};
    rusage used{};
    getrlimit(RLIMIT_CPU, &limit);
    getrusage(RUSAGE_SELF, &used);
    return static_cast<int64_t>(limit.rlim_cur) - used.ru_utime.tv_sec - used.ru_stime.tv_sec;
  };
  const auto source = fake([seconds_left](int, const AliveCallback& alive) {
    rlimit high{};
    getrlimit(RLIMIT_CPU, &high);
    high.rlim_cur = 10'000;
    setrlimit(RLIMIT_CPU, &high);
    alive(0);
    if (seconds_left() < 1 || seconds_left() > 3)
      throw data_error("here", "a second from now on", "other", "-");
  });
  CHECK(source->next());
  CHECK(source->next());
}

TEST_CASE("a source that fails to open leaves no process") {
  const auto descriptors = [] {
    const auto all = fs::directory_iterator("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto before = descriptors();
  const auto open = [](const WarningCallback&, const AliveCallback&) -> std::unique_ptr<TrajectorySource> {
    throw data_error("here", "a", "b", "c");
  };
  CHECK_THROWS_AS(read_in_child("some.h5", "HDF5", {.memory = 1 << 28, .cpu_seconds = 1}, open, nullptr),
                  DataError);
  CHECK(descriptors() == before);
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("HDF5 files that crash the library are one error each") {
  const std::pair<const char*, const char*> cases[] = {{"segv2.h5", "crash of the library"},
                                                       {"bugmsg.h5", "names of the groups"},
                                                       {"virtself.h5", "virtual or external storage"},
                                                       {"virtual.h5", "virtual or external storage"},
                                                       {"external_storage.h5", "virtual or external storage"},
                                                       {"external_link.h5", "nodal_data"}};
  const test::ScratchDirectory scratch;
  const std::string output = (scratch.path / "o.mgd").string();
  for (const auto& [name, part] : cases) {
    CAPTURE(name);
    const std::string input = test::data_file("hdf5/") + name;
    const test::Outcome outcome = test::run_meshgrad({"convert", input, "-o", output});
    if (test::contains(outcome.err, "a build of meshgrad with HDF5")) return;
    // What a damaged file does depends on the library's version.
    const bool damaged =
        std::string(part) == "crash of the library" || std::string(part).starts_with("names");
    test::check_one_error(outcome, 1, {input, damaged ? "fix: " : part});
    CHECK_FALSE(fs::exists(output));
  }
}

}  // namespace
}  // namespace meshgrad
