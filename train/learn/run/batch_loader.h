// SPDX-License-Identifier: Apache-2.0
// BatchLoader: from the position of a run to batches in memory. It lists a batch's samples, knows the weight
// of a window before its first backward pass, and writes batches: on a GPU one worker thread prefetches the
// next ones meanwhile. On the CPU all threads compute, so batches are not prefetched; only the file is read
// ahead.
//
// A window's samples are shared out to ranks, so that all finish together: by their edges, which is what a
// step's time is proportional to. Every rank computes the same, and loads its own.
#pragma once
#include <meshgrad/engine/span.h>
#include <meshgrad/train/learn/run/batch_order.h>
#include <meshgrad/train/learn/run/step_cache.h>
#include <meshgrad/train/learn/task/mesh_parts.h>
#include <meshgrad/train/learn/task/upload.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace meshgrad {

/// What a rank needs to know of the others to find its samples.
struct RankShare {
  int rank = 0;
  int size = 1;
  RankReduction reduction = RankReduction::fast;
  /// Without, every window is cut into batches in its order.
  bool split() const { return size > 1 || reduction == RankReduction::ordered; }
};

/// For each rank the samples that it gets, as places in the window, ascending.
using WindowAssignment = std::vector<std::vector<int64_t>>;

/// Largest first, each to the rank with the fewest edges so far (Graham: "Bounds on multiprocessing timing
/// anomalies", 1969: at most 4/3 of the best).
WindowAssignment assign_largest_first(std::span<const int64_t> edges, int ranks);

/// In rounds: of every `ranks` consecutive samples each rank gets at most one, the largest of a round to the
/// rank with the fewest edges so far. So the sums of a round can be added to those of the rounds before it.
WindowAssignment assign_in_rounds(std::span<const int64_t> edges, int ranks);

/// Edges of the rank that has most, over the mean of the ranks; 1 when there are none.
double imbalance(std::span<const int64_t> edges, const WindowAssignment& assignment);

/// Micro-batch `micro` of the window of optimizer step `step`, both from 0.
struct BatchPosition {
  int64_t step = 0;
  int64_t micro = 0;
};

/// Whether the normalisers may change before the next batches are written.
enum class Normalizing : uint8_t {
  fixed,    ///< they stay: next batches can be prefetched
  learning  ///< they learn from each window before its batches are written
};

/// The noise of training samples of window `step`: it rises over train.noise_warmup_steps.
NoiseOptions noise_at(const Config& config, int64_t step);

class BatchLoader {
 public:
  /// All references outlive it. With `parts`, batches are this rank's parts of samples, or for parts in turn
  /// of whole samples on the host. Throws DataError when the training split has no sample of the task.
  BatchLoader(Runtime& runtime, const Config& config, const Task& task, const RankShare& share = {},
              MeshParts* parts = nullptr);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  NoiseOptions noise(int64_t step) const { return noise_at(config_, step); }
  const Sampler& sampler() const { return order_.sampler(); }
  /// Null without one.
  Curriculum* curriculum() { return order_.curriculum(); }
  /// Whether the samples of the window are known: a curriculum needs scores of its epochs.
  bool knows(int64_t step) {
    return curriculum() == nullptr || samples_until(step + 1) <= curriculum()->known_until();
  }
  /// The epoch, from 1, of the last sample that windows up to `step` have drawn; 0: there is none.
  int64_t epoch_of(int64_t step) {
    const int64_t drawn = samples_until(step);
    return drawn > 0 ? sampler().pass_of(drawn - 1) + 1 : 0;
  }
  /// Optimizer steps of the whole run: train.steps, or what train.epochs comes to.
  int64_t total_steps() const { return total_steps_; }
  /// Optimizer steps that contain `passes` passes over the samples; the last may go on in the next pass.
  int64_t steps_of(int64_t passes) { return (order_.batches_of(passes) + accumulate_ - 1) / accumulate_; }
  /// Samples that windows up to `step` have drawn.
  int64_t samples_until(int64_t step) { return begin_of({step, 0}); }
  /// Whether the window has an unsplit batch there: the last window of the last epoch may have fewer.
  bool has_batch(const BatchPosition& at) { return at.micro < accumulate_ && begin_of(at) < sample_limit_; }
  /// Samples of the window, on all ranks.
  int64_t window_samples(int64_t step) { return samples_until(step + 1) - samples_until(step); }
  /// Batches of the window on this rank, the empty ones of a last window included.
  int64_t batches(int64_t step);
  /// The batch's samples on this rank, in order; the last window of the last epoch may have fewer batches:
  /// then none.
  void list_samples(const BatchPosition& at, std::vector<Sample>& samples);
  /// Rank 0 gets the whole window `step` in unsplit batches, and the others nothing of it: to finish a
  /// window that one process began, or to search it.
  void give_to_first_rank(int64_t step) { unsplit_ = step; }
  bool is_split(int64_t step) const { return share_.split() && step != unsplit_; }
  /// The parts of the ranks of a window that is split.
  const WindowAssignment& assignment(int64_t step);
  /// Edges of each of the window's samples.
  std::vector<int64_t> edges_of_window(int64_t step);
  /// Weight of the loss of a whole window, so that it equals one large batch. Throws DataError when it has
  /// none.
  double window_weight(int64_t step);

  struct Loaded {
    int64_t samples = 0;  ///< 0: there is no such batch
    BatchLayout layout;
    StoragePtr memory;             ///< on the host; on the CPU the memory that is computed from
    std::vector<MeshView> meshes;  ///< of a batch that is computed in parts in turn
  };
  /// The normalisers learn from the whole window, in its order and the same on every rank.
  void observe_window(int64_t step, Normalizers& normalizers);
  /// The batch at `at`, written. Prefetches those after it where normalisers are fixed; the normalisers and
  /// the cache must outlive this.
  Loaded load(const BatchPosition& at, Normalizing normalizing, Normalizers& normalizers,
              const StepCache& cache);
  /// From the worker's next batch on, its spans go to the recorder; null: no longer.
  void record_spans(std::shared_ptr<SpanRecorder> recorder);
  /// For StepCache::run.
  StoragePtr upload(const Loaded& loaded, const StoragePtr& to) {
    const Span span("upload");
    return uploader_.upload(loaded.memory, loaded.layout.bytes(), to);
  }
  /// Seconds so far in which the host did nothing but wait for a batch or write one.
  double data_seconds() const { return data_seconds_; }

 private:
  /// A window and the weight of its loss.
  struct Window {
    int64_t step = 0;
    double weight = 0.0;
  };
  /// A batch that the worker writes.
  struct Prefetched {
    int64_t number = 0;
    std::vector<Sample> samples;
    Window window;
    Loaded loaded;
    bool written = false;
    std::exception_ptr error;
  };
  int64_t number_of(const BatchPosition& at) const { return at.step * most_batches_ + at.micro; }
  BatchPosition position_of(int64_t number) const { return {number / most_batches_, number % most_batches_}; }
  /// The position at which an unsplit batch begins, at most that of the run's end.
  int64_t begin_of(const BatchPosition& at) {
    return std::min(sample_limit_, order_.begin_of(at.step * accumulate_ + at.micro));
  }
  /// Of a window that is split, the places of a batch of this rank; none after its last.
  std::span<const int64_t> own_places(const BatchPosition& at);
  void list_unsplit(const BatchPosition& at, std::vector<Sample>& samples);
  Loaded stage(const std::vector<Sample>& samples, const StepCache& cache);
  Loaded load_part(const std::vector<Sample>& samples, const Window& window, Normalizers& normalizers);
  Loaded load_whole(const std::vector<Sample>& samples, const Window& window, Normalizers& normalizers);
  void write(const Loaded& loaded, const std::vector<Sample>& samples, const Window& window, bool learn,
             Normalizers& normalizers, SampleScratch& scratch) const;
  void prefetch_behind(int64_t number, Normalizers& normalizers, const StepCache& cache);
  Loaded take_prefetched(int64_t number);
  void work(Normalizers& normalizers);

  const Config& config_;
  const Task& task_;
  BatchOrder order_;
  RankShare share_;
  MeshParts* parts_;         // null: batches are of whole meshes
  StoragePtr whole_memory_;  // of the batch that parts are cut from
  int64_t accumulate_;
  int64_t most_batches_;  // of a window, on a rank
  int64_t unsplit_ = -1;  // a window of rank 0 alone
  int64_t sample_limit_;  // of the whole run
  int64_t total_steps_;
  size_t depth_;  // batches to prefetch
  Uploader uploader_;
  std::vector<std::pair<int64_t, double>> window_weights_;       // of recent windows: (step, weight)
  std::list<std::pair<int64_t, WindowAssignment>> assignments_;  // of recent windows; references stay
  std::vector<Sample> samples_, later_;
  SampleScratch scratch_;
  double data_seconds_ = 0.0;
  int64_t pass_ = 0;  // over the samples, of the last batch

  // Shared with the worker.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Prefetched> prefetched_;  // in order; the worker writes the first that is not written
  int64_t next_number_ = 0;            // to prefetch
  bool stop_ = false;
  std::shared_ptr<SpanRecorder> recorder_;
  std::thread worker_;
};

}  // namespace meshgrad
