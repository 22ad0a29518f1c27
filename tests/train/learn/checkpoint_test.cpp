// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are damaged, missing, or of another run.
#include <doctest/doctest.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>

#include <map>
#include <nlohmann/json.hpp>

#include "train/fault_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::check_fails;
using test::FaultFixture;
using test::read_text;

void write_text(const fs::path& path, const std::string& bytes) {
  fs::remove(path);  // other links to the file keep its bytes
  std::ofstream(path, std::ios::binary) << bytes;
}

fs::path checkpoint(const Config& config, const std::string& name) {
  return fs::path(config.run.dir) / "checkpoints" / (name + ".safetensors");
}

/// Rewrites the metadata of a checkpoint, with a checksum that fits or, for "", none; some under other names.
void change_metadata(const fs::path& path, const std::map<std::string, std::string>& changes,
                     const std::map<std::string, std::string>& renamed = {}) {
  const fs::path changed = path.string() + ".changed";
  {
    const SafetensorsFile file(path);
    std::map<std::string, std::string> metadata = file.view().metadata;
    for (const auto& [key, value] : changes) metadata[key] = value;
    for (const auto& [key, other] : renamed) {
      if (!metadata.contains(key)) continue;
      metadata[other] = metadata[key];
      metadata.erase(key);
    }
    if (metadata["checksum"].empty()) {
      metadata.erase("checksum");
    } else {
      metadata["checksum"] = checkpoint_checksum(file.view().tensors, metadata);
    }
    write_safetensors(changed, file.view().tensors, metadata);
  }
  fs::rename(changed, path);
}

TEST_CASE("a flipped bit anywhere in a checkpoint is found") {
  FaultFixture f;
  test::train_here(f.config);
  const fs::path path = checkpoint(f.config, "last");
  const std::string good = read_text(path);
  int taken = 0;
  for (size_t i = 0; i < 200; ++i) {
    std::string bytes = good;
    // Spread over header and data; blanks that pad the header carry nothing.
    const size_t at = i * (good.size() - 1) / 199;
    if (bytes[at] == ' ') continue;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (i % 8)));
    write_text(path, bytes);
    try {
      open_checkpoint(path);
      ++taken;
      CAPTURE(at);
      CHECK(taken == 0);
    } catch (const DataError& error) {
      CHECK(test::contains(error.what(), "last.safetensors"));
    }
  }
  write_text(path, good);
  CHECK_NOTHROW(open_checkpoint(path));
}

/// The metadata as formats 1 and 2 named it.
void give_earlier_names(const fs::path& path, const std::string& format) {
  change_metadata(path, {{"format", format}},
                  {{"window_batches", "micro"},
                   {"normalizer_samples", "learned"},
                   {"skipped_steps", "skipped"},
                   {"consecutive_skips", "skipped_in_a_row"},
                   {"non_finite_losses", "bad_losses"},
                   {"last_skipped_step", "bad_window"},
                   {"last_skipped_scale", "bad_scale"},
                   {"steps_at_loss_scale", "clean_steps"},
                   {"first_batch_gradient_square", "first_square"}});
}

TEST_CASE("checkpoints of earlier formats still load") {
  FaultFixture f;
  test::train_here(f.config);
  const fs::path path = checkpoint(f.config, "last");
  change_metadata(path, {{"checksum", ""}});
  check_fails({"train", f.file, "--resume", "--checkpoint", "last"}, 1, {"last.safetensors", "checksum"});
  give_earlier_names(path, "meshgrad checkpoint 1");
  f.check_resumable(read_text(path));
}

TEST_CASE("a run resumed from an earlier format has the same bits") {
  FaultFixture f;
  f.config.precision = DType::f16;
  f.config.train.batch = 1;
  f.config.train.accumulate = 2;
  f.config.train.steps = 6;
  f.config.train.validate_every = 0;
  f.config.loss_scale.rule.initial = f.config.loss_scale.rule.cap;  // so that steps are skipped

  int64_t asked = 0;  // after each batch
  const RunState stopped = test::train_here(f.config, false, [&] { return ++asked == 7; }).state;
  CHECK(stopped.micro == 1);
  CHECK(stopped.optimizer.skipped > 0);
  const fs::path path = checkpoint(f.config, "last");
  const std::string now = read_text(path);
  give_earlier_names(path, "meshgrad checkpoint 2");
  CHECK(read_text(path) != now);
  test::train_here(f.config, true);
  const std::string from_earlier = read_text(path);
  write_text(path, now);
  test::train_here(f.config, true);
  CHECK(read_text(path) == from_earlier);
  write_text(path, now);
  change_metadata(path, {}, {{"window_batches", "micro"}});  // no format has both
  CHECK_THROWS_WITH_AS(test::train_here(f.config, true), doctest::Contains("window_batches"), DataError);
}

TEST_CASE("numbers that no run could have written are refused") {
  FaultFixture f;
  test::train_here(f.config);
  const fs::path path = checkpoint(f.config, "last");
  const std::string good = read_text(path);
  const std::pair<const char*, const char*> cases[] = {{"step", "-1"},
                                                       {"step", "9223372036854775807"},
                                                       {"step", "nan"},
                                                       {"step", "1e300"},
                                                       {"window_batches", "-1"},
                                                       {"window_batches", "3"},
                                                       {"normalizer_samples", "-5"},
                                                       {"optimizer_steps", "-1"},
                                                       {"optimizer_steps", "5"},
                                                       {"skipped_steps", "-1"},
                                                       {"consecutive_skips", "9"},
                                                       {"non_finite_losses", "-1"},
                                                       {"last_skipped_step", "-2"},
                                                       {"loss_count", "-1"},
                                                       {"best_step", "5"},
                                                       {"best_valid_loss", "nan"},
                                                       {"best_valid_loss", "inf"},
                                                       {"loss_sum", "nan"},
                                                       {"data_fingerprint", "x"}};
  for (const auto& [key, value] : cases) {
    CAPTURE(key);
    CAPTURE(value);
    write_text(path, good);
    change_metadata(path, {{key, value}});
    try {
      test::train_here(f.config, true);
      CHECK(false);
    } catch (const DataError& error) {
      CHECK(test::contains(error.what(), key));
      CHECK(test::contains(error.what(), "last.safetensors"));
    }
  }
  write_text(path, good);
  change_metadata(path, {{"non_finite_losses", "1"}});  // but no step that was skipped for it
  CHECK(test::contains(test::message_of([&] { test::train_here(f.config, true); }),
                       "last_skipped_step] needed"));
}

TEST_CASE("a damaged last checkpoint names the newest intact one") {
  FaultFixture f;
  f.config.train.keep_checkpoints = 2;
  f.config.train.steps = 6;
  test::write_config(f.scratch.path, f.config);
  test::train_here(f.config);
  const std::string last = read_text(checkpoint(f.config, "last"));
  // The newest numbered one is the same file as last.
  write_text(checkpoint(f.config, "step-000000006"), last.substr(0, last.size() - 1));
  const std::string intact = checkpoint(f.config, "step-000000004").string();
  // Validation may have been best at step 6.
  fs::remove(checkpoint(f.config, "best"));
  const std::vector<std::string> parts = {"last.safetensors", "step 4",
                                          "meshgrad train " + f.file + " --resume --checkpoint " + intact};
  std::string flipped = last;
  flipped[flipped.size() / 2] ^= 16;
  write_text(checkpoint(f.config, "last"), flipped);
  check_fails({"train", f.file, "--resume"}, 1, parts);
  fs::remove(checkpoint(f.config, "last"));
  check_fails({"train", f.file, "--resume"}, 1, parts);
  check_fails({"train", f.file, "--checkpoint", intact}, 2, {"--resume"});

  const test::Outcome outcome = test::run_meshgrad({"train", f.file, "--resume", "--checkpoint", intact});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(test::contains(outcome.err, "at step 4"));
  CHECK(read_text(checkpoint(f.config, "last")) == last);
}

TEST_CASE("a new run refuses a folder with a run's files") {
  FaultFixture f;
  test::train_here(f.config);
  const fs::path metrics = fs::path(f.config.run.dir) / "metrics.jsonl";
  const std::string lines = read_text(metrics);
  fs::remove(checkpoint(f.config, "last"));
  check_fails({"train", f.file}, 2, {"[run.dir]", "checkpoints/", "another run.dir"});
  for (const auto& entry : fs::directory_iterator(fs::path(f.config.run.dir) / "checkpoints"))
    if (entry.path() != checkpoint(f.config, "best")) fs::remove(entry.path());
  check_fails({"train", f.file}, 2, {"best.safetensors"});
  CHECK(read_text(metrics) == lines);
  fs::remove(checkpoint(f.config, "best"));
  check_fails({"train", f.file, "--set", "run.seed=4"}, 2, {"metrics.jsonl"});
  CHECK(read_text(metrics) == lines);
  // The same run may start again: it ended before its first checkpoint.
  CHECK(test::run_meshgrad({"train", f.file}).code == 0);
}

TEST_CASE("a new run refuses a folder with a user's files") {
  FaultFixture f;
  const fs::path run = f.config.run.dir;
  for (const char* name : {"environment.json", "config.resolved.toml", "loss.svg"}) {
    fs::create_directories(run);
    write_text(run / name, "a user's");
    for (int i = 0; i < 2; ++i)
      check_fails({"train", f.file}, 1, {name, "] needed a new name, got a regular"});
    CHECK(read_text(run / name) == "a user's");
    fs::remove_all(run);
  }
  test::train_here(f.config);
  write_text(f.scratch.path / "notes.txt", "a user's");
  fs::remove(run / "log.txt");
  fs::create_symlink(f.scratch.path / "notes.txt", run / "log.txt");
  check_fails({"train", f.file, "--resume"}, 1, {"log.txt", "got a symbolic link"});
  CHECK(read_text(f.scratch.path / "notes.txt") == "a user's");
}

TEST_CASE("numbered checkpoints of later steps stay") {
  FaultFixture f;
  f.config.train.keep_checkpoints = 1;
  f.config.train.steps = 2;
  test::train_here(f.config);
  const fs::path later = checkpoint(f.config, "step-000000009");
  fs::copy_file(checkpoint(f.config, "last"), later);
  f.config.train.steps = 4;
  test::train_here(f.config, true);
  CHECK(fs::exists(later));
  CHECK(fs::exists(checkpoint(f.config, "step-000000004")));
  CHECK_FALSE(fs::exists(checkpoint(f.config, "step-000000002")));
}

TEST_CASE("the warm-up of online normalisers belongs to the run") {
  FaultFixture f;
  f.config.normalize.mode = NormalizeMode::online;
  f.config.normalize.warmup_steps = 1;
  test::write_config(f.scratch.path, f.config);
  test::train_here(f.config);
  check_fails({"train", f.file, "--resume", "--set", "normalize.warmup_steps=3"}, 2,
              {"[normalize.warmup_steps]"});
}

TEST_CASE("a resumed run says which lines of its metrics it left out") {
  FaultFixture f;
  test::train_here(f.config);
  const fs::path metrics = fs::path(f.config.run.dir) / "metrics.jsonl";
  const std::string lines = read_text(metrics);
  write_text(metrics, "# note\n" + lines);
  const test::Outcome outcome = test::run_meshgrad({"train", f.file, "--resume", "--set", "train.steps=6"});
  CHECK(outcome.code == 0);
  CHECK(test::contains(outcome.err, "1 damaged line"));
  CHECK(read_text(metrics).starts_with(lines));
  const std::string first = lines.substr(0, lines.find('\n', lines.find('\n') + 1) + 1);  // of steps 0 and 1
  write_text(metrics, first);                                                             // a loss of power
  const test::Outcome shorter = test::run_meshgrad({"train", f.file, "--resume", "--set", "train.steps=8"});
  CHECK(shorter.code == 0);
  CHECK_MESSAGE(test::contains(shorter.err, "metrics.jsonl ends at step 1, before the checkpoint of step 6"),
                shorter.err);
  CHECK(read_text(metrics).starts_with(first));
}

}  // namespace
}  // namespace meshgrad
