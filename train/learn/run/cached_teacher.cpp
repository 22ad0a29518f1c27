// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/engine/span.h>
#include <meshgrad/train/learn/run/cached_teacher.h>
#include <meshgrad/train/learn/run/load_teacher.h>
#include <meshgrad/train/learn/run/validation.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/learn/task/largest_batch.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace meshgrad {
namespace {

using Clock = std::chrono::steady_clock;
using Tell = std::function<void(std::string, RunEvent::Fields)>;

/// Rows of a prediction of a sample of this trajectory.
int64_t prediction_rows(const Task& task, const std::string& split, int64_t trajectory) {
  return task.sizes().pool ? 1 : task.shape(split, {Sample{.trajectory = trajectory}}).nodes;
}

/// Without what it is of.
CachedSplit cached_split(const Config& config, const Task& task) {
  const std::string& split = config.data.train_split;
  CachedSplit cached{.teacher = {},
                     .data = 0,
                     .split = split,
                     .dtype = config.precision,
                     .outputs = task.sizes().outputs,
                     .samples = task.samples(split)};
  for (int64_t i = 0; i + 1 < std::ssize(cached.samples.starts); ++i)
    cached.add(prediction_rows(task, split, i));
  return cached;
}

/// The file while it is written, of rank 0.
class CacheFile {
 public:
  CacheFile(Runtime& runtime, const Config& config, const Task& task, const CachedSplit& split,
            const Tell& tell)
      : runtime_(runtime),
        config_(config),
        task_(task),
        plain_(task.for_validation()),
        split_(split),
        tell_(tell) {}

  /// Goes on: by a batch, or some time that is waited. True: the file is there.
  bool advance();

 private:
  bool begin();
  void plan_batches();
  void add_batch();
  void finish();
  void check_finite(const Tensor& rows, const Batch& batch, const std::vector<Sample>& samples) const;
  void tell(std::string text) const {
    tell_(std::move(text), {{"file", config_.distill.cache}, {"samples", split_.samples.size()}});
  }

  Runtime& runtime_;
  const Config& config_;
  const Task& task_;
  const Task plain_;
  const CachedSplit& split_;
  const Tell& tell_;
  std::optional<TeacherCacheWriter> file_;
  std::shared_ptr<const Teacher> teacher_;  // with its model
  BatchShape room_;
  std::vector<std::vector<Sample>> batches_;  // of samples before planned_
  size_t next_ = 0;                           // of these
  int64_t planned_ = 0, written_ = 0;         // samples
  bool waits_ = false;
  Clock::time_point begin_, told_;
};

bool CacheFile::advance() {
  if (!file_) return begin();
  if (written_ < split_.samples.size()) {
    add_batch();
    return false;
  }
  finish();
  return true;
}

bool CacheFile::begin() {
  constexpr std::chrono::milliseconds kPause{50};
  const std::string& path = config_.distill.cache;
  if (path_exists(path)) return true;
  if (config_.ranks.partition != MeshPartition::none || config_.ranks.parts_in_turn > 1) {
    throw config_error("distill.cache",
                       "a file that is there where meshes are cut, as whole ones are computed to write it",
                       fmt::format("{}, which is not there", path),
                       "write it in a run without ranks.partition and ranks.parts_in_turn");
  }
  std::optional<TeacherCacheWriter> file = TeacherCacheWriter::begin(path, split_);
  if (!file) {
    if (!std::exchange(waits_, true)) tell(fmt::format("waits for {}, which another process writes", path));
    std::this_thread::sleep_for(kPause);
    return false;
  }
  if (path_exists(path)) return true;  // by now
  file_ = std::move(file);
  Config running = config_;
  running.distill.cache.clear();
  teacher_ = load_teacher(runtime_, running, task_);
  room_ = largest_batch(config_, plain_);
  tell(fmt::format("writes the teacher's predictions of {} samples to {}, {:.1f} MiB", split_.samples.size(),
                   path, mebibytes(split_.bytes())));
  begin_ = told_ = Clock::now();
  return false;
}

/// Of the next samples: their shapes may take a search for world edges each.
void CacheFile::plan_batches() {
  constexpr int64_t kAtOnce = 256;
  std::vector<Sample> samples;
  for (; std::ssize(samples) < kAtOnce && planned_ < split_.samples.size(); ++planned_)
    samples.push_back(split_.samples.at(planned_));
  batches_ = batches_within(room_, plain_, split_.split, samples);
  next_ = 0;
}

/// In the teacher's own units, so that its inputs are not converted.
void CacheFile::add_batch() {
  constexpr std::chrono::seconds kBetweenLines{10};
  const MemoryScope scope(runtime_.allocator(), "teacher");
  const Span span("teacher");
  if (next_ == batches_.size()) plan_batches();
  const std::vector<Sample>& samples = batches_[next_++];
  Normalizers normalizers = teacher_->normalizers();
  const Batch batch =
      training_batch(plain_, runtime_, config_.precision, split_.split, samples, {}, normalizers);
  Tape tape(runtime_, Tape::Mode::evaluate);
  const Tensor rows =
      to_host(forward(teacher_->model(), tape, batch.graph).front().value(), runtime_.stream());
  check_finite(rows, batch, samples);
  file_->add({static_cast<const std::byte*>(rows.raw()), static_cast<size_t>(rows.bytes())});
  written_ += std::ssize(samples);
  if (Clock::now() - told_ < kBetweenLines) return;
  told_ = Clock::now();
  tell(fmt::format("the teacher has predicted {} of {} samples", written_, split_.samples.size()));
}

void CacheFile::finish() {
  task_.dataset().check_unchanged();
  file_->finish();
  file_.reset();
  teacher_.reset();
  runtime_.allocator().release_cached();
  tell(fmt::format("wrote {} in {:.1f} s", config_.distill.cache,
                   std::chrono::duration<double>(Clock::now() - begin_).count()));
}

/// Rows that no loss counts may hold anything.
void CacheFile::check_finite(const Tensor& rows, const Batch& batch,
                             const std::vector<Sample>& samples) const {
  const std::vector<double> values = values_of(rows);
  const auto finite = [](double value) { return std::isfinite(value); };
  if (std::ranges::all_of(values, finite)) return;
  const Tensor mask = to_host(batch.tensor("mask"), runtime_.stream());
  const auto width = static_cast<size_t>(split_.outputs);
  size_t row = 0;
  for (const Sample& sample : samples) {
    const size_t end = row + static_cast<size_t>(prediction_rows(plain_, split_.split, sample.trajectory));
    for (const size_t first = row; row < end; ++row) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * width);
      const auto found = std::find_if_not(begin, begin + static_cast<std::ptrdiff_t>(width), finite);
      if (mask.data<uint8_t>()[row] == 0 || found == begin + static_cast<std::ptrdiff_t>(width)) continue;
      const std::string_view wider = wider_range_fix(config_.precision);
      throw data_error(
          fmt::format("{}: {}", config_.data.path,
                      frame_name(task_.dataset().trajectory(split_.split, sample.trajectory), sample.frame)),
          fmt::format("finite predictions of the teacher {}", config_.distill.teacher),
          fmt::format("{} in row {}, column {}", std::isnan(*found) ? "nan" : fmt::format("{}", *found),
                      row - first, found - begin),
          wider.empty() ? "look for bad values in that sample, or name another teacher" : wider);
    }
  }
}

}  // namespace

std::shared_ptr<const TeacherCache> open_teacher_cache(Runtime& runtime, Ranks& ranks, const Config& config,
                                                       const Task& task, const std::function<bool()>& stop,
                                                       const Tell& tell) {
  constexpr const char* kOperation = "distill.cache";
  CachedSplit split = cached_split(config, task);
  split.teacher = task.teacher()->hash();
  split.data = task.dataset().fingerprint();
  CacheFile file(runtime, config, task, split, tell);
  for (uint8_t there = 0; there == 0;) {
    if (agree(ranks, stop && stop(), kOperation)) return nullptr;
    if (ranks.first()) there = file.advance() ? 1 : 0;
    broadcast(ranks, std::as_writable_bytes(std::span(&there, 1)), 0, kOperation);
  }
  return std::make_shared<const TeacherCache>(config.distill.cache, split);
}

int64_t teacher_cache_bytes(const Config& config, const Task& task) {
  return cached_split(config, task).bytes();
}

}  // namespace meshgrad
