// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/run/batch_loader.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace meshgrad {
namespace {

/// On a GPU, prefetching hides variations of the time that writing a batch takes; on average that must be
/// less than the step.
size_t prefetch_depth(const Runtime& runtime) { return runtime.stream().on_gpu() ? 2 : 0; }

}  // namespace

NoiseOptions noise_of(const Config& config) {
  return {config.train.noise, config.train.gamma, static_cast<uint64_t>(config.run.seed)};
}

BatchLoader::BatchLoader(Runtime& runtime, const Config& config, const Task& task)
    : config_(config),
      task_(task),
      noise_(noise_of(config)),
      sampler_(task, config.data.train_split, static_cast<uint64_t>(config.run.seed)),
      accumulate_(config.train.accumulate),
      sample_limit_(config.train.epochs > 0 ? config.train.epochs * sampler_.samples()
                                            : std::numeric_limits<int64_t>::max()),
      total_steps_(config.train.epochs > 0
                       ? (sample_limit_ - 1) / (config.train.batch * config.train.accumulate) + 1
                       : config.train.steps),
      depth_(prefetch_depth(runtime)),
      uploader_(
          runtime, depth_ + 2,
          task.layout(largest_batch(config, task.dataset()), config.precision, BatchLayout::Sizes::capacity)
              .bytes()) {}

BatchLoader::~BatchLoader() {
  if (!worker_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

int64_t BatchLoader::samples_until(int64_t step) const {
  return std::min(sample_limit_, step * accumulate_ * config_.train.batch);
}

/// Into a list that is reused, so that a steady-state step makes no heap allocation.
void BatchLoader::list_samples(const BatchPosition& at, std::vector<Sample>& samples) const {
  samples.clear();
  const int64_t first = number_of(at) * config_.train.batch;
  const int64_t end = std::min(first + config_.train.batch, sample_limit_);
  for (int64_t position = first; position < end; ++position) samples.push_back(sampler_.at(position));
}

int64_t BatchLoader::window_weight(int64_t step) {
  const auto known = std::find_if(window_weights_.begin(), window_weights_.end(),
                                  [&](const auto& window) { return window.first == step; });
  if (known != window_weights_.end()) return known->second;
  int64_t weight = 0;
  for (int64_t micro = 0; micro < accumulate_; ++micro) {
    list_samples({step, micro}, later_);
    weight += task_.loss_weight(config_.data.train_split, later_);
  }
  if (weight == 0) {
    throw data_error(config_.data.path, "nodes of the types in data.predicted_types", "a batch without any",
                     "set data.predicted_types to types that occur; see meshgrad info " + config_.data.path);
  }
  const int64_t oldest = step - static_cast<int64_t>(depth_) - 1;
  std::erase_if(window_weights_, [&](const auto& window) { return window.first < oldest; });
  return window_weights_.emplace_back(step, weight).second;
}

BatchLoader::Loaded BatchLoader::stage(const std::vector<Sample>& samples, Normalizing normalizing,
                                       const StepCache& cache) {
  const BatchShape shape = task_.shape(config_.data.train_split, samples);
  const BatchLayout layout = normalizing == Normalizing::observe
                                 ? task_.layout(shape, config_.precision, BatchLayout::Sizes::exact)
                                 : cache.layout(shape);
  return {static_cast<int64_t>(samples.size()), layout, uploader_.stage(layout.bytes())};
}

void BatchLoader::write(const Loaded& loaded, const std::vector<Sample>& samples, double weight,
                        Normalizing normalizing, Normalizers& normalizers, SampleScratch& scratch) const {
  const Batch batch = loaded.layout.batch(loaded.memory);
  task_.write(batch, config_.data.train_split, samples, noise_, normalizers,
              normalizing != Normalizing::fixed, scratch);
  *batch.tensor(kWindowWeight).data<double>() = weight;
}

BatchLoader::Loaded BatchLoader::load(const BatchPosition& at, Normalizing normalizing,
                                      Normalizers& normalizers, const StepCache& cache) {
  const int64_t number = number_of(at);
  const int64_t pass = number * config_.train.batch / sampler_.samples();
  if (config_.data.verify == DataVerify::epoch && pass != std::exchange(pass_, pass))
    task_.dataset().verify_again();
  const bool prefetches = depth_ > 0 && normalizing == Normalizing::fixed;
  const BatchPosition ahead = position_of(number + static_cast<int64_t>(depth_) + 1);
  if (ahead.step < total_steps_) {
    list_samples(ahead, later_);
    for (const Sample& sample : later_)
      task_.dataset().read_ahead(config_.data.train_split, sample.trajectory);
  }
  if (prefetches) prefetch_behind(number, normalizers, cache);
  list_samples(at, samples_);
  if (samples_.empty()) return {0, task_.layout({}, config_.precision, BatchLayout::Sizes::exact), nullptr};
  const auto weight = static_cast<double>(window_weight(at.step));
  const auto begin = std::chrono::steady_clock::now();
  Loaded loaded = prefetches ? take_prefetched(number) : stage(samples_, normalizing, cache);
  if (!prefetches) write(loaded, samples_, weight, normalizing, normalizers, scratch_);
  data_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return loaded;
}

/// Hands batch `number` and the next ones to the worker.
void BatchLoader::prefetch_behind(int64_t number, Normalizers& normalizers, const StepCache& cache) {
  next_number_ = std::max(next_number_, number);
  for (; next_number_ <= number + static_cast<int64_t>(depth_); ++next_number_) {
    const BatchPosition at = position_of(next_number_);
    if (at.step >= total_steps_) return;
    list_samples(at, later_);
    if (later_.empty()) continue;
    Prefetched batch{next_number_, later_, 0.0, stage(later_, Normalizing::fixed, cache), false, nullptr};
    batch.weight = static_cast<double>(window_weight(at.step));
    {
      const std::lock_guard lock(mutex_);
      prefetched_.push_back(std::move(batch));
    }
    changed_.notify_all();
    if (!worker_.joinable()) worker_ = std::thread([this, &normalizers] { work(normalizers); });
  }
}

BatchLoader::Loaded BatchLoader::take_prefetched(int64_t number) {
  std::unique_lock lock(mutex_);
  check_internal(!prefetched_.empty() && prefetched_.front().number == number, "another batch than the next");
  changed_.wait(lock, [&] { return prefetched_.front().written; });
  Prefetched batch = std::move(prefetched_.front());
  prefetched_.pop_front();
  if (batch.error) std::rethrow_exception(batch.error);
  return batch.loaded;
}

void BatchLoader::work(Normalizers& normalizers) {
  SampleScratch scratch;
  std::unique_lock lock(mutex_);
  while (true) {
    const auto next = std::find_if(prefetched_.begin(), prefetched_.end(),
                                   [](const Prefetched& batch) { return !batch.written; });
    if (stop_) return;
    if (next == prefetched_.end()) {
      changed_.wait(lock);
      continue;
    }
    Prefetched& batch = *next;  // a deque moves no other element when one is added or taken at an end
    lock.unlock();
    std::exception_ptr error;
    try {
      write(batch.loaded, batch.samples, batch.weight, Normalizing::fixed, normalizers, scratch);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    batch.error = error;
    batch.written = true;
    changed_.notify_all();
  }
}

}  // namespace meshgrad
