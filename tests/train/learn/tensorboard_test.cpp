// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/tfrecord.h>
#include <meshgrad/train/learn/run/environment.h>
#include <meshgrad/train/learn/run/metrics_log.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "train/scratch_directory.h"
#include "train/small_run.h"

using namespace meshgrad;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;

namespace {

/// The fields of a protocol buffer message by key (8 times the number plus the wire type), each as its raw
/// bytes, varints as eight.
std::multimap<std::uint64_t, std::string> fields_of(const std::string& message) {
  std::multimap<std::uint64_t, std::string> fields;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < message.size()) {
    const std::uint64_t key = varint();
    std::string value(8, '\0');
    if ((key & 7) == 0) {
      const std::uint64_t number = varint();
      std::memcpy(value.data(), &number, 8);
    } else {
      const std::size_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint();
      REQUIRE(at + size <= message.size());
      value = message.substr(at, size);
      at += size;
    }
    fields.emplace(key, value);
  }
  return fields;
}

template <class T>
T number(const std::string& bytes) {
  T value;
  REQUIRE(bytes.size() == sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  const auto bytes = std::as_bytes(std::span(file));
  for (std::size_t offset = 0; offset < bytes.size();) {
    const auto record = read_record(bytes, offset, "events");
    records.emplace_back(reinterpret_cast<const char*>(record.data()), record.size());
  }
  return records;
}

struct TaggedStep {
  std::int64_t step;
  std::string tag;
  auto operator<=>(const TaggedStep&) const = default;
};

/// Every value in all event files of a folder, in order.
std::map<TaggedStep, std::vector<float>> values_in(const std::filesystem::path& folder) {
  std::map<TaggedStep, std::vector<float>> values;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") continue;
    for (const std::string& record : records_of(read_text(entry.path()))) {
      const auto event = fields_of(record);
      if (!event.contains(16)) continue;
      for (const auto& [field, value] : fields_of(event.find(42)->second)) {
        const auto pair = fields_of(value);
        values[{number<std::int64_t>(event.find(16)->second), pair.find(10)->second}].push_back(
            number<float>(pair.find(21)->second));
      }
    }
  }
  return values;
}

}  // namespace

TEST_CASE("an event file decodes to the scalars that were written") {
  const ScratchDirectory scratch;
  double now = 1700000000.5;
  TensorboardWriter writer(scratch.path / "tb", [&] { return now; });
  now += 1;
  const std::pair<std::string, double> values[] = {{"loss/train", 0.25}, {"lr", 1e-4}};
  writer.scalars(300, values);
  const std::filesystem::path path = std::filesystem::directory_iterator(scratch.path / "tb")->path();
  CHECK(path.filename().string().starts_with("events.out.tfevents.1700000000."));
  const auto records = records_of(read_text(path));  // readable while the writer lives
  REQUIRE(records.size() == 2);
  const auto header = fields_of(records[0]);
  CHECK(number<double>(header.find(9)->second) == 1700000000.5);
  CHECK(header.find(26)->second == "brain.Event:2");
  const auto event = fields_of(records[1]);
  CHECK(number<double>(event.find(9)->second) == 1700000001.5);
  CHECK(number<std::int64_t>(event.find(16)->second) == 300);
  const auto summary = fields_of(event.find(42)->second);
  REQUIRE(summary.size() == 2);
  std::map<std::string, float> decoded;
  for (const auto& [field, value] : summary) {
    CHECK(field == 10);
    const auto pair = fields_of(value);
    decoded[pair.find(10)->second] = number<float>(pair.find(21)->second);
  }
  CHECK(decoded == std::map<std::string, float>{{"loss/train", 0.25F}, {"lr", 1e-4F}});
}

TEST_CASE("a second writer within a second has a file of its own") {
  const ScratchDirectory scratch;
  const std::pair<std::string, double> loss[] = {{"loss", 0.5}};
  for (const std::int64_t step : {1, 2})
    TensorboardWriter(scratch.path / "tb", [] { return 7.0; }).scalars(step, loss);
  CHECK(values_in(scratch.path / "tb").size() == 2);
}

TEST_CASE("event files that cannot be written are refused") {
  const ScratchDirectory scratch;
  std::ofstream(scratch.path / "plain") << "x";
  CHECK_THROWS_WITH_AS(TensorboardWriter(scratch.path / "plain" / "tb"), doctest::Contains("plain"),
                       DataError);
}

TEST_CASE("event files are cut to what a resumed run has done") {
  const ScratchDirectory scratch;
  const std::filesystem::path folder = scratch.path / "tb";
  {
    TensorboardWriter writer(folder, [] { return 1.0; });
    for (const std::int64_t step : {1, 10, 20, 30}) {
      const std::pair<std::string, double> loss[] = {{"loss", 0.5}}, valid[] = {{"valid/loss", 0.25}};
      writer.scalars(step, loss);
      writer.scalars(step, valid);
    }
  }
  const std::filesystem::path file = std::filesystem::directory_iterator(folder)->path();
  std::ofstream(file, std::ios::app | std::ios::binary) << "half a record";
  std::ofstream(folder / "notes.txt") << "half a record";
  const std::string whole = read_text(file);
  cut_events(folder, 30);
  CHECK(read_text(file) == whole.substr(0, whole.size() - 13));
  cut_events(folder, 20);
  CHECK(values_in(folder).rbegin()->first == TaggedStep{20, "valid/loss"});
  cut_events(folder, 20, "valid/loss");
  CHECK(values_in(folder).rbegin()->first == TaggedStep{20, "loss"});
  cut_events(folder, 0);
  CHECK(values_in(folder).empty());
  CHECK(records_of(read_text(file)).size() == 1);
  CHECK(read_text(folder / "notes.txt") == "half a record");
  cut_events(scratch.path / "none", 3);
}

TEST_CASE("a resumed run writes no event twice") {
  const ScratchDirectory scratch;
  const Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  const std::filesystem::path run = config.run.dir;
  test::train_here(config);
  const auto before = values_in(run / "tb");
  Runtime runtime({.device = {}, .threads = 1, .allocator = config.memory, .log = {}, .memory = {}});
  TrainOptions options;
  options.resume = true;  // as after a kill at any step after 20
  options.checkpoint = run / "checkpoints/step-000000020.safetensors";
  train(runtime, config, options);
  const auto after = values_in(run / "tb");
  CHECK(after.size() == before.size());
  for (const auto& [at, values] : after) {
    CAPTURE(at.step);
    CAPTURE(at.tag);
    CHECK(values.size() == 1);
  }
  CHECK(after.at({30, "train/effective_batch"}).front() == 6.0f);  // train.batch times train.accumulate
  CHECK(after.at({30, "memory/peak_bytes"}).front() > 1e5f);
  CHECK(after.at({30, "time/run_seconds"}).front() > 0.0f);
  CHECK(after.at({20, "train/loss"}) == before.at({20, "train/loss"}));
  double earlier = 0;
  for (const auto& row : read_metrics(run / "metrics.jsonl")) {
    if (!row.contains("run_seconds")) continue;
    CHECK(row.at("run_seconds") >= earlier);  // the time of the process before counts
    earlier = row.at("run_seconds");
  }
}

TEST_CASE("the environment is JSON with the facts that explain a run") {
  const ScratchDirectory scratch;
  const std::vector<std::string> command{"meshgrad", "train", "a \"b\".toml", "\xff"};
  write_environment(scratch.path / "environment.json", command, {{"device", "cpu"}});
  const auto facts = nlohmann::json::parse(read_text(scratch.path / "environment.json"));
  CHECK(facts.at("command").size() == 4);
  CHECK(facts.at("command").at(2) == "a \"b\".toml");
  CHECK(facts.at("extra").at("device") == "cpu");
  CHECK(facts.at("machine").at("version").is_string());
  CHECK(facts.at("memory").at("total_bytes").get<std::uint64_t>() > (1u << 20));
  CHECK(facts.at("host").at("name").is_string());
  const std::string time = facts.at("time");
  CHECK(time.size() == 20);
  CHECK(time.substr(0, 2) == "20");
  CHECK(time.back() == 'Z');
  for (const char* key : {"directory", "commit", "cpu_flags", "cgroup", "variables"})
    CHECK(facts.contains(key));
}
