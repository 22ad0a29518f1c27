// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/threads/blocked_signals.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/run/part_step.h>
#include <meshgrad/train/learn/task/largest_batch.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>

namespace meshgrad {
namespace {

/// Places [begin, end) of the window, those with most edges first; of equal ones the earlier first.
std::vector<int64_t> by_size(std::span<const int64_t> edges, size_t begin, size_t end) {
  std::vector<int64_t> places(end - begin);
  std::iota(places.begin(), places.end(), static_cast<int64_t>(begin));
  std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) {
    return edges[static_cast<size_t>(a)] > edges[static_cast<size_t>(b)];
  });
  return places;
}

void sort_parts(WindowAssignment& assignment) {
  for (std::vector<int64_t>& part : assignment) std::sort(part.begin(), part.end());
}

/// Batches of a window on a rank, at most: rank 0 may have all of it. Ordered, they are single samples; with
/// a budget of nodes any two in a row of a rank's share are more than one budget.
int64_t most_batches(const Config& config, const Task& task, const RankShare& share) {
  const int64_t accumulate = config.train.accumulate;
  if (share.reduction == RankReduction::ordered)
    return std::max(accumulate, (largest_batch(config, task).graphs * accumulate - 1) / share.size + 1);
  return config.train.batch_nodes > 0 && share.split() ? 2 * accumulate - 1 : accumulate;
}

/// On a GPU, prefetching hides variations of the time that writing a batch takes; on average that must be
/// less than the step.
size_t prefetch_depth(const Runtime& runtime) { return runtime.stream().on_gpu() ? 2 : 0; }

}  // namespace

WindowAssignment assign_largest_first(std::span<const int64_t> edges, int ranks) {
  WindowAssignment assignment(static_cast<size_t>(ranks));
  std::vector<int64_t> loads(assignment.size());
  for (const int64_t place : by_size(edges, 0, edges.size())) {
    // Meshes may have no edges: then the one with the fewest samples.
    size_t least = 0;
    for (size_t rank = 1; rank < assignment.size(); ++rank) {
      const bool equal = loads[rank] == loads[least];
      if (loads[rank] < loads[least] || (equal && assignment[rank].size() < assignment[least].size()))
        least = rank;
    }
    assignment[least].push_back(place);
    loads[least] += edges[static_cast<size_t>(place)];
  }
  sort_parts(assignment);
  return assignment;
}

WindowAssignment assign_in_rounds(std::span<const int64_t> edges, int ranks) {
  WindowAssignment assignment(static_cast<size_t>(ranks));
  std::vector<int64_t> loads(assignment.size());
  for (size_t begin = 0; begin < edges.size(); begin += assignment.size()) {
    std::vector<size_t> order(assignment.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return loads[a] < loads[b]; });
    auto rank = order.begin();
    for (const int64_t place : by_size(edges, begin, std::min(edges.size(), begin + assignment.size()))) {
      assignment[*rank].push_back(place);
      loads[*rank++] += edges[static_cast<size_t>(place)];
    }
  }
  sort_parts(assignment);
  return assignment;
}

double imbalance(std::span<const int64_t> edges, const WindowAssignment& assignment) {
  int64_t all = 0;
  int64_t most = 0;
  for (const std::vector<int64_t>& part : assignment) {
    int64_t load = 0;
    for (const int64_t place : part) load += edges[static_cast<size_t>(place)];
    all += load;
    most = std::max(most, load);
  }
  return all > 0
             ? static_cast<double>(most) * static_cast<double>(assignment.size()) / static_cast<double>(all)
             : 1.0;
}

NoiseOptions noise_at(const Config& config, int64_t step) {
  NoiseOptions noise = noise_of(config);
  const int64_t rise = config.train.noise_warmup_steps;
  if (step < rise) noise.scale = static_cast<double>(step + 1) / static_cast<double>(rise);
  return noise;
}

BatchLoader::BatchLoader(Runtime& runtime, const Config& config, const Task& task, const RankShare& share,
                         MeshParts* parts)
    : config_(config),
      task_(task),
      order_(config, task),
      share_(share),
      parts_(parts),
      accumulate_(config.train.accumulate),
      most_batches_(most_batches(config, task, share)),
      sample_limit_(config.train.epochs > 0 ? sampler().begin_of(config.train.epochs)
                                            : std::numeric_limits<int64_t>::max()),
      total_steps_(config.train.epochs > 0 ? steps_of(config.train.epochs) : config.train.steps),
      depth_(parts != nullptr ? 0 : prefetch_depth(runtime)),
      uploader_(
          runtime, depth_ + 2,
          task.layout(largest_batch(config, task), config.precision, BatchLayout::Sizes::capacity).bytes()) {}

BatchLoader::~BatchLoader() {
  if (!worker_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

/// Into a list that is reused, so that a steady-state step makes no heap allocation.
void BatchLoader::list_unsplit(const BatchPosition& at, std::vector<Sample>& samples) {
  samples.clear();
  const int64_t end = begin_of({at.step, at.micro + 1});
  for (int64_t position = begin_of(at); position < end; ++position) samples.push_back(sampler().at(position));
}

std::span<const int64_t> BatchLoader::own_places(const BatchPosition& at) {
  std::span<const int64_t> left = assignment(at.step)[static_cast<size_t>(share_.rank)];
  if (share_.reduction == RankReduction::ordered) {
    left = left.subspan(std::min(left.size(), static_cast<size_t>(at.micro)));
    return left.first(std::min<size_t>(left.size(), 1));
  }
  const int64_t first = samples_until(at.step);
  for (int64_t micro = 0; micro < at.micro; ++micro) left = left.subspan(order_.first_batch(first, left));
  return left.first(order_.first_batch(first, left));
}

void BatchLoader::list_samples(const BatchPosition& at, std::vector<Sample>& samples) {
  samples.clear();
  if (at.micro >= batches(at.step)) return;
  if (!is_split(at.step)) return list_unsplit(at, samples);
  const int64_t first = samples_until(at.step);
  for (const int64_t place : own_places(at)) samples.push_back(sampler().at(first + place));
}

int64_t BatchLoader::batches(int64_t step) {
  if (!share_.split()) return accumulate_;
  if (step == unsplit_) return share_.rank == 0 ? accumulate_ : 0;
  if (share_.reduction == RankReduction::ordered)
    return std::ssize(assignment(step)[static_cast<size_t>(share_.rank)]);
  std::span<const int64_t> left = assignment(step)[static_cast<size_t>(share_.rank)];
  const int64_t first = samples_until(step);
  int64_t batches = 0;
  for (; !left.empty(); ++batches) left = left.subspan(order_.first_batch(first, left));
  return batches;
}

std::vector<int64_t> BatchLoader::edges_of_window(int64_t step) {
  std::vector<int64_t> edges;
  const int64_t end = samples_until(step + 1);
  for (int64_t position = samples_until(step); position < end; ++position)
    edges.push_back(task_.shape(config_.data.train_split, {sampler().at(position)}).edges);
  return edges;
}

const WindowAssignment& BatchLoader::assignment(int64_t step) {
  const auto known = std::find_if(assignments_.begin(), assignments_.end(),
                                  [&](const auto& window) { return window.first == step; });
  if (known != assignments_.end()) return known->second;
  const int64_t oldest = step - static_cast<int64_t>(depth_) - 1;
  std::erase_if(assignments_, [&](const auto& window) { return window.first < oldest; });
  const std::vector<int64_t> edges = edges_of_window(step);
  return assignments_
      .emplace_back(step, share_.reduction == RankReduction::ordered
                              ? assign_in_rounds(edges, share_.size)
                              : assign_largest_first(edges, share_.size))
      .second;
}

double BatchLoader::window_weight(int64_t step) {
  const auto known = std::find_if(window_weights_.begin(), window_weights_.end(),
                                  [&](const auto& window) { return window.first == step; });
  if (known != window_weights_.end()) return known->second;
  double weight = 0.0;
  for (int64_t micro = 0; micro < accumulate_; ++micro) {
    list_unsplit({step, micro}, later_);
    weight += task_.loss_weight(config_.data.train_split, later_);
  }
  if (weight == 0.0) throw task_.no_loss();
  const int64_t oldest = step - static_cast<int64_t>(depth_) - 1;
  std::erase_if(window_weights_, [&](const auto& window) { return window.first < oldest; });
  return window_weights_.emplace_back(step, weight).second;
}

BatchLoader::Loaded BatchLoader::stage(const std::vector<Sample>& samples, const StepCache& cache) {
  const BatchLayout layout = cache.layout(task_.shape(config_.data.train_split, samples));
  return {static_cast<int64_t>(samples.size()), layout, uploader_.stage(layout.bytes()), {}};
}

void BatchLoader::write(const Loaded& loaded, const std::vector<Sample>& samples, const Window& window,
                        bool learn, Normalizers& normalizers, SampleScratch& scratch) const {
  const Span span("write batch");
  const Batch batch = loaded.layout.batch(loaded.memory);
  task_.write(batch, config_.data.train_split, samples, noise(window.step), normalizers, learn, scratch);
  *batch.tensor(kWindowWeight).data<double>() = window.weight;
}

/// The batch of whole meshes, on the host.
BatchLoader::Loaded BatchLoader::load_whole(const std::vector<Sample>& samples, const Window& window,
                                            Normalizers& normalizers) {
  const BatchLayout layout = task_.layout(task_.shape(config_.data.train_split, samples), config_.precision,
                                          BatchLayout::Sizes::exact);
  if (whole_memory_ == nullptr || whole_memory_->bytes() < layout.bytes())
    whole_memory_ = host_tensor(Shape{layout.bytes()}, DType::u8).storage();
  Loaded whole{static_cast<int64_t>(samples.size()), layout, whole_memory_,
               meshes_of(task_.dataset(), config_.data.train_split, samples)};
  write(whole, samples, window, false, normalizers, scratch_);
  parts_->begin_batch(layout.batch(whole_memory_).graph);
  return whole;
}

/// Every rank writes the whole batch, which costs little beside computing its part: so noise and normalised
/// values are those of the whole mesh.
BatchLoader::Loaded BatchLoader::load_part(const std::vector<Sample>& samples, const Window& window,
                                           Normalizers& normalizers) {
  const Loaded loaded = load_whole(samples, window, normalizers);
  const Batch whole = loaded.layout.batch(loaded.memory);
  const Part& part = parts_->part(loaded.meshes, whole.graph, parts_->rank());
  const BatchLayout layout = part_layout(task_, *parts_, loaded.meshes, whole, config_.precision);
  const StoragePtr memory = uploader_.stage(layout.bytes());
  write_part(whole, part, layout.batch(memory));
  return {loaded.samples, layout, memory, {}};
}

void BatchLoader::observe_window(int64_t step, Normalizers& normalizers) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t micro = 0; micro < accumulate_; ++micro) {
    list_unsplit({step, micro}, samples_);
    if (samples_.empty()) continue;
    const BatchLayout layout = task_.layout(task_.shape(config_.data.train_split, samples_),
                                            config_.precision, BatchLayout::Sizes::exact);
    const Loaded observed{static_cast<int64_t>(samples_.size()), layout, uploader_.stage(layout.bytes()), {}};
    write(observed, samples_, {step, 0.0}, true, normalizers, scratch_);
  }
  data_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

BatchLoader::Loaded BatchLoader::load(const BatchPosition& at, Normalizing normalizing,
                                      Normalizers& normalizers, const StepCache& cache) {
  const int64_t number = number_of(at);
  const int64_t pass = sampler().pass_of(begin_of({at.step, share_.split() ? 0 : at.micro}));
  if (config_.data.verify == DataVerify::epoch && pass != std::exchange(pass_, pass))
    task_.dataset().verify_again();
  const bool prefetches = depth_ > 0 && normalizing == Normalizing::fixed;
  const BatchPosition ahead = position_of(number + static_cast<int64_t>(depth_) + 1);
  if (ahead.step < total_steps_ && knows(ahead.step)) {
    list_samples(ahead, later_);
    for (const Sample& sample : later_) task_.read_ahead(config_.data.train_split, sample);
  }
  if (prefetches) prefetch_behind(number, normalizers, cache);
  list_samples(at, samples_);
  if (samples_.empty())
    return {0, task_.layout({}, config_.precision, BatchLayout::Sizes::exact), nullptr, {}};
  const Window window{at.step, window_weight(at.step)};
  const Span span("load batch");
  const auto begin = std::chrono::steady_clock::now();
  const auto load_here = [&] {
    if (parts_ != nullptr && parts_->in_turn()) return load_whole(samples_, window, normalizers);
    if (parts_ != nullptr) return load_part(samples_, window, normalizers);
    Loaded loaded = stage(samples_, cache);
    write(loaded, samples_, window, false, normalizers, scratch_);
    return loaded;
  };
  Loaded loaded = prefetches ? take_prefetched(number) : load_here();
  data_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return loaded;
}

/// Hands batch `number` and the next ones to the worker.
void BatchLoader::prefetch_behind(int64_t number, Normalizers& normalizers, const StepCache& cache) {
  next_number_ = std::max(next_number_, number);
  for (; next_number_ <= number + static_cast<int64_t>(depth_); ++next_number_) {
    const BatchPosition at = position_of(next_number_);
    if (at.step >= total_steps_ || !knows(at.step)) return;
    list_samples(at, later_);
    if (later_.empty()) continue;
    Prefetched batch{next_number_, later_, {at.step, 0.0}, stage(later_, cache), false, nullptr};
    batch.window.weight = window_weight(at.step);
    {
      const std::lock_guard lock(mutex_);
      prefetched_.push_back(std::move(batch));
    }
    changed_.notify_all();
    if (worker_.joinable()) continue;
    const BlockedSignals blocked;
    worker_ = std::thread([this, &normalizers] { work(normalizers); });
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

void BatchLoader::record_spans(std::shared_ptr<SpanRecorder> recorder) {
  const std::lock_guard lock(mutex_);
  recorder_ = std::move(recorder);
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
    const std::shared_ptr<SpanRecorder> recorder = recorder_;
    lock.unlock();
    std::exception_ptr error;
    try {
      const RecordSpans recording(recorder, "prefetch");
      write(batch.loaded, batch.samples, batch.window, false, normalizers, scratch);
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
