// SPDX-License-Identifier: Apache-2.0
// The order of a curriculum, a function of (seed, position, scores), and the file of scores.
#include <doctest/doctest.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/batch_order.h>
#include <meshgrad/train/learn/run/score_file.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "support.h"
#include "train/graph_case.h"

namespace meshgrad {
namespace {

using test::contains;
using test::message_of;
using test::ScratchDirectory;

constexpr int64_t kLarge = 200, kSmall = 10;  // samples of class 1, and of classes 0 and 2

Config curriculum_keys(int64_t epochs, std::vector<double> percentile = {75, 95},
                       std::vector<double> ratio = {1, 10}) {
  Config config;
  config.run.seed = 5;
  config.train.epochs = epochs;
  config.curriculum.score = CurriculumScore::loss;
  config.curriculum.refresh_epochs = epochs;
  config.curriculum.percentile = std::move(percentile);
  config.curriculum.ratio = std::move(ratio);
  return config;
}

std::vector<int32_t> some_classes() {
  std::vector<int32_t> classes(kLarge, 1);
  for (int i = 0; i < kSmall; ++i) classes.insert(classes.begin() + 20 * i, i % 2 == 0 ? 0 : 2);
  return classes;
}

std::vector<float> random_scores(int64_t samples, uint64_t seed = 1) {
  std::vector<float> scores;
  for (int64_t i = 0; i < samples; ++i)
    scores.push_back(static_cast<float>(uniform(seed, 0, static_cast<uint64_t>(i))));
  return scores;
}

/// Of classes, or without them.
Curriculum scored(const Config& config, std::vector<int32_t> classes, int64_t samples = kLarge + kSmall) {
  Curriculum curriculum(config, samples, std::move(classes));
  curriculum.add_scores(random_scores(samples), "0");
  return curriculum;
}

/// How often an epoch has each sample that it has.
std::map<int64_t, int64_t> counts_of(const Curriculum& curriculum, int64_t epoch) {
  std::map<int64_t, int64_t> counts;
  for (int64_t at = curriculum.begin_of(epoch); at < curriculum.begin_of(epoch + 1); ++at)
    ++counts[curriculum.at(at).sample];
  return counts;
}

/// Of `among`, the samples with the highest scores.
std::set<int64_t> hardest(const std::vector<float>& scores, std::vector<int64_t> among, int64_t count) {
  std::ranges::stable_sort(among, [&](int64_t a, int64_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  return {among.begin(), among.begin() + count};
}

std::vector<int64_t> samples_of_class_1() {
  std::vector<int64_t> samples;
  const std::vector<int32_t> classes = some_classes();
  for (size_t i = 0; i < classes.size(); ++i)
    if (classes[i] == 1) samples.push_back(static_cast<int64_t>(i));
  return samples;
}

}  // namespace

TEST_CASE("a curriculum draws hard samples beside small classes") {
  constexpr int64_t kEpochs = 5;
  const Curriculum curriculum = scored(curriculum_keys(kEpochs), some_classes());
  const std::vector<float> scores = random_scores(kLarge + kSmall);
  // 25 % to 5 % of 200, of which 10 to 100 are asked for.
  const int64_t hard[] = {50, 40, 30, 20, 10}, drawn[] = {10, 33, 30, 20, 10};
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    CAPTURE(epoch);
    const std::set<int64_t> hardest_ones = hardest(scores, samples_of_class_1(), hard[epoch]);
    int64_t small = 0, large = 0;
    for (const auto& [sample, count] : counts_of(curriculum, epoch)) {
      const bool in_large = some_classes()[static_cast<size_t>(sample)] == 1;
      if (in_large) CHECK(hardest_ones.contains(sample));
      if (!in_large) CHECK(count == 1);
      (in_large ? large : small) += count;
    }
    CHECK(small == kSmall);
    CHECK(large == drawn[epoch]);
  }
  CHECK(
      curriculum.describe() ==
      "curriculum: the first epoch has 20 of 210 samples, 10 of the 50 hard ones of class 1 among them; the "
      "last 20 of 210 samples, 10 of the 10 hard ones of class 1 among them");
}

TEST_CASE("a curriculum without classes draws others beside hard") {
  constexpr int64_t kEpochs = 3;
  for (const bool hard_last : {false, true}) {
    CAPTURE(hard_last);
    Config config = curriculum_keys(kEpochs);
    if (hard_last) {
      config.curriculum.percentile = {95, 75};
      config.curriculum.ratio = {10, 1};
    }
    const Curriculum curriculum = scored(config, {}, 100);
    std::vector<int64_t> all(100);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      CAPTURE(epoch);
      const int64_t way = hard_last ? kEpochs - 1 - epoch : epoch;
      const int64_t hard[] = {25, 15, 5}, others[] = {25, 83, 50};  // 15 * 5.5 = 82.5
      const std::set<int64_t> hardest_ones = hardest(random_scores(100), all, hard[way]);
      int64_t drawn = 0;
      const auto counts = counts_of(curriculum, epoch);
      for (const int64_t sample : hardest_ones) CHECK(counts.at(sample) == 1);
      for (const auto& [sample, count] : counts) drawn += hardest_ones.contains(sample) ? 0 : count;
      CHECK(drawn == others[way]);
    }
  }
}

TEST_CASE("a curriculum draws every hard sample in time") {
  // 50 hard samples, 10 an epoch: each once in five epochs.
  const Curriculum steady = scored(curriculum_keys(20, {75, 75}, {1, 1}), some_classes());
  std::map<int64_t, int64_t> drawn;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    for (const auto& [sample, count] : counts_of(steady, epoch))
      if (some_classes()[static_cast<size_t>(sample)] == 1) drawn[sample] += count;
    if (epoch % 5 != 4) continue;
    CHECK(drawn.size() == 50);
    for (const auto& [sample, count] : drawn) CHECK(count == epoch / 5 + 1);
  }
}

TEST_CASE("a curriculum draws what stays hard once a round") {
  constexpr int64_t kEpochs = 60;
  const auto check = [](const Curriculum& curriculum, const std::set<int64_t>& always_drawn, int64_t rounds) {
    REQUIRE(always_drawn.size() >= 5);
    std::map<int64_t, int64_t> drawn;
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      CAPTURE(epoch);
      for (const auto& [sample, count] : counts_of(curriculum, epoch)) drawn[sample] += count;
      int64_t least = kLarge, most = 0;
      for (const int64_t sample : always_drawn) {
        least = std::min(least, drawn[sample]);
        most = std::max(most, drawn[sample]);
      }
      REQUIRE(most <= least + 1);  // in all rounds before, and perhaps in this one
    }
    CHECK(drawn[*always_drawn.begin()] >= rounds);
  };
  const std::vector<float> scores = random_scores(kLarge + kSmall);
  const std::vector<int64_t> large = samples_of_class_1();
  check(scored(curriculum_keys(kEpochs), some_classes()), hardest(scores, large, 10), 50);
  check(scored(curriculum_keys(kEpochs, {95, 75}, {0.2, 1}), some_classes()), hardest(scores, large, 10), 10);

  // Scores that are made anew every 7 epochs.
  Config config = curriculum_keys(kEpochs, {40, 60}, {3, 5});
  config.curriculum.refresh_epochs = 7;
  Curriculum moving(config, kLarge + kSmall, some_classes());
  std::set<int64_t> stay(large.begin(), large.end());
  for (uint64_t refresh = 0; !moving.complete(); ++refresh) {
    std::vector<float> now = random_scores(kLarge + kSmall, 2 + refresh);
    for (size_t i = 0; i < now.size(); ++i) now[i] += 2.0f * scores[i];
    const std::set<int64_t> hard = hardest(now, large, 80);
    std::erase_if(stay, [&](int64_t sample) { return !hard.contains(sample); });
    moving.add_scores(std::move(now), "h");
  }
  check(moving, stay, 20);

  // Without classes it is the easy ones that are drawn.
  std::vector<int64_t> all(kLarge + kSmall);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  std::vector<float> easiest = scores;
  for (float& score : easiest) score = -score;
  check(scored(curriculum_keys(kEpochs, {75, 50}, {0.5, 0.4}), {}), hardest(easiest, all, 105), 10);
}

TEST_CASE("a curriculum is a function of seed, position and scores") {
  const Config config = curriculum_keys(6);
  const Curriculum whole = scored(config, some_classes());
  const int64_t end = whole.begin_of(6);
  std::vector<Curriculum::Drawn> order;
  for (int64_t at = 0; at < end; ++at) order.push_back(whole.at(at));
  for (int64_t at = end - 1; at >= 0; at -= 7) {
    const Curriculum resumed = scored(config, some_classes());
    REQUIRE(resumed.at(at) == order[static_cast<size_t>(at)]);
    REQUIRE(whole.epoch_of(at) < 6);
  }
  CHECK(whole.epoch_of(end) == 6);
  std::set<std::pair<int64_t, uint32_t>> uses;
  std::set<std::pair<int64_t, int64_t>> of_epochs;
  for (int64_t at = 0; at < end; ++at) {
    const Curriculum::Drawn& drawn = order[static_cast<size_t>(at)];
    uses.insert({drawn.sample, drawn.visit});
    of_epochs.insert({drawn.sample, whole.epoch_of(at)});
  }
  CHECK(of_epochs.size() < order.size());  // an epoch may draw a sample twice
  CHECK(uses.size() == order.size());      // each has noise of its own
  const auto differs = [&](const Curriculum& other) {
    int64_t different = 0;
    for (int64_t at = 0; at < end; ++at) different += other.at(at) == order[static_cast<size_t>(at)] ? 0 : 1;
    return different > end / 2;
  };
  Config seeded = config;
  seeded.run.seed = 6;
  CHECK(differs(scored(seeded, some_classes())));
  Curriculum scored_otherwise(config, kLarge + kSmall, some_classes());
  std::vector<float> reversed = random_scores(kLarge + kSmall);
  for (float& score : reversed) score = 1.0f - score;
  scored_otherwise.add_scores(reversed, "0");
  int64_t same = 0;
  for (int64_t at = 0; at < end; ++at) {
    const int64_t sample = order[static_cast<size_t>(at)].sample;
    if (some_classes()[static_cast<size_t>(sample)] == 1) same += scored_otherwise.at(at).sample == sample;
  }
  CHECK(same == 0);
}

TEST_CASE("a curriculum bounds the uses of a sample in a window") {
  for (const std::vector<int32_t>& classes : {some_classes(), std::vector<int32_t>()}) {
    const Curriculum curriculum = scored(curriculum_keys(6, {75, 95}, {0.5, 3}), classes);
    const int64_t end = curriculum.begin_of(6);
    for (const int64_t window : {1, 2, 7, 20, 45}) {
      CAPTURE(window);
      int64_t most = 0;
      for (int64_t begin = 0; begin + window <= end; ++begin) {
        std::map<int64_t, int64_t> uses;
        for (int64_t at = begin; at < begin + window; ++at)
          most = std::max(most, ++uses[curriculum.at(at).sample]);
      }
      CHECK(most <= curriculum.most_uses(window));
      CHECK(most >= curriculum.most_uses(window) / 4);
    }
  }
}

TEST_CASE("a curriculum says until when its scores last") {
  Config config = curriculum_keys(7);
  config.curriculum.refresh_epochs = 3;
  Curriculum curriculum(config, kLarge + kSmall, some_classes());
  for (const int64_t epochs : {0, 3, 6}) {
    CHECK(curriculum.next_epoch() == epochs);
    CHECK(curriculum.known_until() == curriculum.begin_of(epochs));
    CHECK(!curriculum.complete());
    curriculum.add_scores(random_scores(kLarge + kSmall, static_cast<uint64_t>(epochs)), "h");
  }
  CHECK(curriculum.complete());
  CHECK(curriculum.known_until() == curriculum.begin_of(7));
  CHECK(curriculum.hashes() == "h h h");
  for (const int64_t epoch : {2, 3, 0, 6}) {  // in any order
    const auto easy = static_cast<int64_t>(2.0 * (75 + 20 * static_cast<double>(epoch) / 6) + 1e-9);
    const int64_t hard = 200 - easy;
    const std::set<int64_t> hardest_ones = hardest(
        random_scores(kLarge + kSmall, static_cast<uint64_t>(epoch / 3 * 3)), samples_of_class_1(), hard);
    for (const auto& [sample, count] : counts_of(curriculum, epoch))
      if (some_classes()[static_cast<size_t>(sample)] == 1) CHECK(hardest_ones.contains(sample));
  }
  config.curriculum.score = CurriculumScore::model;
  Curriculum once(config, kLarge + kSmall, some_classes());
  once.add_scores(random_scores(kLarge + kSmall), "h");
  CHECK(once.complete());  // that model does not change
}

TEST_CASE("a curriculum without hard samples is refused") {
  CHECK(message_of([] {
          Curriculum(curriculum_keys(5, {75, 100}), 8, {0, 0, 0, 0, 0, 0, 0, 1});
        }) ==
        "[curriculum.percentile] needed a hard sample in every epoch, got 0 of 7 above percentile 100, in "
        "epoch 5; fix: lower curriculum.percentile");
  CHECK(message_of([] {
          Curriculum(curriculum_keys(5), 3, {2, 2, 2});
        }) ==
        "[curriculum.score] needed training samples of two classes or more, got class 2 in all 3; "
        "fix: set "
        "curriculum.score = \"none\", or train on samples of another class, too");
  CHECK(Curriculum(curriculum_keys(5), 1, {}).begin_of(5) == 5);  // the only one is hard
  // All samples are hard, and none is left to be drawn.
  CHECK(Curriculum(curriculum_keys(1, {0, 0}), 5, {}).begin_of(1) == 5);
}

TEST_CASE("scores that are not finite are named") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.curriculum.score = CurriculumScore::loss;
  const Task task = make_task(config, Dataset::open(config.data.path));
  std::vector<float> scores(static_cast<size_t>(task.samples("train").size()), 0.5f);
  const auto refused = [&](std::string_view by) {
    return message_of([&] { check_scores(scores, task, config, by); });
  };
  CHECK(refused("the model of step 3").empty());
  const std::string name(task.dataset().trajectory("train", 1).name());
  const Sample last = task.samples("train").at(std::ssize(scores) - 1);
  REQUIRE(last.trajectory == 1);
  scores.back() = std::nanf("");
  const std::string start = fmt::format(
      "[curriculum.score] needed a finite score of each sample by the model of step 3, got nan of sample {} "
      "(frame {} of {}); fix: ",
      scores.size() - 1, last.frame, name);
  CHECK(refused("the model of step 3") ==
        start + "look for bad values in these samples, or lower optimizer.lr");
  config.precision = DType::f16;
  CHECK(refused("the model of step 3") ==
        start + "set precision = \"bf16\", as f16 ends at 65504, or lower optimizer.lr");
  config.curriculum.score = CurriculumScore::model;
  CHECK(contains(refused("runs/a"), "by runs/a, got nan of "));
  CHECK(contains(refused("runs/a"), "as f16 ends at 65504, or name another curriculum.model"));
  config.precision = DType::f32;
  for (const size_t i : {0, 1, 2}) scores[i] = std::numeric_limits<float>::infinity();
  CHECK(contains(refused("runs/a"),
                 fmt::format("got inf of sample 0 (frame {} of ", task.samples("train").at(0).frame)));
  CHECK(contains(
      refused("runs/a"),
      "), the first of 4; fix: look for bad values in these samples, or name another curriculum.model"));
}

TEST_CASE("files of scores are read back or refused") {
  const ScratchDirectory scratch;
  const std::filesystem::path path = scratch.path / "curriculum" / "scores-000000.safetensors";
  const std::vector<float> scores = random_scores(1000);
  const std::string hash = write_scores(path, scores, "train");
  CHECK(write_scores(path, scores, "train") == hash);
  CHECK(read_scores(path, hash, 1000) == scores);
  const auto refused = [&](const std::string& wanted, int64_t samples) {
    return message_of([&] { read_scores(path, wanted, samples); });
  };
  CHECK(contains(refused(hash, 999), "1000"));
  CHECK(contains(refused("0123456789abcdef", 1000),
                 "needed scores of the hash 0123456789abcdef, as the checkpoint has it, got " + hash));
  std::string bytes = test::read_text(path);
  bytes[bytes.size() - 3] ^= 1;
  test::write_bytes(path, std::as_bytes(std::span(bytes)));
  CHECK(contains(refused(hash, 1000), "needed scores of the hash " + hash));
  bytes.resize(bytes.size() / 2);
  test::write_bytes(path, std::as_bytes(std::span(bytes)));
  CHECK(contains(refused(hash, 1000), "scores-000000.safetensors"));
  std::filesystem::remove(path);
  CHECK(contains(refused(hash, 1000),
                 "got no such file; fix: restore the file, or resume from a checkpoint of an earlier step"));
}

TEST_CASE("keys of a curriculum that mean nothing are refused") {
  const auto refused = [](std::vector<std::string> settings) {
    return message_of([&] { parse_config("", "test", settings); });
  };
  CHECK(refused({"curriculum.score=loss", "train.epochs=5"}).empty());
  CHECK(contains(refused({"curriculum.chunk=5"}),
                 "[curriculum.chunk] needed 500 where curriculum.score = \"none\""));
  CHECK(
      contains(refused({"curriculum.score=loss"}),
               "[train.epochs] needed 1 to 1000000 with a curriculum, which changes over the epochs, got 0"));
  CHECK(contains(refused({"curriculum.score=loss", "train.epochs=5", "train.batch_nodes=100"}),
                 "[train.batch_nodes] needed 0 with a curriculum"));
  CHECK(contains(refused({"curriculum.score=loss", "train.epochs=5", "normalize.mode=online"}),
                 "[curriculum.score] needed \"model\" with normalize.mode = \"online\""));
  CHECK(contains(refused({"curriculum.score=model", "train.epochs=5"}),
                 "[curriculum.model] needed a checkpoint, or the folder of a run"));
  CHECK(contains(refused({"curriculum.score=loss", "curriculum.model=a", "train.epochs=5"}),
                 "[curriculum.model] needed \"\" where curriculum.score = \"loss\""));
  CHECK(contains(refused({"curriculum.score=loss", "curriculum.ratio=1", "train.epochs=5"}),
                 "[curriculum.ratio] needed 2 numbers, of the first epoch and of the last, got [1.0]"));
  CHECK(contains(refused({"curriculum.score=loss", "curriculum.percentile=5,101", "train.epochs=5"}),
                 "[curriculum.percentile] needed a list of at most 2 numbers from 0 to 100"));
}

}  // namespace meshgrad
