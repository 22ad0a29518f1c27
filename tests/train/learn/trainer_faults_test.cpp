// SPDX-License-Identifier: Apache-2.0
// What goes wrong around a run gives one clear error and its exit code, and loses nothing that was saved.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <sys/mount.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "paths.h"
#include "train/fault_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::check_fails;
using test::check_one_error;
using test::checkpoint_bytes;
using test::FaultFixture;

TEST_CASE("a wrong configuration exits 2 and names the key") {
  FaultFixture f;
  check_fails({"train", f.file, "--set", "train.stesp=3"}, 2, {"train.stesp", "did you mean train.steps?"});
  check_fails({"train", f.file, "--set", "train.batch=two"}, 2, {"[train.batch]"});
  check_fails({"train", "/nonexistent.toml"}, 2, {"/nonexistent.toml"});
  check_fails({"train", f.file, "--set", "data.train_split=tarin"}, 2, {"tarin", "train"});
  check_fails({"train", f.file, "--set", "data.valid_split=vaild"}, 2, {"vaild", "valid"});
  check_fails({"train", f.file, "--set", "data.inputs=speed"}, 2, {"speed", "velocity"});
  check_fails({"train", f.file, "--set", "data.path="}, 2, {"[data.path]"});
  check_fails({"train", f.file, "--set", "run.dir=" + f.file + "/run"}, 2, {"[run.dir]"});
  CHECK_FALSE(fs::exists(f.config.run.dir));
}

TEST_CASE("bad data exits 1 and names the file") {
  FaultFixture f;
  check_fails({"train", f.file, "--set", "data.path=/nonexistent.mgd"}, 1, {"/nonexistent.mgd"});
  const std::string bytes = test::read_text(f.config.data.path);
  const std::string damaged = (f.scratch.path / "damaged.mgd").string();
  std::ofstream(damaged, std::ios::binary) << bytes.substr(0, bytes.size() - 1000);
  check_fails({"train", f.file, "--set", "data.path=" + damaged}, 1, {"damaged.mgd", "fix: "});
  std::string flipped = bytes;
  for (size_t at = 200; at < bytes.size() / 2; at += 100) flipped[at] = static_cast<char>(~flipped[at]);
  std::ofstream(damaged, std::ios::binary) << flipped;
  check_fails({"train", f.file, "--set", "data.path=" + damaged}, 1, {"damaged.mgd", "checksum"});
}

TEST_CASE("NaN in the data is refused when it is packed") {
  const test::ScratchDirectory scratch;
  test::write_meta(scratch.path, test::square_meta(3));
  test::SquareRecord record(3);
  record.velocity[13] = std::nanf("");
  test::write_bytes(scratch.path / "train.tfrecord", test::tfrecord_of({test::SquareRecord(3), record}));
  const fs::path output = scratch.path / "bad.mgd";
  check_fails({"convert", scratch.path.string(), "-o", output.string()}, 1,
              {"train.tfrecord: record 1", "velocity", "nan"});
  CHECK_FALSE(fs::exists(output));
}

TEST_CASE("a run is neither overwritten nor resumed as another") {
  FaultFixture f;
  test::train_here(f.config);
  const std::string last = checkpoint_bytes(f.config.run.dir, "last");
  const std::string metrics = test::read_text(fs::path(f.config.run.dir) / "metrics.jsonl");
  check_fails({"train", f.file}, 2, {"[run.dir]", "--resume"});
  check_fails({"train", f.file, "--resume", "--set", "model.width=24"}, 2,
              {"[model.width]", "last.safetensors"});
  check_fails({"train", f.file, "--resume", "--set", "model.blocks=3"}, 2, {"[model.blocks]"});
  check_fails({"train", f.file, "--resume", "--set", "train.batch=1"}, 2, {"[train.batch]"});
  check_fails({"train", f.file, "--resume", "--set", "precision=f64"}, 2, {"[precision]"});
  check_fails({"train", f.file, "--resume", "--set", "data.node_types=8"}, 2, {"[data.node_types]"});
  test::pack_waves(f.scratch.path, 6);
  check_fails({"train", f.file, "--resume"}, 1, {"last.safetensors", "with the fingerprint "});
  test::pack_waves(f.scratch.path);
  CHECK(test::read_text(fs::path(f.config.run.dir) / "metrics.jsonl") == metrics);
  f.check_resumable(last);
}

TEST_CASE("a folder without a run, and a checkpoint that is none") {
  FaultFixture f;
  const std::string empty = (f.scratch.path / "empty").string();
  fs::create_directory(empty);
  for (const std::string& folder : {empty, std::string("/nonexistent")}) {
    check_fails({"evaluate", folder}, 2, {folder, "last.safetensors"});
    check_fails({"rollout", folder}, 2, {folder, "last.safetensors"});
    check_fails({"train", f.file, "--resume", "--run", folder}, 2, {folder, "last.safetensors"});
  }
  CHECK(fs::is_empty(empty));
  test::train_here(f.config);
  const fs::path last = fs::path(f.config.run.dir) / "checkpoints" / "last.safetensors";
  const std::string bytes = test::read_text(last);
  fs::remove(last);
  std::ofstream(last, std::ios::binary) << bytes.substr(0, bytes.size() / 2);
  check_fails({"train", f.file, "--resume"}, 1, {"last.safetensors"});
  check_fails({"evaluate", f.config.run.dir, "--checkpoint", "last"}, 1, {"last.safetensors"});
  const std::string oracle = test::data_file("oracles/mgn_small.safetensors");
  check_fails({"evaluate", f.config.run.dir, "--checkpoint", oracle}, 1,
              {"mgn_small.safetensors", "a checkpoint written by meshgrad train"});
}

TEST_CASE("a device that is not there exits 3") {
  FaultFixture f;
  check_fails({"train", f.file, "--set", "run.device=cuda:97"}, 3, {"cuda", "fix: "});
  const auto machine = nlohmann::json::parse(test::run_meshgrad({"info", "--json"}).out);
  if (machine["default_device"] == "cpu")
    check_fails({"train", f.file, "--set", "run.device=cuda"}, 3, {"cuda", "fix: "});
}

TEST_CASE("too little memory exits 1 and keeps the checkpoint") {
  FaultFixture f;
  test::pack_waves(f.scratch.path, 40, 6);
  f.config.model.width = 64;
  f.config.train.steps = 1;
  test::write_config(f.scratch.path, f.config);
  test::train_here(f.config);
  const std::string last = checkpoint_bytes(f.config.run.dir, "last");
  check_fails({"train", f.file, "--resume", "--set", "memory.limit=20MiB", "--set", "train.steps=3"}, 1,
              {"needed ", "activations", "parameters", "fix: ", "memory.limit"});
  f.check_resumable(last);
}

TEST_CASE("a checkpoint that may not grow exits 1") {
  FaultFixture f;
  test::train_here(f.config);
  const std::string last = checkpoint_bytes(f.config.run.dir, "last");
  const int blocks = static_cast<int>(last.size() / 1024);  // half of what is needed
  check_one_error(test::run_meshgrad_with_file_limit(
                      blocks, {"train", f.file, "--resume", "--quiet", "--set", "train.steps=9"}),
                  1, {".safetensors", "ulimit -f"});
  f.check_resumable(last);
}

/// A file system of 2 MB in memory; only root may have one.
struct SmallDisk {
  fs::path path;
  bool mounted;
  explicit SmallDisk(const fs::path& at) : path(at) {
    fs::create_directories(path);
    mounted = mount("none", path.c_str(), "tmpfs", 0, "size=2m") == 0;
  }
  ~SmallDisk() {
    if (mounted) umount2(path.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
};

TEST_CASE("a full disk exits 1, and the checkpoint before it stays") {
  FaultFixture f;
  const SmallDisk disk(f.scratch.path / "disk");
  if (!disk.mounted) MESSAGE("not root: the disk is a folder, and is not filled");
  f.config.run.dir = (disk.path / "run").string();
  test::write_config(f.scratch.path, f.config);
  test::train_here(f.config);
  const std::string last = checkpoint_bytes(f.config.run.dir, "last");
  REQUIRE(!last.empty());
  if (disk.mounted) {
    const fs::path filler = disk.path / "filler";
    std::ofstream(filler) << std::string(2'000'000, 'x');
    fs::resize_file(filler, fs::file_size(filler) - std::min<size_t>(fs::file_size(filler), 32'768));
    check_fails({"train", f.file, "--resume", "--set", "train.steps=9"}, 1,
                {".safetensors", "No space left on device", "free space"});
    CHECK(fs::remove(filler));
  }
  f.check_resumable(last);
}

TEST_CASE("a run that diverges exits 1 and keeps the checkpoint") {
  FaultFixture f;
  f.config.optimizer.name = OptimizerKind::sgd;
  test::write_config(f.scratch.path, f.config);
  test::train_here(f.config);
  const std::string last = checkpoint_bytes(f.config.run.dir, "last");
  std::vector<std::string> arguments{"train", f.file, "--resume"};
  for (const char* setting : {"optimizer.lr=1000", "schedule.name=constant", "train.clip_norm=0",
                              "train.steps=500", "train.checkpoint_every=0", "train.validate_every=0"}) {
    arguments.emplace_back("--set");
    arguments.emplace_back(setting);
  }
  check_fails(arguments, 1, {"[step ", "finite", "optimizer.lr"});
  f.check_resumable(last);
}

}  // namespace
}  // namespace meshgrad
