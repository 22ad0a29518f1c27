// SPDX-License-Identifier: Apache-2.0
// TrainStep: what one batch is to the device: upload, forward, loss, backward; and the end of a window. Only
// queues work: nothing here waits for a result.
//
// With graphs = "capture" that work is recorded once for each of a few classes of batch sizes and replayed
// for every batch of the class, since kernels read the real sizes on the device. Batches that are expected
// are put together by threads meanwhile.
#pragma once
#include <meshgrad/autograd/offload/offload_store.h>
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/engine/memory/step_plan.h>
#include <meshgrad/train/planning/recompute.h>
#include <meshgrad/train/run/optimizer.h>
#include <meshgrad/train/run/upload.h>
#include <meshgrad/train/task/frame_features.h>

#include <deque>
#include <future>
#include <list>

namespace meshgrad {

/// Classes of batch sizes: the largest batch's sizes halved up to five times. A function of configuration and
/// data alone, because sums may depend on capacities in their last bits.
class BatchClasses {
 public:
  static constexpr int kClasses = 6;
  explicit BatchClasses(const BatchSizes& largest) : largest_(largest) {}
  /// The number of the smallest class that holds a batch.
  int class_of(const BatchSizes& batch) const;
  BatchSizes capacity(int number) const;

 private:
  BatchSizes largest_;
};

class TrainStep {
 public:
  using Note = std::function<void(const std::string&)>;
  /// All of these outlive it. At most `most_captured` classes of batches stay captured, the ones used last.
  TrainStep(Runtime& runtime, const Config& config, const Dataset& dataset, const FrameFeatures& features,
            const MeshGraphNet& model, const Optimizer& optimizer, Note note,
            size_t most_captured = BatchClasses::kClasses);

  struct Window {
    double weight = 0.0;  ///< loss terms of all its batches
    NoiseOptions noise;
    bool learn = false;    ///< the normalisers learn from its batches
    bool observe = false;  ///< only that: the model waits
  };
  const Recomputation& recomputation() const { return recomputation_; }
  /// Bytes that waited outside of the device's memory, at most.
  int64_t offloaded_bytes() const;
  /// How many batches behind the current one it pays to expect.
  size_t ahead() const { return ahead_; }
  /// Starts to put a batch together. Those that are asked for next must be those that were expected, in the
  /// same order; the normalisers learn from none of them, and stay.
  void expect(const std::vector<Sample>& samples, const Window& window, Normalizers& normalizers);
  /// Adds the gradients of a batch, and its loss to the window's.
  void batch(const std::vector<Sample>& samples, const Window& window, Normalizers& normalizers);
  /// Applies the window's gradients.
  void finish_window();
  /// Seconds so far in which the host had nothing but data to do: it waited for a batch, or put one together.
  double data_seconds() const { return data_seconds_; }

 private:
  /// What the batches of a class are computed by.
  struct Captured {
    int number = 0;
    BatchMemory memory;
    StoragePtr piece;  // on the device
    Batch batch;
    std::unique_ptr<OffloadStore> store;  // of its own, as what was recorded knows its addresses
    std::unique_ptr<CapturedWork> work;
    bool told = false;
  };
  /// A batch on the host.
  struct Staged {
    std::vector<Sample> samples;  // when it was expected
    int number;                   // of its class, -1: not to be captured
    BatchMemory memory;
    StoragePtr host;
    std::future<void> written;  // or nothing: by now
  };
  Staged stage(const std::vector<Sample>& samples, bool observe);
  void write(const Staged& staged, const std::vector<Sample>& samples, const Window& window,
             Normalizers& normalizers, SampleScratch& scratch) const;
  Staged take(const std::vector<Sample>& samples, const Window& window, Normalizers& normalizers);
  Captured& captured_for(int number);
  StepPlan* plan_for(const BatchSizes& sizes);
  void run(Captured& captured);

  Runtime& runtime_;
  const Config& config_;
  const FrameFeatures& features_;
  const MeshGraphNet& model_;
  const Optimizer& optimizer_;
  Recomputation recomputation_;
  std::unique_ptr<OffloadStore> store_;
  Note note_;
  size_t most_captured_;
  size_t ahead_;
  double data_seconds_ = 0.0;
  SampleScratch scratch_;  // for batches that were not expected
  Uploader uploader_;
  BatchClasses classes_;
  std::list<Captured> captured_;  // used last first
  std::unique_ptr<CapturedWork> captured_update_;
  static constexpr size_t kMostPlans = 16;
  std::list<std::pair<BatchSizes, StepPlan>> plans_;
  std::deque<BatchSizes> seen_once_;  // the last ones
  std::deque<Staged> expected_;       // goes first: their threads use the others
};

/// The most nodes and edges of a batch of the training split: as if all its samples had the largest mesh.
BatchSizes largest_batch(const Config& config, const Dataset& dataset, const FrameFeatures& features);

/// Forward, loss and backward of a batch, in the memory of `runtime`.
void run_batch(Runtime& runtime, const MeshGraphNet& model, const Optimizer& optimizer, const Batch& batch,
               const Tensor& window_weight, const Recomputation& recomputation = {},
               OffloadStore* store = nullptr);

/// Where what segments keep waits, as `recomputation` says; null: nowhere else. Throws ConfigError for a
/// folder that cannot hold it.
std::unique_ptr<OffloadStore> make_offload_store(const Runtime& runtime, const Config& config,
                                                 const Recomputation& recomputation);

}  // namespace meshgrad
