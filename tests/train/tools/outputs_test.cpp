// SPDX-License-Identifier: Apache-2.0
// What commands do with files that are there already: their own earlier outputs are replaced, nothing else
// is.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "paths.h"
#include "support.h"
#include "train/fault_case.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::read_text;
using test::run_meshgrad;

constexpr const char* kPage = "needed a new name or a page of meshgrad, got ";

/// The files of a folder by name.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = read_text(entry.path());
  return files;
}

TEST_CASE("a page replaces a page, neither data nor a user's file") {
  const test::FaultFixture f;
  const std::string data = f.config.data.path, page = (f.scratch.path / "a.html").string(),
                    hard = (f.scratch.path / "data.html").string();
  const std::string bytes = read_text(data);
  fs::create_hard_link(data, hard);
  for (const std::string& target : {data, hard})
    test::check_fails({"check", data, "--html", target}, 1,
                      {"[--html " + target + "] ", kPage, "command reads"});
  CHECK(read_text(data) == bytes);
  CHECK(read_text(hard) == bytes);
  std::ofstream(page) << "<!DOCTYPE html><title>mine</title>";
  test::check_fails({"check", data, "--html", page}, 1, {kPage, "a file that is not a page of meshgrad"});
  CHECK(contains(read_text(page), "mine"));
  fs::remove(page);
  for (int i = 0; i < 2; ++i) CHECK(run_meshgrad({"check", data, "--html", page}).code == 0);

  test::train_here(f.config);
  const fs::path run = f.config.run.dir;
  for (const char* name : {"checkpoints/last.safetensors", "config.resolved.toml"}) {
    const std::string before = read_text(run / name);
    test::check_fails({"report", run.string(), "--no-evaluation", "-o", (run / name).string()}, 1, {kPage});
    CHECK(read_text(run / name) == before);
  }
  for (int i = 0; i < 2; ++i)  // over the page of check, then over its own
    CHECK(run_meshgrad({"report", run.string(), "--no-evaluation", "-o", page}).code == 0);
}

TEST_CASE("import replaces a checkpoint by force, never an input") {
  const test::FaultFixture f;
  const fs::path weights = f.scratch.path / "w.safetensors", made = f.scratch.path / "made.safetensors";
  fs::copy_file(test::data_file("oracles/physicsnemo_small.safetensors"), weights);
  const std::string bytes = read_text(weights), config = read_text(f.file);
  const auto import = [&](const std::string& target) {
    return std::vector<std::string>{"import", weights.string(), "--from", "physicsnemo", "--config", f.file,
                                    "-o",     target,           "--force"};
  };
  for (const std::string& target : {weights.string(), f.file, f.config.data.path})
    test::check_fails(import(target), 1,
                      {target + "] needed a new name or a checkpoint of meshgrad", "command reads"});
  CHECK(read_text(weights) == bytes);
  CHECK(read_text(f.file) == config);
  fs::copy_file(weights, made);  // weights of another framework are no checkpoint
  test::check_fails(import(made.string()), 1, {"got a file that is not a checkpoint of meshgrad"});
  fs::remove(made);
  for (int i = 0; i < 2; ++i) CHECK(run_meshgrad(import(made.string())).code == 0);
  std::vector<std::string> unforced = import(made.string());
  unforced.pop_back();
  test::check_fails(unforced, 1, {"got a checkpoint of meshgrad; fix: --force replaces it"});
}

TEST_CASE("a rollout removes a longer one, and no user's file") {
  const test::FaultFixture f;
  test::train_here(f.config);
  const fs::path out = f.scratch.path / "out";
  const auto rollout = [&](const char* steps) {
    return std::vector<std::string>{"rollout", f.config.run.dir, "--steps", steps, "-o", out.string()};
  };
  fs::create_directory(out);
  std::ofstream(out / "notes_step_00001.svg") << "a user's";
  CHECK(run_meshgrad(rollout("11")).code == 0);
  CHECK(fs::exists(out / "frame_00011.vtu"));
  CHECK(fs::exists(out / "velocity_step_00010.svg"));
  CHECK(run_meshgrad(rollout("2")).code == 0);
  const auto files = contents(out);
  CHECK(files.contains("frame_00002.vtu"));
  CHECK_FALSE(files.contains("frame_00003.vtu"));
  CHECK_FALSE(files.contains("velocity_step_00010.svg"));
  CHECK(files.at("notes_step_00001.svg") == "a user's");
  CHECK_FALSE(contains(files.at("rollout.pvd"), "frame_00003"));

  std::ofstream(out / "frame_00001.vtu") << "<VTKFile type=\"UnstructuredGrid\"/>";
  const auto mixed = contents(out);
  test::check_fails(
      rollout("2"), 1,
      {"frame_00001.vtu] needed a new name or a file that meshgrad wrote there", "move that file"});
  CHECK(contents(out) == mixed);
  fs::remove(out / "frame_00001.vtu");
  fs::create_symlink("frame_00000.vtu", out / "frame_00001.vtu");
  test::check_fails(rollout("2"), 1, {"frame_00001.vtu]", "got a symbolic link"});
  CHECK(fs::is_symlink(out / "frame_00001.vtu"));
  fs::remove(out / "frame_00001.vtu");
  CHECK(run_meshgrad(rollout("2")).code == 0);
}

}  // namespace
}  // namespace meshgrad
